"""Requests: what can be said in a query or a body. What is not known is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from annotated_types import GroupedMetadata, MaxLen, MinLen
from fastapi import Depends, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gristmill.api import problems
from gristmill.model import Bulk
from gristmill.settings import KEY_LIMIT, LABEL_LIMIT, NAME_LIMIT

_MOST_ID = 2**53 - 1  # what every reader of JSON can hold
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _plain(text: str) -> str:
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ValueError("it holds a character that no database can")
    return text


def _written(moment: object) -> object:
    if not isinstance(moment, str) or not _MOMENT.match(moment):
        raise ValueError("write it as 2027-01-31T14:30:00Z")
    return moment


def _whole(number: object) -> object:
    """JSON knows no integers: 3.0 is 3 too."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


WHOLE = BeforeValidator(_whole)


class Text(GroupedMetadata):
    """Text that both databases can hold: `Annotated[str, Text(100)]`."""

    def __init__(self, longest: int, shortest: int = 1, pattern: str = r"^[^\x00]*$") -> None:
        self.longest, self.shortest, self.pattern = longest, shortest, pattern

    def __iter__(self) -> Iterator[object]:
        schema = {"type": "string", "minLength": self.shortest, "maxLength": self.longest, "pattern": self.pattern}
        yield from (MinLen(self.shortest), MaxLen(self.longest), AfterValidator(_plain), WithJsonSchema(schema))


Name = Annotated[str, Text(NAME_LIMIT)]
TaskName = Annotated[str, Text(3 * NAME_LIMIT)]
Key = Annotated[str, Text(KEY_LIMIT)]
Label = Annotated[str, Text(LABEL_LIMIT)]
WantedLabel = Annotated[
    str, Text(2 * LABEL_LIMIT + 1, pattern=rf"^[^=\x00]{{1,{LABEL_LIMIT}}}(=[^\x00]{{1,{LABEL_LIMIT}}})?$")
]
Reason = Annotated[str, Text(2000)]
Args = dict[Annotated[str, Text(KEY_LIMIT, 0)], Any]
Number = Annotated[int, Field(ge=1, le=_MOST_ID), WHOLE]
Seconds = Annotated[float, Field(ge=0, lt=1e9)]
Cursor = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$", description="`next` of the page before")]
Moment = Annotated[
    AwareDatetime,
    Field(strict=False, description="with a time zone: `2027-01-31T14:30:00Z`"),
    BeforeValidator(_written),
]
JobState = Literal["queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled", "skipped"]
RunState = Literal["waiting", "queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled"]
Priority = Literal["high", "normal", "low"]
Id = Annotated[int, Path(ge=1, le=_MOST_ID, examples=[1])]


async def refuse_unknown(request: Request) -> None:
    """What a query says that its route does not take, whether that takes a query or none."""
    unknown = request.query_params.keys() - set(problems.names(request, "query")) if request.query_params else ()
    if unknown:
        wrong = [{"type": "extra_forbidden", "loc": ("query", name), "msg": ""} for name in sorted(unknown)]
        raise RequestValidationError(wrong)


KNOWN = Depends(refuse_unknown)


class Asked(BaseModel):
    """What is asked for in a body, and nothing else; a number is not a yes or no."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AskedInQuery(BaseModel):
    """What is asked for in a query, where all is text."""

    model_config = ConfigDict(extra="forbid")


class Lately(AskedInQuery):
    """The newest of what happened, without pages."""

    limit: Annotated[int, Field(ge=1, le=1000), WHOLE] = 50


class Listing(AskedInQuery):
    """A page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    cursor: Cursor | None = None

    @property
    def after(self) -> int | None:
        return None if self.cursor is None else int(self.cursor)


# ---- which jobs or runs

NAMED = "a name, or a pattern of names with * and ?, in whatever case"


class RunFilter(Asked):
    """Which runs: all for which everything holds that is given; of several states any will do."""

    pipeline: Name | None = None
    subject: Key | None = Field(None, description=NAMED)
    state: Annotated[list[RunState], Field(min_length=1)] | None = None
    stage: Name | None = Field(None, description="they are at this stage, or some of it failed")
    error: Name | None = Field(None, description="some of it is failed by this error: its fingerprint")


class JobFilter(Asked):
    """Which jobs: all for which everything holds that is given; of several states any will do."""

    run: Number | None = None
    pipeline: Name | None = None
    stage: Name | None = None
    subject: Key | None = Field(None, description=NAMED)
    state: Annotated[list[JobState], Field(min_length=1)] | None = None
    queue: Name | None = None
    task: TaskName | None = None
    part_of: Number | None = None
    error: Name | None = Field(None, description="failed by this error: its fingerprint")
    key: Key | None = Field(None, description="a pattern with * and ?; of a job on its own, its unique key")
    worker: Number | None = Field(None, description="held by this worker: its number")


class _Chosen(Asked):
    """By number, or by what they have in common; at least one of these."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"minProperties": 1})
    ids: Annotated[list[Number], Field(min_length=1, max_length=10_000)] | None = None
    older: Seconds | None = Field(None, description="created so many seconds ago, or earlier")
    since: Moment | None = Field(None, description="created then or later")


class ChosenRuns(_Chosen, RunFilter):
    """Which runs."""


class ChosenJobs(_Chosen, JobFilter):
    """Which jobs."""

    archived: bool = Field(False, description="only archived ones, which are left out otherwise")


# ---- what is done to many


class Confirmed(Asked):
    """Something that is done to many. Without `confirm` nothing is done, and the answer says how many it would be."""

    confirm: Annotated[int, Field(ge=0, le=_MOST_ID), WHOLE] | None = Field(
        None, description="do it, if it is still about so many; without it, only say how many"
    )


class ManyRuns(Confirmed):
    which: ChosenRuns


class ManyJobs(Confirmed):
    which: ChosenJobs


class Done(BaseModel):
    """What was done to many, or (without `confirm`) would be."""

    dry_run: bool
    count: int
    counts: dict[str, int] = Field(description="how many became what")
    left: int = Field(description="of those given by number, how many stay as they are")
    refusal: str | None = Field(description="why they do")
    record: int | None = Field(description="the number of its entry in the audit")
    open: bool = Field(description="some of it has to wait until a run has ended")


def given(asked: BaseModel) -> dict[str, Any]:
    """What was said, without what was not."""
    return asked.model_dump(exclude_unset=True, exclude_none=True, exclude={"confirm", "which", "limit", "cursor"})


def perform(act: Callable[..., Bulk], confirm: int | None, **which: Any) -> dict[str, Any]:
    """Does it, or says how many it would be about."""
    return _done(act(**which, confirm=confirm, dry_run=confirm is None), confirm is None)


def _done(bulk: Bulk, dry_run: bool) -> dict[str, Any]:
    return {"dry_run": dry_run, "count": bulk.total, **vars(bulk)}
