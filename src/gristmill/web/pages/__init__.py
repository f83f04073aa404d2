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
    signing,
    subjects,
    workers,
)

_PARTS = (overview, subjects, runs, jobs, errors, queues, workers, schedules, limits, locks, audit, settings, signing)
ALL = [module.pages for module in _PARTS]
