"""OpenTelemetry spans from asking for work to its end, across processes. Off unless GRISTMILL_TRACES=1: then nothing of
OpenTelemetry is imported.

Who asks for work makes a span, and what it was is kept with the job or run, as a W3C traceparent. The span of an attempt is
told by whoever wrote that attempt's end into the ledger, once it is committed: so a process that dies leaves no span
that says something else than the ledger. Its number follows from the job and the attempt, so that spans which the job's
function made meanwhile, in a process that may be dead by now, belong to it all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.errors import Invalid

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext

_NAME = "gristmill"
_SAMPLED = 1
_DELAY_MS = 1000  # for how long a span may wait in a process for company


def on() -> bool:
    return os.environ.get("GRISTMILL_TRACES", "").lower() in {"1", "true", "yes"}


class Parent(NamedTuple):
    """What a W3C traceparent says."""

    trace: int
    span: int
    sampled: bool

    @classmethod
    def of(cls, text: str) -> Parent:
        _, trace, span, flags = text.split("-")
        return cls(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))

    @property
    def text(self) -> str:
        return f"00-{self.trace:032x}-{self.span:016x}-{int(self.sampled):02x}"


def _number(length: int, *of: object) -> int:
    return int.from_bytes(sha256(repr(of).encode()).digest()[:length]) or 1


def _missing(error: ImportError) -> Invalid:
    return Invalid(f"GRISTMILL_TRACES is set, but {error.name} is not installed; run: pip install 'gristmill[otel]'")


# ---- asking for work


@dataclass
class Asked:
    """The span of who asks. `traceparent`: None, if that is off or not sampled."""

    traceparent: str | None = None
    span: Any = None

    def tell(self, **attributes: int | str) -> None:
        for name, value in attributes.items() if self.span is not None else ():
            self.span.set_attribute(f"gristmill.{name}", value)


_NOBODY = Asked()


@contextlib.contextmanager
def asking(what: str) -> Iterator[Asked]:
    """Around the transaction that adds a job or a run; a part of the caller's trace, if it has one."""
    if not on():
        yield _NOBODY
        return
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise _missing(error) from None
    _provider()
    with trace.get_tracer(_NAME).start_as_current_span(what, kind=trace.SpanKind.PRODUCER) as span:
        context = span.get_span_context()
        parent = Parent(context.trace_id, context.span_id, bool(context.trace_flags & _SAMPLED))
        yield Asked(parent.text if parent.sampled else None, span)


@cache
def _provider() -> TracerProvider | None:
    """The application's own, if it has set one up; else one that sends to where OTEL_EXPORTER_OTLP_ENDPOINT says."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return None
        provider = TracerProvider(resource=_resource())
        provider.add_span_processor(_sending())
    except ImportError as error:
        raise _missing(error) from None
    trace.set_tracer_provider(provider)
    return provider


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    own = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": _NAME}
    return Resource.create(own)


def _sending() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=_DELAY_MS)


def traced(jobs: Iterable[int], attempts: Iterable[int]) -> list[list[str | None]]:
    """One more column, the traceparents of these attempts; no column if traces are off."""
    telling = tracer()
    return [] if telling is None else [list(map(telling.told, jobs, attempts))]


# ---- in a child


def enter(traceparent: str) -> None:
    """From here on, spans that this thread or task makes are parts of this attempt's."""
    from opentelemetry import context, trace

    _provider()
    parent = Parent.of(traceparent)
    where = trace.SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=trace.TraceFlags(parent.sampled))
    context.attach(trace.set_span_in_context(trace.NonRecordingSpan(where), context.Context()))


def leave() -> None:
    """Sends what is left, before a process ends itself."""
    if on() and (provider := _provider()) is not None:
        provider.force_flush(2000)


# ---- in a worker


class Attempt(NamedTuple):
    """An attempt, as its span tells it."""

    job: int
    attempt: int
    about: Mapping[str, Any]  # run, stage, task, queue, pipeline, subject, key; what is None is left out
    traceparent: str | None  # of who asked for it
    since: int = 0  # nanoseconds since 1970

    def parent(self) -> Parent:
        """Of who asked; what nobody did with traces on is a trace of its own, the same for all jobs of a run."""
        if self.traceparent is not None:
            return Parent.of(self.traceparent)
        run = self.about.get("run")
        return Parent(_number(16, "run", run) if run else _number(16, "job", self.job), 0, True)

    def own(self) -> Parent:
        parent = self.parent()
        return parent._replace(span=_number(8, parent.trace, self.job, self.attempt))


class Tracer:
    """Tells the spans of attempts whose end is in the ledger."""

    def __init__(self) -> None:
        try:
            from opentelemetry.sdk.trace import ReadableSpan  # noqa: F401  # now, not when the first job has ended
            from opentelemetry.trace import SpanContext  # noqa: F401

            self._processor = _sending()
        except ImportError as error:
            raise _missing(error) from None
        self._resource = _resource()
        self._held: dict[int, Attempt] = {}
        atexit.register(self._processor.shutdown)

    def took(self, attempts: Mapping[int, Attempt]) -> None:
        self._held.update(attempts)

    def told(self, job: int, attempt: int) -> str | None:
        """What the child that runs it is told: its traceparent."""
        held = self._held.get(job)
        return held.own().text if held is not None and held.attempt == attempt else None

    def forget(self, job: int) -> None:
        """Its end was refused, or it was never begun: there is nothing to tell."""
        self._held.pop(job, None)

    def ended(self, job: int, attempt: int, outcome: str, ran: int, error: str | None = None) -> None:
        """`ran`: microseconds."""
        held = self._held.pop(job, None)
        if held is not None and held.attempt == attempt:
            now = time.time_ns()
            self.tell(held, outcome, now - ran * 1000, now, error)

    def ended_by_itself(self, job: int) -> None:
        """In its application's transaction; it is told when its worker hears of it."""
        held = self._held.get(job)
        if held is not None:
            now = time.time_ns()
            self.ended(job, held.attempt, "completed", (now - held.since) // 1000)

    def tell(self, what: Attempt, outcome: str, start: int, end: int, error: str | None = None) -> None:
        """`start`, `end`: nanoseconds since 1970."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.status import Status, StatusCode

        own, parent = what.own(), what.parent()
        if not own.sampled:
            return
        about = {**what.about, "job": what.job, "attempt": what.attempt, "outcome": outcome}
        self._processor.on_end(
            ReadableSpan(
                name=f"run {what.about['task']}",
                context=_context(own),
                parent=_context(parent) if parent.span else None,
                resource=self._resource,
                attributes={f"gristmill.{name}": value for name, value in about.items() if value is not None},
                kind=SpanKind.CONSUMER,
                instrumentation_scope=InstrumentationScope(_NAME),
                status=Status(StatusCode.ERROR, error or outcome) if outcome in FAILURES else Status(StatusCode.OK),
                start_time=start,
                end_time=end,
            )
        )


FAILURES = frozenset({"permanent", "error", "timeout", "crash", "memory", "lost"})


def _context(of: Parent) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(of.trace, of.span, is_remote=True, trace_flags=TraceFlags(of.sampled))


@cache
def tracer() -> Tracer | None:
    """Of this process, which is a worker; None: off."""
    return Tracer() if on() else None
