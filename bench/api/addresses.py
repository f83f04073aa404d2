"""Every address that can be read: each GET route of the API and each page, with its usual filters, early and late pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bench.api.filling import Place
from gristmill.web.pages import ALL as PAGES

# What is asked of each; `{…}` is filled with what is there. A query `…&next` is that of the page after it too.
API: dict[str, tuple[str, ...]] = {
    "/api/overview": ("",),
    "/api/workers": ("", "?every=true"),
    "/api/locks": ("",),
    "/api/audit": (
        "?limit=50&next",
        "?who=anna&limit=50&next",
        "?who=nobody",
        "?verb=run.*&target=*77*",
        "?since={hour}",
        "?cursor=100",
    ),
    "/api/doctor": ("",),
    "/api/queues": ("",),
    "/api/queues/{queue}": ("",),
    "/api/subjects": (
        "?limit=50&next",
        "?cursor={subjects_middle}",
        "?pipeline=site",
        "?subject=subject%2000017",
        "?subject=nobody",
        "?label=region%3Dnorth&limit=50&next",
        "?label=town%3Dtown%207",
        "?label=nothing",
        "?stale_for=86400&limit=50&next",
        "?stale_for=86400&label=region%3Deast&state=failed",
        "?state=in_progress&limit=50&next",
        "?state=failed",
        "?state=cancelled",
        "?limit=1000",
    ),
    "/api/subjects/{subject}": ("",),
    "/api/subjects/{subject}/why": ("",),
    "/api/subjects/{subject}/recoveries": ("",),
    "/api/runs": (
        "?limit=50&next",
        "?cursor={runs_middle}",
        "?subject=subject%2000017",
        "?subject=nobody",
        "?pipeline=site&limit=50&next",
        "?pipeline=nothing",
        "?since={hour}",
        "?state=queued&state=in_progress&state=waiting&limit=50&next",
        "?state=completed",
        "?state=completed_with_errors",
        "?state=failed&limit=50&next",
        "?state=cancelled",
        "?limit=1000",
    ),
    "/api/runs/stuck": ("",),
    "/api/runs/{run}": ("",),
    "/api/runs/{run}/stages": ("",),
    "/api/runs/{run}/recoveries": ("",),
    "/api/runs/{run}/why": ("",),
    "/api/runs/{run}/stages/{stage}/results": ("?limit=10&next", ""),
    "/api/jobs": (
        "?limit=50&next",
        "?cursor={jobs_middle}",
        "?limit=1000",
        *(f"?state={state}&limit=50&next" for state in ("queued", "in_progress", "completed", "failed", "skipped")),
        "?state=cancelled",
        "?state=completed_with_errors",
        "?state=failed&cursor={jobs_middle}",
        "?state=queued&state=failed&limit=50&next",
        *(f"?queue={queue}&limit=50&next" for queue in ("find", "page", "mail", "polite")),
        "?queue=rare",
        "?queue=none",
        "?queue=mail&state=failed",
        "?queue=page&state=failed&limit=50&next",
        "?queue=page&cursor={jobs_middle}",
        "?task=site.page&limit=50&next",
        "?task=rare",
        "?task=nothing",
        "?run={run}&limit=20&next",
        "?run={run}&state=failed",
        "?run={run}&key=0001*",
        "?pipeline=site&limit=50&next",
        "?pipeline=site&state=failed&limit=50&next",
        "?pipeline=nothing",
        "?subject=subject%2000017",
        "?subject=subject%2000020&state=failed",
        "?subject=nobody",
        "?stage=page&limit=50&next",
        "?stage=page&state=cancelled",
        "?stage=nothing",
        "?error={fingerprint}&limit=20&next",
        "?error=000000000000",
        "?key=00017&limit=50&next",
        "?key=*0017*&cursor={jobs_middle}",
        "?key=nothing-like-it*",
        "?key=*nothing*",
        "?since={hour}",
        "?since={hour}&state=failed",
        "?since=2001-01-01T00%3A00%3A00Z&state=cancelled",
        "?archived=true",
        "?part_of={job}",
    ),
    "/api/jobs/{job}": ("",),
    "/api/jobs/{job}/attempts": ("",),
    "/api/jobs/{job}/why": ("",),
    "/api/errors": (
        "?limit=50",
        "?every=true&limit=50",
        "?queue=page",
        "?queue=none",
        "?stage=page",
        "?pipeline=site",
        "?since={hour}",
        "?since={day}",
        "?limit=100",
    ),
    "/api/errors/{fingerprint}": ("",),
    "/api/schedules": ("",),
    "/api/schedules/{schedule}": ("",),
    "/api/schedules/{schedule}/history": ("", "?limit=1000"),
    "/api/firings": ("", "?limit=1000"),
    "/api/limits": ("", "?name=host&key=0017.example", "?most=200"),
    "/api/tokens": ("", "?every=true"),
    "/api/history": ("", "?since={day}", "?since={day}&step=3600", "?queue=page"),
    "/api/totals": ("",),
    "/api/me": ("",),
    "/health": ("",),
    "/ready": ("",),
    "/openapi.json": ("",),
}
APART = {"/api/events", "/metrics", "/login"}  # the first two have figures of their own; an open server has no sign-in

SITE: dict[str, tuple[str, ...]] = {
    "/": ("",),
    "/subjects": (
        "",
        "?after={subjects_middle}",
        "?q=state%3Ain_progress",
        "?q=state%3Afailed",
        "?q=label%3Aregion%3Dnorth",
        "?q=stale%3A1d",
        "?q=subject%2000017",
        "?q=nobody",
    ),
    "/subjects/{number:id}": ("",),
    "/subjects/{number:id}/peek": ("",),
    "/runs": (
        "",
        "?after={runs_middle}",
        "?q=state%3Ain_progress%2Cqueued%2Cwaiting",
        "?q=state%3Afailed",
        "?q=is%3Astuck",
        "?q=nobody",
    ),
    "/runs/{number:id}": ("",),
    "/runs/{number:id}/peek": ("",),
    "/jobs": (
        "",
        "?after={jobs_middle}",
        "?q=state%3Afailed",
        "?q=state%3Ain_progress",
        "?q=state%3Aqueued",
        "?q=queue%3Apage",
        "?q=queue%3Apage%20state%3Afailed",
        "?q=run%3A{run}",
        "?q=subject%3A%22subject%2000017%22",
        "?q=error%3A{fingerprint}",
        "?q=key%3A*0017*",
        "?q=nothing-like-it",
        "?q=is%3Aarchived",
    ),
    "/jobs/{number:id}": ("",),
    "/jobs/{number:id}/peek": ("",),
    "/errors": ("", "?every=1"),
    "/errors/{fingerprint}": ("",),
    "/queues": ("",),
    "/queues/{name}": ("",),
    "/workers": ("", "?every=1"),
    "/schedules": ("",),
    "/schedules/{name:path}/history": ("",),
    "/limits": ("",),
    "/locks": ("",),
    "/audit": ("", "?after=100", "?who=anna", "?who=nobody", "?target=77"),
    "/settings": ("",),
}


@dataclass(frozen=True)
class Address:
    name: str
    path: str
    goes_on: bool = False  #: the page after it is asked for too


def left_out(document: dict[str, Any]) -> set[str]:
    """Routes and pages that are not asked for here."""
    routes = {path for path, operations in document["paths"].items() if "get" in operations}
    pages = {page.path for part in PAGES for page in part.pages if page.method == "GET"}
    return (routes | pages) - API.keys() - SITE.keys() - APART


def values(place: Place, job: int, fingerprint: str, hour: str, day: str) -> dict[str, dict[str, Any]]:
    """What the addresses are about: a run that failed in part, and one that is under way, with all that belongs to them."""
    common = {
        "fingerprint": fingerprint,
        "hour": quote(hour),
        "day": quote(day),
        "queue": "page",
        "name": "page",
        "stage": "page",
        "job": job,
        "schedule": "mail-01",
        "subjects_middle": place.subjects // 2,
        "runs_middle": place.runs // 2,
        "jobs_middle": place.runs * 25,
    }
    kinds = {"": place.failed, "under way": place.runs}
    return {name: {**common, "run": run, "subject": (run - 1) % place.subjects + 1} for name, run in kinds.items()}


def addresses(known: dict[str, dict[str, Any]]) -> Iterator[Address]:
    for route, queries in (API | SITE).items():
        kinds = known if re.search(r"\{(run|subject|number|number:id)\}", route) else [""]
        for kind in kinds:
            yield from _of(route, queries, kind, known[kind])


def _of(route: str, queries: Iterable[str], kind: str, about: dict[str, Any]) -> Iterator[Address]:
    thing = route.split("/")[1]
    number = {"subjects": about["subject"], "runs": about["run"], "jobs": about["job"]}.get(thing)
    name = about["schedule"] if thing == "schedules" else about["name"]
    path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route).format(**about | {"number": number, "name": name})
    for query in queries:
        shown = re.sub(r"&next$", "", query)
        called = f"{route}{shown}{f' ({kind})' if kind else ''}"
        yield Address(called, path + shown.format(**about), query != shown)
