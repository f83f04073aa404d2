"""Part runs: which stages of a pipeline are run, and which items of the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gristmill.binding import check_key
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.pipeline import Pipeline, Stage

Named = Stage[Any, Any] | str
Only = Named | Iterable[Named] | Mapping[Named, str | Iterable[str] | None]
PartRun = tuple[tuple[str, ...], dict[str, tuple[str, ...]]]


def part_run(pipeline: Pipeline, from_stage: Named | None, only: Only | None) -> PartRun | None:
    """The stages that are run, and globs for the keys of items, by stage. None: the whole pipeline."""
    wanted = _only(only)
    for name in ([_name(from_stage)] if from_stage is not None else []) + list(wanted or ()):
        if name not in pipeline.stages:
            raise Invalid(f"pipeline {pipeline.name!r} has no stage {name!r}{did_you_mean(name, pipeline.stages)}")
    stages = list(pipeline.stages) if from_stage is None else _from(pipeline, _name(from_stage))
    if wanted is not None:
        missing = [name for name in wanted if name not in stages]
        if missing:
            raise Invalid(f"stage {missing[0]!r} does not come after {_name(from_stage)!r}: nothing of it would be run")
        stages = [name for name in stages if name in wanted]
    if not stages:
        raise Invalid("only=… names no stage; leave it out to run all of them")
    keys = {name: globs for name, globs in (wanted or {}).items() if globs is not None}
    for name in keys:
        _check_first(pipeline, name, stages)
    return None if len(stages) == len(pipeline.stages) and not keys else (tuple(stages), keys)


def _from(pipeline: Pipeline, first: str) -> list[str]:
    """A stage, and all that depend on it."""
    found = {first}
    for stage in pipeline.ordered():
        if found.intersection(pipeline.upstreams(stage)):
            found.add(stage.stage_name)
    return [stage.stage_name for stage in pipeline.ordered() if stage.stage_name in found]


def _only(only: Only | None) -> dict[str, tuple[str, ...] | None] | None:
    if only is None:
        return None
    if isinstance(only, str | Stage):
        return {_name(only): None}
    if isinstance(only, Mapping):
        return {_name(stage): None if globs is None else _globs(globs) for stage, globs in only.items()}
    if not isinstance(only, Iterable):
        raise Invalid(f"only must be a stage, several of them, or a dict of them with keys, not {quoted(only)}")
    return {_name(stage): None for stage in only}


def _globs(globs: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(globs, Iterable):
        raise Invalid(f"keys are given as a pattern, or several, not as {globs!r}")
    return tuple(check_key(glob) for glob in ([globs] if isinstance(globs, str) else globs))


def _name(stage: Named | None) -> str:
    if not isinstance(stage, str | Stage):
        raise Invalid(f"{stage!r} is not a stage; give one, or its name")
    return stage.stage_name if isinstance(stage, Stage) else stage


def _check_first(pipeline: Pipeline, name: str, stages: list[str]) -> None:
    stage = pipeline.stages[name]
    if not stage.each:
        raise Invalid(f"stage {name!r} has one job and no items, so no keys can be chosen of it")
    running = [up for up in pipeline.upstreams(stage) if up in stages]
    if running:
        raise Invalid(f"stage {name!r} gets its items from {running[0]!r}, which is run too, so no keys can be chosen of it")
