"""Writes docs/lifecycle.md from the state machine: `python -m gristmill.lifecycle > docs/lifecycle.md`.

What a state means is the comment beside it in states.py, read from its source, so that there is one text only.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterable, Iterator
from enum import IntEnum

from gristmill import states
from gristmill.states import JOB_TRANSITIONS, RUN_TRANSITIONS, SUCCESS, StageState, State, Transition, WorkerState


def meanings(kind: type[IntEnum]) -> dict[str, str]:
    """The `#:` comment of each member of `kind`, by the member's name."""
    source = inspect.getsource(states)
    comments = {
        token.start[0]: token.string.removeprefix("#:").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.string.startswith("#:")
    }
    [body] = [n.body for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == kind.__name__]
    lines = {n.targets[0].id: n.lineno for n in body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
    return {name: comments.get(line, "") for name, line in lines.items()}


def document() -> str:
    """docs/lifecycle.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Lifecycle"
    yield ""
    yield "Every state, who moves it on, and every legal change. Generated from `gristmill.states`; do not edit:"
    yield "`python -m gristmill.lifecycle > docs/lifecycle.md`. Each change is one verb of the ledger, in one transaction,"
    yield "and names the states that it starts from; nothing else changes a state."
    yield ""
    yield "## Jobs"
    yield ""
    yield from _states(State)
    yield ""
    yield from _diagram(JOB_TRANSITIONS)
    yield ""
    yield from _transitions(JOB_TRANSITIONS)
    yield ""
    yield "A retry is the change from `in_progress` to `queued`; until its delay is over the job is queued but not ready."
    yield "Every claim raises the job's attempt, which is never lowered: a write under an old attempt changes nothing."
    yield ""
    yield "A job that has handed over parts is queued without a place in the line, and so in nobody's hands: no slot, no"
    yield "lease, no time limit. Its row counts the parts that have not ended; the transaction that ends the last of them"
    yield "puts the job into the line. A job never ends before its parts: when its end is decided earlier (it failed, it was"
    yield "cancelled), it is queued in the same way until its parts are stopped, and the end of the last ends it too."
    yield ""
    yield "## Runs"
    yield ""
    yield "The same words, and `waiting`; the table below says who moves a run on."
    yield ""
    yield from _diagram(RUN_TRANSITIONS)
    yield ""
    yield from _transitions(RUN_TRANSITIONS)
    yield ""
    yield "## Stages"
    yield ""
    yield from _states(StageState)
    yield ""
    yield "A stage only moves forward in this order; a plain stage goes from `waiting` to `sealed`, since its one job is"
    yield "there from the start. The transaction that ends the last item closes the stage and starts what follows."
    yield "A retry of the run opens stages again: those of the chosen items, and those that depend on them wait again."
    yield "A closed stage has an outcome: `completed`, `completed_with_errors`, `failed`, `skipped` or `cancelled`."
    yield ""
    yield "## Workers"
    yield ""
    yield f"{_words(WorkerState)}. {inspect.getdoc(WorkerState)}"


def _states(kind: type[IntEnum]) -> Iterator[str]:
    said = meanings(kind)
    yield "| state | terminal | meaning |" if kind is State else "| state | meaning |"
    yield "|---|---|---|" if kind is State else "|---|---|"
    for member in kind:
        end = f" {_terminal(member)} |" if isinstance(member, State) else ""
        yield f"| `{member.name.lower()}` |{end} {said[member.name]} |"


def _terminal(state: State) -> str:
    return "no" if not state.terminal else "yes, success" if state in SUCCESS else "yes"


def _transitions(transitions: Iterable[Transition]) -> Iterator[str]:
    yield "| from | to | verb | who |"
    yield "|---|---|---|---|"
    for t in transitions:
        source = "(new)" if t.source is None else f"`{t.source.word}`"
        yield f"| {source} | `{t.target.word}` | {t.verb} | {t.who} |"


def _diagram(transitions: Iterable[Transition]) -> Iterator[str]:
    """One arrow per pair of states, with the verbs that go that way."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for t in transitions:
        known = verbs.setdefault(("[*]" if t.source is None else t.source.word, t.target.word), [])
        if t.verb not in known:
            known.append(t.verb)
    yield "```mermaid"
    yield "stateDiagram-v2"
    for (source, target), names in verbs.items():
        yield f"    {source} --> {target}: {', '.join(names)}"
    yield "```"


def _words(kind: type[IntEnum]) -> str:
    return ", ".join(f"`{member.name.lower()}`" for member in kind)


if __name__ == "__main__":
    print(document(), end="")
