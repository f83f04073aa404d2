"""The pages, by what they show. Each asks the mill and hands what it said to a template; none has SQL."""

from __future__ import annotations

from gristmill.web.pages import (
    audit,
    errors,
    jobs,
    limits,
    locks,
    overview,
    queues,
    runs,
    schedules,
    settings,
    subjects,
    workers,
)

ALL = [
    module.pages
    for module in (overview, subjects, runs, jobs, errors, queues, workers, schedules, limits, locks, audit, settings)
]
