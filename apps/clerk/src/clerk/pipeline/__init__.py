"""The pipeline of a site on the engine, and the checks that `reconcile` asks."""

from clerk.pipeline.checks import critical_errors, failed_runs, silent_runs, storage
from clerk.pipeline.stages import configure, site

__all__ = ["configure", "critical_errors", "failed_runs", "silent_runs", "site", "storage"]
