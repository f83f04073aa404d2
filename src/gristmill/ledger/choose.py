"""Which jobs or runs are meant: by number, or by what they have in common. Kept as JSON with what is done to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.ledger.sql import Sql, glob, like
from gristmill.priority import Priority
from gristmill.states import StageState, State

Where = dict[str, dict[str, Any]]  # clauses of fixed text, each with the values that it binds

JOBS = (
    " FROM gm_job j JOIN gm_task t ON t.id = j.task_id JOIN gm_queue q ON q.id = j.queue_id"
    " LEFT JOIN gm_stage g ON g.id = j.stage_id LEFT JOIN gm_run r ON r.id = j.run_id"
    " LEFT JOIN gm_subject s ON s.id = r.subject_id"
)
RUNS = " FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id"
THERE = (  # not of a run that is being removed, as an item or as a part of one
    "((j.stage_id IS NULL OR g.id IS NOT NULL) AND (j.run_id IS NULL OR r.id IS NOT NULL))"
)
REMOVING = Sql("SELECT 1 FROM gm_removal LIMIT 1")  # without a row, every job is there

ARCHIVED = "j.archived_at IS NOT NULL"
# Of a job on its own it is its unique key, which is kept with the task's name before it.
# (First whether it has one: most have none, and to look up a task for nothing would cost more than all the rest.)
OWN_KEY = (
    "j.stage_id IS NULL AND j.unique_name IS NOT NULL"
    " AND substr(j.unique_name, (SELECT length(name) FROM gm_task WHERE id = j.task_id) + 2) {glob} :key"
)
KEY = f"(j.key {{glob}} :key OR ({OWN_KEY}))"
# A name that is there means itself: addresses hold question marks. Patterns are for what is not.
_LIKE = (
    "(s.name = :subject OR (s.name {like} :like ESCAPE '\\'"
    " AND NOT EXISTS (SELECT 1 FROM gm_subject o WHERE o.name = :subject)))"
)
_AT_STAGE = (
    "EXISTS (SELECT 1 FROM gm_stage g WHERE g.run_id = r.id AND g.name = :stage"
    f" AND ((g.state IN ({StageState.OPEN:d}, {StageState.SEALED:d}) AND g.total > 0) OR g.failed > 0"
    f" OR g.outcome = {State.FAILED:d}))"
)
_WITH_ERROR = "r.id IN (SELECT j.run_id FROM gm_job j WHERE j.fingerprint = :error)"


@dataclass(frozen=True)
class Choice:
    """All that is given must hold. `subject`: its name, or a pattern of it with * and ?, in whatever case; `stage`: of
    runs, where they are at it or some of it failed; `states`: any of them; `before`, `since`: created then or earlier, or
    later, in microseconds; `key`: a pattern with * and ?; `worker`: who holds them; `archived`: None for both kinds."""

    ids: tuple[int, ...] | None = None
    run: int | None = None
    pipeline: str | None = None
    subject: str | None = None
    stage: str | None = None
    queue: str | None = None
    priority: int | None = None
    task: str | None = None
    states: tuple[int, ...] | None = None
    error: str | None = None
    before: int | None = None
    since: int | None = None
    key: str | None = None
    part_of: int | None = None
    archived: bool | None = None
    worker: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Choice:
        lists: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**{**given, **lists})

    def words(self) -> str:
        """`queue ocr, state queued`: for the record, and for people."""
        said = {name.replace("_", " "): value for name, value in self.to_json().items()}
        if "ids" in said:
            said["ids"] = ", ".join(map(str, said["ids"][:10])) + (", …" if len(said["ids"]) > 10 else "")
        if "priority" in said:
            said["priority"] = Priority(said["priority"]).word
        if "states" in said:
            said["state"] = " or ".join(State(state).word for state in said.pop("states"))
        for moment in ("before", "since"):  # the record has them in its detail
            said.pop(moment, None)
        archived = said.pop("archived", None)
        return ", ".join([f"{name} {value}" for name, value in said.items()] + (["archived"] if archived else []))


def jobs_where(choice: Choice, dialect: str) -> Where:
    clauses = (
        ("j.id {in ids}", "ids", choice.ids),
        ("j.run_id = :run", "run", choice.run),
        ("r.pipeline = :pipeline", "pipeline", choice.pipeline),
        ("g.name = :stage", "stage", choice.stage),
        ("q.name = :queue", "queue", choice.queue),
        ("j.priority = :priority", "priority", choice.priority),
        ("t.name = :task", "task", choice.task),
        ("j.state {in states}", "states", choice.states),
        ("j.fingerprint = :error", "error", choice.error),
        ("j.created_at <= :before", "before", choice.before),
        ("j.created_at >= :since", "since", choice.since),
        ("j.stage_id IS NULL AND j.parent_id = :part_of", "part_of", choice.part_of),
        ("j.worker_id = :worker", "worker", choice.worker),
    )
    where: Where = {THERE: {}, **given(*clauses), **named(choice.subject)}
    if choice.key is not None:
        where[KEY] = {"key": glob(choice.key, dialect)}
    return where | archived_where(choice)


def archived_where(choice: Choice) -> Where:
    return {} if choice.archived is None else {ARCHIVED if choice.archived else f"NOT {ARCHIVED}": {}}


def runs_where(choice: Choice) -> Where:
    clauses = (
        ("r.id {in ids}", "ids", choice.ids),
        ("r.pipeline = :pipeline", "pipeline", choice.pipeline),
        ("r.state {in states}", "states", choice.states),
        ("r.created_at <= :before", "before", choice.before),
        ("r.created_at >= :since", "since", choice.since),
        (_AT_STAGE, "stage", choice.stage),
        (_WITH_ERROR, "error", choice.error),
    )
    return given(*clauses) | named(choice.subject)


def named(subject: str | None) -> Where:
    """Of subjects `s`: those of this name, or like it."""
    if subject is None:
        return {}
    if "*" not in subject and "?" not in subject:
        return {"s.name = :subject": {"subject": subject}}
    return {_LIKE: {"subject": subject, "like": like(subject)}}


def given(*clauses: tuple[str, str, Any]) -> Where:
    """Those that have a value; each binds it under a name."""
    return {clause: {name: value} for clause, name, value in clauses if value is not None}
