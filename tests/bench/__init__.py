"""The parts of the benchmarks that measure nothing: plans, tables, charts, floors."""
