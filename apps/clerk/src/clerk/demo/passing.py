"""One pass of the demonstration's sites through the pipeline, by a worker in this process, and what can be seen of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from clerk import sites
from clerk.demo import show
from clerk.demo.show import Progress
from clerk.demo.sites import NewSite
from clerk.errors import ClerkError
from clerk.names import STAGES

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill import Mill
    from gristmill.model import Run

_ENDS: Final = {
    "completed": "completed",
    "completed_with_errors": "completed",
    "failed": "failed",
    "skipped": "skipped",
    "cancelled": "skipped",
}


# ---- the sites


def former_port(mill: Mill) -> int:
    """Where their documents were the last time; 0: there was none."""
    ports = (urlsplit(_address(site.extra)).port for site in sites.known(mill))
    return next((port for port in ports if port), 0)


def _address(extra: Any) -> str:
    return str(extra.get("url") or extra.get("base_url") or "")


def ask(mill: Mill, wanted: Sequence[NewSite]) -> list[int]:
    """Sites that are not there are made, all are asked for; says the runs. One that was broken off goes on."""
    there = {site.subdomain: site for site in sites.known(mill)}
    runs = []
    for one in wanted:
        described = _described(one)
        if one.subdomain not in there:
            sites.create(mill, described)
        else:
            sites.change(mill, described, (_origin(there[one.subdomain].extra), _origin(one.extra)))
        asked = sites.update(mill, one.subdomain, sites.Options(all_years=True))
        runs.append(asked.follow_up or asked.run)
    return runs


def _described(one: NewSite) -> sites.Description:
    values = asdict(one)
    lat, _, lng = values.pop("lat_lng").partition(",")
    return sites.Description(**values, lat=lat, lng=lng)


def _origin(extra: Any) -> str:
    parts = urlsplit(_address(extra))
    return f"{parts.scheme}://{parts.netloc}/"


# ---- working


def work(mill: Mill, numbers: Sequence[int], to: Console) -> list[Run]:
    """Until nothing is left to do, shown as it goes. Whatever ends it, nothing is running afterwards."""
    with working(mill, "drained") as worker:
        show.watch(lambda: [one for number in numbers for one in stages(mill.run(number))], worker.done, to)
        worker.result()
    runs = [mill.run(number) for number in numbers]
    if left := [run.subject for run in runs if not run.terminal]:
        raise ClerkError(f"nobody could go on with {', '.join(left)}; `clerk status` there says where they are")
    return runs


@contextlib.contextmanager
def working(mill: Mill, until: Literal["drained"] | None = None) -> Iterator[Future[None]]:
    """A worker in a thread. It ends with this, at once: what it has in hand goes back, unspent."""
    for queue in STAGES:
        mill.set_queue(queue, create=True)
    worker = mill.worker(queues=STAGES, slots=os.cpu_count() or 1, one_line=True)
    with ThreadPoolExecutor(1, "worker") as threads:
        try:
            yield threads.submit(worker.run, until)
        finally:
            worker.stop()
            worker.stop()


def stages(run: Run) -> list[Progress]:
    """How far each stage of a run is. Of fetch, the documents that it found."""
    found = [_progress(run, name) for name in STAGES]
    if run.reason == show.UNCHANGED:
        found[1] = found[1]._replace(state=show.UNCHANGED)
    if listed := (run.results.get("fetch") or {}).get("listed"):
        found[0] = found[0]._replace(done=listed, total=listed)
    return found


def _progress(run: Run, name: str) -> Progress:
    stage = run.stage(name)
    if stage.outcome is not None:
        state = _ENDS[stage.outcome]
        state = "skipped" if state == "completed" and not stage.total else state
        return Progress(run.subject, name, stage.completed, stage.total, state)
    waits = stage.state == "waiting" or not stage.total
    state = ("skipped" if run.terminal else "waiting") if waits else "running"
    return Progress(run.subject, name, stage.done, stage.total, state)
