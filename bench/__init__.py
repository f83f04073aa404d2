"""Measurements: ratios taken in one run, never absolute times, since machines differ and are noisy."""
