"""The routes, by what they are about. Each parses, calls one function of the mill, and answers."""

from __future__ import annotations

from gristmill.api.routes import errors, events, jobs, limits, overview, queues, runs, schedules, subjects, tokens

_PARTS = (overview, queues, subjects, runs, jobs, errors, schedules, limits, events, tokens)
ROUTERS = [*(module.router for module in _PARTS), schedules.firings]
