"""Classes of demands in the ledger: each is there once, jobs carry its number, an OOM moves them to a bigger one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gristmill import Context, Retries, task
from gristmill.demand import NOTHING, Demand, class_of, options, pool_of
from gristmill.ledger import names, parts
from gristmill.ledger.claim import Claimed, Lane, Want, claim, find_head
from gristmill.ledger.finish import Verdict
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player

GPU = Demand(("gpu",))


@task(needs="gpu")
def painted(ctx: Context) -> None: ...


@task(memory=["1GB", "2GB"], retries=Retries(5, delays=[60]))
def growing(ctx: Context) -> None: ...


@task(memory="1GB", retries=Retries(0, crashes=1, delays=[60]))
def fixed(ctx: Context) -> None: ...


def pools_of(play: Play, demand: Demand) -> int:
    with play.ledger.reading() as tx:
        found = {NOTHING: 0} | {known: number for number, known in names.classes(tx).items()}
    return pool_of(found[demand])


def take(play: Play, player: Player, demand: Demand) -> Claimed:
    lane = Lane(play.queue_ids()["default"], pools_of(play, demand))
    (job,) = play.ledger.do(claim, player.id, [Want(0, 1, (lane,))], {0: 1}).jobs
    return job


def test_a_class_is_there_once_whoever_asks_for_it(opened: Open) -> None:
    play = opened()
    wanted = [Demand((f"n={n}",)) for n in range(20)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: play.ledger.do(names.add_classes, wanted), range(8)))
    assert all(one == found[0] for one in found)
    assert sorted(found[0].values()) == list(range(21))
    with play.ledger.reading() as tx:
        assert names.classes(tx) == {number: demand for demand, number in found[0].items() if number}
        assert set(names.classes(tx, known=18)) == {19, 20}


def test_jobs_without_demands_are_of_no_class(opened: Open) -> None:
    play = opened(painted)
    play.mill.enqueue("solo")
    assert play.player().take_one().kind.pool == 0
    play.mill.enqueue(painted)
    assert play.player().take() == [], "nobody here asked for what needs a GPU"
    assert class_of(take(play, play.player(), GPU).kind.pool) == 1


def test_the_head_of_a_line_is_its_first_job(opened: Open) -> None:
    play = opened(painted)
    first = play.mill.enqueue(painted).id
    queue = play.queue_ids()["default"]
    play.mill.enqueue(painted)
    pool = pools_of(play, GPU)
    with play.ledger.reading() as tx:
        head = find_head(tx, Lane(queue, pool))
        assert find_head(tx, Lane(queue, 0)) is None
    assert take(play, play.player(), GPU).id == first
    with play.ledger.reading() as tx:
        following = find_head(tx, Lane(queue, pool))
    assert head is not None
    assert following is not None
    assert head < following


def oom(player: Player, job: Claimed, how: str) -> None:
    if how == "killed":
        assert player.end(job, Verdict.MEMORY, reason="it used 9 GB") == []
    else:
        types = ("MemoryError", "Exception", "BaseException")
        assert player.end(job, Verdict.ERROR, reason="out", error_class="MemoryError", error_types=types) == []


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_out_of_memory_moves_a_job_to_the_next_class_and_fails_it_in_the_last(opened: Open, how: str) -> None:
    play = opened(growing)
    player = play.player()
    number = play.mill.enqueue(growing).id
    oom(player, take(play, player, Demand((), 1, 1024)), how)
    job = play.mill.job(number)
    assert (job.state, job.errors, job.crashes, job.run_at) == ("queued", 0, 0, None), "at once, and it costs nothing"
    assert str(job.error).endswith("; again in a bigger class")
    oom(player, take(play, player, Demand((), 1, 2048)), how)
    job = play.mill.job(number)
    assert (job.state, job.attempt) == ("failed", 2)
    assert str(job.error).endswith("; there is no class bigger than 2 GB")
    play.mill.retry_job(number)
    assert take(play, player, Demand((), 1, 2048)).id == number, "a person's retry begins with what it had last"


def test_other_errors_do_not_move_it(opened: Open) -> None:
    play = opened(growing)
    player = play.player()
    number = play.mill.enqueue(growing).id
    player.end(take(play, player, Demand((), 1, 1024)), Verdict.ERROR, reason="no", error_types=("ValueError",))
    assert (play.mill.job(number).errors, play.mill.job(number).run_at is None) == (1, False)


def test_with_one_size_it_has_the_budget_of_crashes(opened: Open) -> None:
    play = opened(fixed)
    player = play.player()
    number = play.mill.enqueue(fixed).id
    oom(player, take(play, player, Demand((), 1, 1024)), "killed")
    assert (play.mill.job(number).state, play.mill.job(number).crashes) == ("queued", 1)


def test_a_cancelled_job_that_runs_out_of_memory_ends(opened: Open) -> None:
    play = opened(growing)
    player = play.player()
    number = play.mill.enqueue(growing).id
    job = take(play, player, Demand((), 1, 1024))
    play.mill.cancel_job(number)
    oom(player, job, "killed")
    assert play.mill.job(number).state == "cancelled"


# ---- what is said


def test_who_could_run_a_job_is_said_by_why_doctor_and_the_list(opened: Open) -> None:
    play = opened(painted, growing)
    number = play.mill.enqueue(painted, needs={"region=eu"}).id
    play.player(labels=("region=eu",))
    found = play.mill.why(job=number)
    words = "has no running worker with all of label gpu, label region=eu; the nearest lacks label gpu"
    assert found.sentence == f"job {number} (painted) waits: queue 'default' {words}"
    assert found.command == ("work", "-q", "default", "--label", "gpu", "--label", "region=eu")
    (sick,) = [finding for finding in play.mill.doctor() if not finding.ok]
    assert sick.sentence == (
        "default has jobs, and no worker with all of label gpu, label region=eu; the nearest lacks label gpu"
    )
    assert sick.command == ("gristmill", "work", "-q", "default", "--label", "gpu", "--label", "region=eu")
    able = play.player(labels=("gpu", "region=eu"), slots=3, memory=4096, own_slots={"ocr": 2})
    assert play.mill.why(job=number).reason == "in_line"
    assert [finding for finding in play.mill.doctor() if not finding.ok] == []
    listed = play.mill.workers()[0]
    assert (listed.id, listed.labels, listed.slots, listed.memory_mib) == (able.id, ("gpu", "region=eu"), 3, 4096)
    assert (listed.own_slots, listed.holding, listed.doing) == ({"ocr": 2}, 0, ())
    job = take(play, able, Demand(("gpu", "region=eu")))
    assert (play.mill.workers()[0].holding, play.mill.workers()[0].doing) == (1, ("painted",))
    able.complete(job)


def test_memory_and_slots_that_nobody_has_are_named(opened: Open) -> None:
    play = opened(growing)
    number = play.mill.enqueue(growing).id
    play.player(memory=512)
    found = play.mill.why(job=number)
    assert "no running worker with 1 GB of memory (of 512 MB)" in found.sentence
    assert found.command == ("work", "-q", "default", "--memory", "1024MB")
    assert options(Demand(("gpu",), 3)) == ("--label", "gpu", "-n", "3")


def test_parts_need_the_labels_of_their_job(opened: Open) -> None:
    play = opened(painted)
    number = play.mill.enqueue(painted).id
    pool = parts.pool_beside(play.ledger, number, (Demand((), 1, 1024),), False)
    assert pool == pools_of(play, Demand(("gpu",), 1, 1024))
    plain = play.mill.enqueue("solo").id
    assert parts.pool_beside(play.ledger, plain, (NOTHING,), True) == 1
