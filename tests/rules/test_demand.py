"""What jobs ask for and what workers have: sizes, labels, classes, the machine and the plan for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Context, Pipeline, task
from gristmill.demand import NOTHING, Demand, Offer, class_of, demands, least_lacking, pool_of, shown, size
from gristmill.errors import Invalid
from gristmill.machine import Machine, kernel_kills, machine
from gristmill.planning import plan
from gristmill.registry import Registry


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512MB", 512), ("512 mb", 512), ("2GB", 2048), ("2G", 2048), ("1.5GiB", 1536), ("1TB", 1 << 20), ("64MiB", 64)],
)
def test_sizes_are_written_as_people_do(text: str, mib: int) -> None:
    assert size(text, "here") == mib


@pytest.mark.parametrize("text", ["", "512", "MB", "-1GB", "0MB", "2KB", "1GBs", "9999999999TB", 512, None, 1.5, True])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(Invalid, match="here wants a size such as 512MB or 2GB"):
        size(text, "here")


@given(
    st.builds(Demand, st.lists(st.sampled_from(["gpu", "region=eu"])).map(tuple), st.integers(1, 9), st.integers(0, 9999))
)
def test_a_class_is_found_by_its_text(demand: Demand) -> None:
    assert Demand.from_json(demand.to_json()) == demand


@given(st.integers(0, 16_000), st.booleans())
def test_a_pool_is_a_small_integer_that_says_the_class_and_the_kind(number: int, is_async: bool) -> None:
    pool = pool_of(number, is_async)
    assert (class_of(pool), pool % 2, pool < 1 << 15) == (number, is_async, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"needs": "g p u"}, "a label is a word or WORD=VALUE"),
        ({"needs": ["gpu", 5]}, "a label is a word or WORD=VALUE"),
        ({"needs": "=eu"}, "a label is a word or WORD=VALUE"),
        ({"cpu": 0}, "cpu=… wants a whole number from 1"),
        ({"cpu": 1.5}, "cpu=… wants a whole number from 1"),
        ({"cpu": True}, "cpu=… wants a whole number from 1"),
        ({"memory": "much"}, "memory=… wants a size"),
        ({"memory": ["2GB", "1GB"]}, "from small to big"),
        ({"memory": ["1GB", "1GB"]}, "from small to big"),
        ({"memory": []}, "from small to big"),
    ],
)
def test_a_demand_that_makes_no_sense_is_refused_with_its_place(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match="task 'work'") as refused:
        task(name="work", **options)(lambda ctx: None)
    assert words in str(refused.value)


def test_an_async_task_takes_no_slots() -> None:
    async def work(ctx: Context) -> None: ...

    with pytest.raises(Invalid, match="shares a process with others: it cannot have cpu=2"):
        task(cpu=2)(work)


def test_what_is_missing_is_said_in_words() -> None:
    demand = Demand(("gpu", "region=eu"), 4, 4096)
    offers = [Offer((), 2, 1024), Offer(("gpu",), 4, 8192)]
    assert least_lacking(offers, demand) == ["label region=eu"]
    assert offers[0].lacks(demand) == ["label gpu", "label region=eu", "4 slots (of 2)", "4 GB of memory (of 1 GB)"]
    assert least_lacking([], demand) is None
    assert least_lacking(offers, NOTHING) == []
    assert demand.words() == ["label gpu", "label region=eu", "4 slots", "4 GB of memory"]
    assert (shown(512), shown(1536)) == ("512 MB", "1.5 GB")


def test_a_task_has_a_demand_for_each_size() -> None:
    assert demands("gpu", 2, ["1GB", "2GB"], "x") == (Demand(("gpu",), 2, 1024), Demand(("gpu",), 2, 2048))
    assert demands((), 1, None, "x") == (NOTHING,)


# ---- the machine


def files(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_container_has_what_its_group_may_use(tmp_path: Path) -> None:
    """Version 2, limits of a parent included; the innermost says nothing of processors."""
    group = {"proc__self__cgroup": "0::/a/b\n", "proc__vmstat": "nr_free 5\noom_kill 1\n"}
    group |= {"sys__fs__cgroup__a__b__memory_dot_max": str(300 << 20), "sys__fs__cgroup__a__b__cpu_dot_max": "max 100000"}
    group |= {"sys__fs__cgroup__a__cpu_dot_max": "50000 100000", "sys__fs__cgroup__memory_dot_max": "max"}
    group |= {"sys__fs__cgroup__a__b__memory_dot_events": "oom 3\noom_kill 2\n"}
    found = machine(files(tmp_path, **group))
    assert (found.cores, found.memory, found.reserve) == (1, 300, 150)
    assert found.limited.endswith("memory limited by the control group")
    assert kernel_kills(tmp_path) == 3


def test_groups_of_the_older_version_count_too(tmp_path: Path) -> None:
    group = {"proc__self__cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n"}
    group |= {"sys__fs__cgroup__memory__docker__x__memory_dot_limit_in_bytes": str(256 << 20)}
    group |= {"sys__fs__cgroup__cpu__docker__x__cpu_dot_cfs_quota_us": "150000"}
    group |= {"sys__fs__cgroup__cpu__docker__x__cpu_dot_cfs_period_us": "100000"}
    found = machine(files(tmp_path, **group))
    assert (found.cores, found.memory) == (1, 256)


def test_without_groups_it_is_the_hardware(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert found.limited == ""
    assert found.cores >= 1
    assert 0 < found.for_jobs < found.memory
    assert kernel_kills(tmp_path) is None


def test_a_plan_says_what_fits_and_what_does_not() -> None:
    flow = Pipeline("film")

    @flow.stage
    def split(ctx: Context) -> None: ...

    @flow.stage(after=split, cpu=2, memory=["2GB", "6GB"], queue="video", needs="gpu")
    def encode(ctx: Context) -> None: ...

    found = plan(Registry(flow), Machine(4, 5120, 512, ""))
    assert (found.slots, found.command, found.labels) == (4, ("work", "-n", "4", "--memory", "4608MB"), ("gpu",))
    rows = [(c.queue, c.tasks, c.needs, c.cpu, c.memory_mib, c.at_once) for c in found.classes]
    assert rows == [
        ("default", ("film.split",), (), 1, 0, 4),
        ("video", ("film.encode",), ("gpu",), 2, 2048, 2),
        ("video", ("film.encode",), ("gpu",), 2, 6144, 0),
    ]
    assert plan(Registry(flow), Machine(8, 1024, 512, "")).slots == 2, "memory for two small jobs"
