"""What commands on many jobs or runs share: which are meant, whether that is wanted, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.cli import show
from gristmill.cli.app import as_json, dry_run_option
from gristmill.cli.values import JOB_STATE, RUN_STATE, duration, number, since

if TYPE_CHECKING:
    from gristmill.model import Bulk

F = TypeVar("F", bound=Callable[..., Any])

REASON = click.option("--reason", metavar="TEXT", help="Why, for the record.")
YES = click.option("--yes", is_flag=True, help="Do it without being asked.")
_OLDER = click.option("--older", type=duration, metavar="AGE", help="Created 30m, 2h, 1d ago, or earlier.")
SINCE = click.option("--since", type=since, metavar="AGE", help="Only those created within 30m, 2h, 1d.")
_SUBJECT = click.option("--subject", metavar="NAME", help="Of this subject, or of all that are named like 'mill*'.")

_JOB_FILTERS = (
    click.option(
        "--state", type=JOB_STATE, multiple=True, metavar="STATE", help="queued, failed, … Repeat it for any of them."
    ),
    click.option("--queue", metavar="NAME"),
    click.option("--stage", metavar="NAME"),
    click.option("--task", metavar="NAME"),
    _SUBJECT,
    click.option("--run", type=number(), metavar="RUN"),
    click.option("--error", metavar="FINGERPRINT", help="Failed by this error."),
    click.option("--key", metavar="GLOB", help="With a key like this: 'a*'."),
    click.option("--part-of", type=number(), metavar="JOB", help="Parts of this job."),
    click.option("--archived", is_flag=True, help="Only archived ones, which are left out otherwise."),
)
_RUN_FILTERS = (
    click.option("--state", type=RUN_STATE, multiple=True, metavar="STATE", help="failed, … Repeat it for any of them."),
    click.option("--pipeline", metavar="NAME"),
    _SUBJECT,
    click.option("--stage", metavar="NAME", help="At this stage, or some of it failed."),
    click.option("--error", metavar="FINGERPRINT", help="Some of it is failed by this error."),
)
_WORKER = click.option("--worker", type=number(), metavar="WORKER", help="Held by this worker.")
_WHEN_AND_HOW = (SINCE, _OLDER, dry_run_option, YES, as_json)


def _with(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


JOBS = click.argument("jobs", metavar="[JOB]...", nargs=-1, type=number())
RUNS = click.argument("runs", metavar="[RUN]...", nargs=-1, type=number())
job_options, run_options = _with((*_JOB_FILTERS, _WORKER)), _with(_RUN_FILTERS)  # for lists
job_filters = _with((JOBS, *_JOB_FILTERS, *_WHEN_AND_HOW))
run_filters = _with((RUNS, *_RUN_FILTERS, *_WHEN_AND_HOW))
runs_at_all = _with((RUNS, *_RUN_FILTERS[:3], SINCE))  # by what is no condition on their items


def which(what: str, ids: Sequence[int], filters: Mapping[str, Any]) -> dict[str, Any]:
    """The jobs or runs that are meant; none named would be all, which nobody means."""
    given = {name: value for name, value in filters.items() if value is not None and value is not False and value != ()}
    if not ids and not given:
        raise click.UsageError(
            f"say which {what}s: their numbers, or at least one of --{', --'.join(filters).replace('_', '-')}"
        )
    return {**given, "ids": ids} if ids else given


def perform(
    act: Callable[..., Bulk], chosen: Mapping[str, Any], *, dry_run: bool, yes: bool, json_wanted: bool, ask: bool = False
) -> bool:
    """Says how many it is about, and does it if that is wanted. True: something was done. `ask`: also when they were named
    one by one."""
    from gristmill.errors import Refused

    would = act(**chosen, dry_run=True)
    if not would.total and would.refusal:
        raise Refused(would.refusal)
    if would.total and not dry_run and (ask or "ids" not in chosen):
        confirm(in_words(would, " would be"), yes)
    done = would if dry_run or not would.total else act(**chosen)
    if json_wanted:
        show.document(done)
    elif not done.total:
        show.note("nothing matches; nothing was done")
    else:
        _say(done, dry_run)
    return bool(done.total) and not dry_run


def _say(done: Bulk, dry_run: bool) -> None:
    show.line(in_words(done, " would be" if dry_run else ""))
    if done.left:
        show.note(f"{done.left:,} of those given stay as they are: {done.refusal}")
    if done.open:
        show.note("its active run is still stopping; a worker deletes it once it has ended")


_PHRASES = {  # what a count is about, and what became of it
    "told to stop": ("job", "told to stop"),
    "stopped": ("run", "stopped"),
    "retried": ("run", "retried"),
    "runs": ("run", "deleted"),
    "jobs": ("item", "deleted with that, and any parts"),  # parts are in no counter
}


def in_words(bulk: Bulk, would: str = "") -> str:
    """`1,200 jobs are cancelled, 4 jobs are told to stop`."""
    parts = []
    for word, count in bulk.counts.items():
        noun, phrase = _PHRASES.get(word, ("job", word))
        parts.append(f"{show.plural(count, noun)}{would or (' is' if count == 1 else ' are')} {phrase}")
    return ", ".join(parts)


def confirm(what: str, yes: bool) -> None:
    """Asks where somebody can answer; elsewhere --yes has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what}; nobody is there to be asked: add --yes, or see it with --dry-run")
    if not click.confirm(f"{show.clean(what)}; go on?", err=True):
        show.note("nothing was done")
        raise click.exceptions.Exit(1)
