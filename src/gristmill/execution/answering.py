"""The process that answers for an application when reconcile asks: its probes and its checks.

User code never runs in the reconciler itself: this process imports the application, answers one question at a time, and
can be killed. It has a context like a job's, but is none: nothing that it does is recorded.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from gristmill.application import Finding
from gristmill.binding import encode
from gristmill.errors import Invalid
from gristmill.execution.child import die_with_parent
from gristmill.execution.context import Common, Context, Unsupervised
from gristmill.execution.emitter import Emitter
from gristmill.execution.frames import Unpacker, pack
from gristmill.execution.load import load_for_child
from gristmill.execution.run import clean
from gristmill.pipeline import Stage, Task
from gristmill.registry import Registry

if TYPE_CHECKING:
    from gristmill.ledger.store import Ledger

_MOST = 10_000  # findings of one check: who has more has another problem
_TEXT = 500


class Host(Unsupervised):
    """What a context needs from its process."""

    worker = 0  # nobody's: nothing can be finished from here

    def __init__(self, database: str, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._ledger: Ledger | None = None

    def ledger(self) -> Ledger:
        if self._ledger is None:
            from gristmill.ledger.store import Ledger

            self._ledger = Ledger(self._database)
        return self._ledger

    def task(self, name: str) -> Task[Any, Any]:
        return self._registry.task(name)

    def report_progress(self, job: int, attempt: int, state: dict[str, Any]) -> None: ...


def answer(registry: Registry, host: Host, message: list[Any]) -> list[Any]:
    """What the application says to a question; whatever goes wrong is an answer too."""
    try:
        match message:
            case ["probe", row, common]:
                return _probe(registry, host, row, Common(*common))
            case ["check", name, pipeline, subject]:
                return ["found", list(_findings(registry, host, name, pipeline, subject))]
        raise Invalid(f"nobody understands {message!r:.80}")
    except BaseException as error:
        text = clean(f"{type(error).__name__}: {error}", _TEXT)
        return ["error", text, clean(traceback.format_exc(), 8000)]


def _probe(registry: Registry, host: Host, row: list[Any], common: Common) -> list[Any]:
    stage = registry.task(common.task)
    if not isinstance(stage, Stage) or stage.there is None:
        raise Invalid(f"{common.task!r} has no probe")
    ctx = Context(row, common, 0.0, host)
    found = stage.there.fn(ctx, **stage.there.parameters.select(row[4], common.run_args))
    if found is None or found is False:
        return ["absent"]
    value = None if found is True else found
    items: Any = None
    if common.stage_row is not None and common.stage_row[2]:  # what follows gets what it would have got
        emitter = Emitter(ctx, common.stage_row[2], registry, common.run_args, lambda *_: None)
        emitter.pass_on(value)
        items = emitter.rest()
    return ["there", None if value is None else encode(value, "what the probe returned"), items[1] if items else []]


def _findings(
    registry: Registry, host: Host, name: str, pipeline: str | None, subject: str | None
) -> Iterator[dict[str, Any]]:
    """A check's context says what it was asked about: None is everything."""
    common = Common(name, run_row=(pipeline, subject, 1, 1, {}))
    found = registry.checks[name](Context(common=common, host=host))
    for finding in islice(found if found is not None else (), _MOST):
        if not isinstance(finding, Finding):
            raise Invalid(f"a check yields findings, not {finding!r:.60}")
        encode(finding.to_json(), "a finding")
        yield finding.to_json()


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    asker = int(sys.argv[2])
    sys.argv = sys.argv[:1]
    die_with_parent()
    if os.getppid() != asker:
        return
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    unpacker, registry, host = Unpacker(), Registry(), None
    while data := link.recv(1 << 20):
        for message in unpacker.feed(data):
            if host is not None:
                link.sendall(pack(answer(registry, host, message)))
                continue
            sys.path[:] = message[1]["path"]
            try:
                registry = load_for_child(message[1]["sources"])
            except BaseException:
                link.sendall(pack(["broken", clean(traceback.format_exc(), 8000)]))
                return
            host = Host(message[1]["database"], registry)
            probes = [name for name, task in registry.tasks.items() if isinstance(task, Stage) and task.there]
            link.sendall(pack(["hello", probes, list(registry.checks)]))
    os._exit(0)


if __name__ == "__main__":
    main()
