"""The core in one process without threads and without real time: whatever happens, in which order, is one seed's doing.

The worker, its crew, its appetite, its housekeeping, the ledger and the reconciler are the real ones. Simulated are the
clock, the processes of its children and what their functions do, the doorbell, and the ledger's failures.
"""
