"""Pipelines and tasks: what can be declared, in which order it runs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Pipeline, Retries, task
from gristmill.errors import Invalid
from gristmill.need import Need
from gristmill.registry import Registry, pieces_of


def work(ctx: Any) -> None: ...


def pipeline(**after: str | list[str]) -> Pipeline:
    """A pipeline whose stages are after those named; written in any order."""
    made = Pipeline("p")
    for name, upstreams in after.items():
        made.stage(after=upstreams, name=name)(work)
    return made


def order(made: Pipeline) -> list[str]:
    return [stage.stage_name for stage in made.ordered()]


def refused(message: str, build: Callable[[], Any]) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


# ---- order


def _without_context(folder: str) -> None: ...


def test_stages_come_after_what_they_depend_on_however_they_are_written() -> None:
    assert order(pipeline(c=["b"], b=["a"], a=[])) == ["a", "b", "c"]
    found = order(pipeline(d=["b", "c"], c=["a"], b=["a"], a=[]))
    assert (found[0], found[-1], set(found)) == ("a", "d", set("abcd"))


@given(st.data())
def test_any_graph_without_a_cycle_is_ordered(data: st.DataObject) -> None:
    names = [f"s{n}" for n in range(data.draw(st.integers(1, 12)))]
    after = {name: data.draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else [] for n, name in enumerate(names)}
    shuffled = data.draw(st.permutations(names))
    found = order(pipeline(**{name: after[name] for name in shuffled}))
    assert sorted(found) == sorted(names)
    assert all(found.index(up) < found.index(name) for name in names for up in after[name])


def test_a_stage_may_be_named_by_its_function_or_its_name() -> None:
    made = Pipeline("p")

    @made.stage
    def first(ctx: Any) -> None: ...

    @made.stage(after=first)
    def second(ctx: Any) -> None: ...

    @made.stage(after=[first, "second", second])
    def third(ctx: Any) -> None: ...

    assert made.upstreams(third) == ["first", "second"]
    assert third.name == "p.third"


def test_a_stage_called_directly_is_just_the_function() -> None:
    made = Pipeline("p")

    @made.stage(retries=3)
    def double(ctx: Any, n: int) -> int:
        return 2 * n

    assert double(None, 4) == 8
    assert double.fn.__name__ == "double"


# ---- refused


def test_a_cycle_is_refused_and_shown() -> None:
    refused("form a cycle: .*→", lambda: pipeline(a=["c"], b=["a"], c=["b"]).ordered())
    refused("form a cycle: a → a", lambda: pipeline(a=["a"]).ordered())
    refused("form a cycle", lambda: pipeline(start=[], a=["start", "b"], b=["a"], end=["b"]).ordered())


def test_a_cycle_through_a_gate_is_refused() -> None:
    made = pipeline(a=["b"], b=["a"])
    made.gate(after="a", name="g")(work)
    refused("form a cycle", made.ordered)


def test_an_unknown_stage_is_refused_with_a_hint() -> None:
    refused(
        "'b' of pipeline 'p' is after 'aa', which is not there; did you mean 'a'", lambda: pipeline(a=[], b=["aa"]).ordered()
    )


def test_a_stage_of_another_pipeline_is_refused() -> None:
    other = Pipeline("other").stage(name="x")(work)
    refused("belongs to pipeline 'other'", lambda: Pipeline("p").stage(after=other, name="y")(work))


def test_each_needs_something_before_it() -> None:
    refused("each=True but nothing before it", lambda: Pipeline("p").stage(each=True, name="x")(work))


def test_two_stages_of_one_name_are_refused() -> None:
    made = pipeline(a=[])
    refused("has a stage 'a' already", lambda: made.stage(name="a")(work))


def test_a_gate_says_what_it_waits_for() -> None:
    made: Any = Pipeline("p")
    refused("has to say what it waits for", lambda: made.gate(work))
    refused("has to say what it waits for", made.gate)
    refused("makes a decorator", lambda: made.gate(work, after="a"))


def test_a_gate_before_an_each_stage_is_refused() -> None:
    made = Pipeline("p")
    made.stage(name="find")(work)
    made.gate(after="find", name="enough")(work)
    made.stage(after="find", each=True, name="page")(work)
    refused("cannot wait for its gate 'enough'", made.ordered)


def test_a_pipeline_without_stages_is_refused() -> None:
    refused("has no stages", Pipeline("p").ordered)


@pytest.mark.parametrize("name", ["all", "none", "gristmill", "ALL", "Gristmill", "all.x"])
def test_reserved_names_are_refused(name: str) -> None:
    refused("is reserved", lambda: Pipeline(name))
    refused("is reserved", lambda: task(name=name)(work))
    refused("is reserved", lambda: task(queue=name, name="fine")(work))


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", ".a", "a.", "a..b", "-a", "ä", "a\n", "x" * 101, 5, None])
def test_names_that_cannot_be_typed_are_refused(name: Any) -> None:
    refused("name", lambda: Pipeline(name))


@pytest.mark.parametrize("name", ["a", "A9", "word-count", "word_count", "a.b.c", "9", "x" * 100, "allways"])
def test_other_names_are_fine(name: str) -> None:
    assert Pipeline(name).name == name


def test_a_stage_name_has_no_dot() -> None:
    refused(r"must not contain '\.'", lambda: Pipeline("p").stage(name="a.b")(work))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_that_makes_no_sense_is_refused(timeout: Any) -> None:
    refused("timeout must be", lambda: task(name="t", timeout=timeout)(work))


def test_a_task_that_streams_is_refused() -> None:
    def stream(ctx: Any):
        yield "a"

    refused("only a pipeline's stage can emit", lambda: task(stream))


def test_a_function_without_a_context_is_refused() -> None:
    refused("must take a context", lambda: task(name="t")(lambda: None))
    refused(r"'folder' is to be str; write def f\(ctx, folder: str, …\)", lambda: task(name="t")(_without_context))


def test_former_names_are_a_list() -> None:
    refused("wants a list of names", lambda: task(name="t", formerly="old")(work))


# ---- need


@pytest.mark.parametrize(
    ("need", "succeeded", "total", "met"),
    [
        (None, 0, 0, True),
        (None, 0, 1, False),
        (None, 1, 9, True),
        (0, 0, 9, True),
        (2, 1, 9, False),
        (2, 2, 2, True),
        (2, 2, 9, True),
        (1, 0, 0, False),
        (0.5, 0, 0, True),
        (0.5, 4, 9, False),
        (0.5, 5, 9, True),
        (1.0, 8, 9, False),
        (1.0, 9, 9, True),
        (0.0, 0, 9, True),
    ],
)
def test_need_is_met_by_a_count_a_share_or_one(need: float | None, succeeded: int, total: int, met: bool) -> None:
    assert Need.of(need, "stage 'x'").met(succeeded, total) is met


@given(st.integers(0, 100))
def test_a_share_in_percent_is_met_by_exactly_so_many_of_a_hundred(percent: int) -> None:
    need = Need.of(percent / 100, "stage 'x'")
    assert need.met(percent, 100)
    assert percent == 0 or not need.met(percent - 1, 100)


@pytest.mark.parametrize("need", [-1, -0.5, 1.5, True, "all", float("nan"), float("inf")])
def test_a_need_that_makes_no_sense_is_refused(need: Any) -> None:
    refused("need", lambda: Pipeline("p").stage(name="x", need=need)(work))


# ---- what runs of a pipeline take


def arguments() -> Pipeline:
    made = Pipeline("p")

    @made.stage
    def find(ctx: Any, folder: str, limit: int = 10): ...

    @made.stage(after=find, each=True)
    def page(ctx: Any, path: str, limit: int = 10): ...

    return made


def test_a_runs_arguments_are_checked_against_every_stage() -> None:
    made = arguments()
    assert made.check_args({"folder": "f", "limit": "5"}) == {"folder": "f", "limit": 5}
    refused("needs argument 'folder'", lambda: made.check_args({}))
    refused("takes no argument 'foldr'; did you mean 'folder'", lambda: made.check_args({"foldr": "f"}))
    refused("argument 'limit'", lambda: made.check_args({"folder": "f", "limit": "many"}))


def test_an_each_stage_may_get_what_it_needs_from_its_items() -> None:
    assert arguments().check_args({"folder": "f"}) == {"folder": "f"}


# ---- registries


def test_a_registry_finds_things_by_name_and_by_former_name() -> None:
    letter = task(name="mail", formerly=["post", "letters"])(work)
    registry = Registry(arguments(), letter)
    assert registry.task("mail") is registry.task("post") is letter
    assert registry.task("p.find").name == "p.find"
    assert registry.pipeline("p").name == "p"


def test_unknown_names_get_a_hint() -> None:
    registry = Registry(arguments(), task(name="mail")(work))
    refused("unknown pipeline 'q'", lambda: registry.pipeline("q"))
    refused("unknown task 'mial'; did you mean 'mail'", lambda: registry.task("mial"))


def test_two_things_of_one_name_are_refused() -> None:
    refused("two tasks are named 'mail'", lambda: Registry(task(name="mail")(work), task(name="mail")(work)))
    refused("two tasks are named 'mail'", lambda: Registry(task(name="mail")(work), task(name="x", formerly=["mail"])(work)))
    refused("two pipelines are named 'p'", lambda: Registry(arguments(), arguments()))


def test_the_same_thing_twice_is_fine_and_a_stage_brings_its_pipeline() -> None:
    made = arguments()
    assert set(Registry(made, made, made.stages["find"]).tasks) == {"p.find", "p.page"}


def test_something_else_is_refused() -> None:
    refused("made of pipelines and tasks", lambda: Registry(work))  # type: ignore[arg-type]


def test_a_broken_pipeline_is_refused_when_it_is_registered() -> None:
    refused("cycle", lambda: Registry(pipeline(a=["b"], b=["a"])))


def test_the_parts_of_a_module_are_its_pipelines_and_tasks() -> None:
    made, letter = arguments(), task(name="mail")(work)
    assert list(pieces_of({"a": made, "b": letter, "again": made, "c": 5})) == [made, letter]


def test_a_task_says_all_that_a_worker_must_know() -> None:
    letter = task(name="mail", timeout=5, retries=Retries(2), memory="64MB")(work)
    spec = letter.spec()
    assert (spec["timeout"], letter.demands[0].memory, spec["async"]) == (5.0, 64, False)
    assert Retries.from_json(spec["retries"]).times == 2
    assert letter.spec(timeout=9, retries=Retries(7))["retries"]["times"] == 7
