"""What a job does to its process is that job's outcome alone: the worker lives on, the others complete."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill import Mill
from gristmill.execution import crew
from gristmill.execution.children import Child
from gristmill.execution.frames import SPOKEN
from gristmill.model import Job
from tests.apps import everyday
from tests.servers import ROOT
from tests.worker.helpers import PATIENCE, all_end, drain, eventually, is_running, lines, pids_of, working


def all_among_others(mill: Mill, *tasks: str, **args: object) -> dict[str, Job]:
    """Jobs in one child, each between two well-behaved ones, which must be whole; the last one's log must be too."""
    first = mill.enqueue(everyday.add, args={"a": 0})
    jobs = {task: (mill.enqueue(task, args=args), mill.enqueue(everyday.add, args={"a": 0})) for task in tasks}
    last = mill.enqueue("speak")
    drain(mill, slots=1)
    for other in (first, *(other for _, other in jobs.values())):
        done = mill.job(other.id)
        assert (done.state, done.errors + done.crashes + done.timeouts + done.losses) == ("completed", 0)
    (said,) = mill.attempts(last.id)
    assert (said.error, said.log) == ("LookupError: as it should", "spoken\n")
    return {task: mill.job(job.id) for task, (job, _) in jobs.items()}


def ended_among_others(mill: Mill, task: str, **args: object) -> Job:
    return all_among_others(mill, task, **args)[task]


# ---- the process dies


DEADLY = {
    "segfault": "SIGSEGV",
    "exit_at_once": "exit code 3",
    "kill_itself": "SIGKILL",
    "abort": "SIGABRT",
    "overflow_the_stack": "SIGSEGV",
    "close_every_descriptor": "its process",
    "die_while_it_is_told_of": "exit code 4",
}


@pytest.mark.parametrize("task", DEADLY)
def test_a_poison_job_is_parked_after_three_runs(nasty: Mill, task: str) -> None:
    job = ended_among_others(nasty, task)
    assert (job.state, job.error_class, job.crashes, job.errors) == ("failed", "crash", 3, 0)
    assert DEADLY[task] in str(job.error)
    assert [(kept.outcome, kept.error_class) for kept in nasty.attempts(job.id)] == [("crash", "crash")] * 3


def test_what_has_ended_does_not_run_again_when_a_job_of_another_task_ends_their_process(nasty: Mill, folder: Path) -> None:
    """Short jobs are given to a child many at once, and what it says of them is sent together."""
    nasty.enqueue_many("short_or_deadly", [{}] * 300)
    for n in range(15):
        nasty.enqueue_many("short", [{"folder": folder, "n": 4 * n + i} for i in range(4)])
        nasty.enqueue("short_or_deadly", args={"deadly": True})
    drain(nasty, slots=1)
    assert sorted(map(int, lines(folder / "short"))) == list(range(60)), "each once"


@pytest.mark.parametrize("length", [4, 2**32 - 1])
def test_a_job_that_garbles_what_its_process_says_is_a_crash(nasty: Mill, length: int) -> None:
    job = ended_among_others(nasty, "write_to_every_descriptor", length=length)
    assert (job.state, job.error_class, job.crashes) == ("failed", "crash", 3)


def test_an_exit_with_code_0_is_a_crash_too(nasty: Mill) -> None:
    job = ended_among_others(nasty, "exit_at_once", code=0)
    assert (job.state, job.error_class) == ("failed", "crash")


def test_what_a_crashed_job_printed_is_kept(nasty: Mill) -> None:
    job = ended_among_others(nasty, "segfault")
    log = str(nasty.attempts(job.id)[0].log)
    assert "about to crash" in log
    assert "in segfault" in log, "faulthandler says where it was"


def test_a_job_that_crashed_once_may_still_complete(mill_nasty: Mill) -> None:
    job = mill_nasty.enqueue("crash_once")
    drain(mill_nasty, slots=1)
    done = mill_nasty.job(job.id)
    assert (done.state, done.result, done.crashes) == ("completed", 2, 1)


def test_a_child_that_someone_kills_is_a_crash_of_its_job_and_is_replaced(lite: Mill, folder: Path) -> None:
    job = lite.enqueue(everyday.hold, args={"folder": folder})
    with working(lite, slots=1):
        eventually(lambda: lines(folder / "started"))
        (folder / "go").touch()
        os.kill(pids_of(folder / "started")[0], signal.SIGKILL)
        eventually(lambda: lite.job(job.id).crashes == 1 or lite.job(job.id).state == "completed")
        other = lite.enqueue(everyday.add, args={"a": 3})
        assert all_end(lite, other.id)[0].result == 3


def test_an_idle_child_that_is_killed_is_replaced(lite: Mill) -> None:
    first = lite.enqueue(everyday.process_id)
    with working(lite, slots=1):
        pid = all_end(lite, first.id)[0].result
        os.kill(pid, signal.SIGKILL)
        second = lite.enqueue(everyday.process_id)
        (done,) = all_end(lite, second.id)
    assert (done.state, done.crashes, done.result != pid) == ("completed", 0, True)


def test_a_child_that_does_not_begin_what_it_was_given_is_replaced(lite: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.execution.crew._TO_BEGIN", 1.0)
    first = lite.enqueue(everyday.process_id)
    with working(lite, slots=1):
        pid = all_end(lite, first.id)[0].result
        os.kill(pid, signal.SIGSTOP)
        (done,) = all_end(lite, lite.enqueue(everyday.process_id).id)
    assert (done.state, done.crashes, done.result != pid) == ("completed", 0, True)


@pytest.mark.parametrize("task", [everyday.process_id, everyday.process_id_async], ids=["plain", "async"])
def test_a_worker_that_can_start_no_process_for_a_while_goes_on_when_it_can(
    lite: Mill, task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Child
    failures = iter([OSError(24, "Too many open files")] * 2)

    def make(*given: Any) -> Any:
        if failure := next(failures, None):
            raise failure
        return made(*given)

    monkeypatch.setattr(crew, "Child", make)
    monkeypatch.setattr(crew, "_SPAWN_AGAIN", 0.1)
    job = lite.enqueue(task)
    with working(lite, slots=1):
        (done,) = all_end(lite, job.id)
    assert (done.state, done.crashes + done.losses + done.errors) == ("completed", 0)
    assert "no process for jobs can be started: [Errno 24] Too many open files; trying again in 0.1 s" in caplog.text


@pytest.mark.parametrize("call", ["socket.socketpair", "tempfile.TemporaryFile", "os.dup", "subprocess.Popen"])
def test_a_process_that_could_not_be_started_leaves_no_file_open(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again every few seconds: a worker must not run out of files by that."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    gc.collect()  # what others left is not closed in between
    before = psutil.Process().num_fds()
    with monkeypatch.context() as without:
        without.setattr(f"gristmill.execution.children.{call}", fail)
        with pytest.raises(OSError, match="Too many open files"):
            Child({"async": False, "log_json": True}, 0.0)
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("killed", [1, 2])
def test_a_first_child_that_is_killed_before_it_has_loaded_the_application_is_replaced(
    lite: Mill, killed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Child
    left = iter(range(killed))

    def make(*given: Any) -> Any:
        child = made(*given)
        if next(left, None) is not None:
            child.process.kill()
        return child

    monkeypatch.setattr(crew, "Child", make)
    monkeypatch.setattr(crew, "_SPAWN_AGAIN", 2 * PATIENCE)  # by chance, so nobody waits
    job = lite.enqueue(everyday.process_id)
    with working(lite, slots=1):
        (done,) = all_end(lite, job.id)
    assert (done.state, done.crashes + done.losses + done.errors) == ("completed", 0)
    assert caplog.text.count("a process for jobs ended before it began one: its process was ended by SIGKILL") == killed


def test_children_work_however_many_files_their_worker_has_open(lite: Mill) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    job = lite.enqueue(everyday.process_id)
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        drain(lite, slots=1)
    assert (lite.job(job.id).state, lite.job(job.id).attempt) == ("completed", 1)


@pytest.mark.parametrize("task", [everyday.process_id, everyday.process_id_async], ids=["plain", "async"])
def test_a_child_is_replaced_after_so_many_jobs(lite: Mill, task) -> None:
    jobs = lite.enqueue_many(task, [{"n": n} for n in range(10)])
    drain(lite, slots=1, recycle=4)
    pids = [lite.job(number).result for number in jobs]
    assert len(set(pids)) >= 3
    assert max(map(pids.count, pids)) <= 4


@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_jobs_are_taken_than_children_may_run_before_they_are_replaced(
    lite: Mill, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken and given back has lost its place in the line."""
    monkeypatch.setattr("gristmill.execution.stopping.STUCK", 60.0)  # a busy machine's pauses recall nothing
    jobs = lite.enqueue_many(everyday.add, [{"a": n} for n in range(100)])
    drain(lite, slots=slots, recycle=20)
    taken = sum(lite.job(number).attempt for number in jobs)
    assert taken == len(jobs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_program_that_a_job_started_can_be_ended_by_a_signal(lite: Mill, number: signal.Signals) -> None:
    """What the child itself ignores, it must not hand down."""
    job = lite.enqueue(everyday.end_a_program, args={"number": int(number)})
    drain(lite, slots=1)
    assert lite.job(job.id).result == -number


@pytest.mark.parametrize("limit", ["ulimit -n 64", "umask 777", "ulimit -c 0; ulimit -f 1000"])
def test_a_worker_works_within_narrow_limits(lite: Mill, sqlite_url: str, limit: str) -> None:
    job = lite.enqueue(everyday.add, args={"a": 3})
    order = json.dumps({"url": sqlite_url, "apps": ["everyday"], "until": "drained", "slots": 2})
    command = f"{limit}; exec {sys.executable} -m tests.worker.program '{order}'"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert (done.returncode, lite.job(job.id).result) == (0, 3), done.stderr


def test_printing_is_no_error_in_any_locale(nasty: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    job = ended_among_others(nasty, "print_every_letter")
    assert (job.error, nasty.attempts(job.id)[0].log) == ("LookupError: after it", "caf\u00e9 \\udce9\n")


# ---- memory


def test_too_much_memory_is_an_error_of_the_job(nasty: Mill) -> None:
    job = ended_among_others(nasty, "eat_memory")
    assert (job.state, job.error_class, job.errors) == ("failed", "MemoryError", 1)


def test_memory_that_the_kernel_does_not_limit_is_watched(nasty: Mill, folder: Path) -> None:
    job = ended_among_others(nasty, "eat_shared_memory", folder=folder)
    assert (job.state, job.error_class, job.crashes) == ("failed", "memory", 3)
    assert "200 MiB" in str(job.error)


def test_the_workers_own_limit_holds_for_every_job(nasty: Mill) -> None:
    big, small = nasty.enqueue(everyday.anything, args={"a": 1}), nasty.enqueue("hoard", args={"mib": 600})
    drain(nasty, slots=1, memory_mib=300)
    assert nasty.job(big.id).state == "completed"
    assert (nasty.job(small.id).state, nasty.job(small.id).error_class) == ("failed", "MemoryError")


# ---- errors that are hard to report


ERRORS = {
    "recurse": ("RecursionError", "maximum recursion depth"),
    "raise_system_exit": ("SystemExit", "7"),
    "raise_keyboard_interrupt": ("KeyboardInterrupt", "KeyboardInterrupt"),
    "raise_unspeakable": ("tests.apps.nasty.Unspeakable", "Unspeakable"),
    "raise_unstoppable": ("tests.apps.nasty.Unstoppable", "Unstoppable"),
    "raise_not_text": ("ValueError", "caf"),
    "raise_permanent_with_an_error": ("Permanent", "invalid literal"),
    "raise_group": ("ExceptionGroup", "several"),
    "raise_cancelled": ("asyncio.exceptions.CancelledError", "CancelledError"),
    "async_system_exit": ("SystemExit", "7"),
}


def test_an_error_is_kept_whatever_it_is(nasty: Mill) -> None:
    jobs = all_among_others(nasty, *ERRORS)
    for task, (kind, error) in ERRORS.items():
        job = jobs[task]
        (kept,) = nasty.attempts(job.id)
        assert (task, job.state, job.error_class, job.crashes) == (task, "failed", kind, 0)
        assert error in str(job.error)
        assert kept.traceback


def test_a_skip_without_a_reason_is_still_a_skip(nasty: Mill) -> None:
    assert ended_among_others(nasty, "raise_skip_without_a_reason").state == "skipped"


@pytest.mark.parametrize("task", ["raise_later_for_ever", "raise_unspent_for_ever", "raise_later_for_ever_async"])
def test_nonsense_delays_are_errors_of_their_job(nasty: Mill, task: str) -> None:
    strange = nasty.enqueue(task)
    other = nasty.enqueue(everyday.add_async if task.endswith("async") else everyday.add, args={"a": 3})
    with working(nasty, slots=1):
        ended = all_end(nasty, strange.id, other.id)
    assert (ended[0].state, "wants a number of seconds, or a timedelta, not" in str(ended[0].error)) == ("failed", True)
    assert ended[1].result == 3


@pytest.mark.parametrize("task", ["raise_later_of_any_kind", "raise_later_of_any_kind_async"])
def test_any_number_of_seconds_will_do(nasty: Mill, task: str) -> None:
    job = nasty.enqueue(task)
    with working(nasty, slots=1):
        (ended,) = all_end(nasty, job.id)
    assert (ended.state, ended.attempt, ended.returns) == ("completed", 4, 3)


def test_an_end_that_cannot_be_told_keeps_nobody_else_waiting(nasty: Mill) -> None:
    """A function may change what it raises."""
    odd = nasty.enqueue("raise_what_cannot_be_told")
    others = nasty.enqueue_many(everyday.add_async, [{"a": n} for n in range(4)])
    with working(nasty, slots=1):
        ended = all_end(nasty, odd.id, *others)
    assert (ended[0].state, "and the rest cannot be told" in str(ended[0].error)) == ("failed", True)
    assert [job.result for job in ended[1:]] == [0, 1, 2, 3]


# ---- results and progress that cannot be kept


RESULTS = {
    "return_object": "not JSON",
    "return_not_a_number": "NaN",
    "return_too_much": "the limit is 1 MiB",
    "return_surrogate": "not JSON",
    "return_itself": "not JSON",
}


def test_a_result_that_cannot_be_kept_fails_its_job(nasty: Mill) -> None:
    jobs = all_among_others(nasty, *RESULTS)
    for task, error in RESULTS.items():
        assert (task, jobs[task].state, jobs[task].result) == (task, "failed", None)
        assert len(nasty.attempts(jobs[task].id)) == 1
        assert error in str(jobs[task].error)


def test_progress_that_is_not_json_harms_nobody(nasty: Mill) -> None:
    job = ended_among_others(nasty, "progress_of_no_json")
    assert job.state in {"completed", "failed"}
    assert job.crashes == 0


def test_progress_of_more_digits_than_json_has_is_an_error_of_the_job(nasty: Mill) -> None:
    job = ended_among_others(nasty, "progress_of_many_digits")
    assert (job.state, job.crashes) == ("failed", 0)
    assert "progress is told in numbers" in str(job.error)


def test_items_with_odd_names_are_kept_as_well_as_can_be(nasty: Mill) -> None:
    job = ended_among_others(nasty, "phase_of_odd_names")
    assert (job.state, job.crashes) == ("completed_with_errors", 0)
    assert len(job.progress["phases"]["files"]["failed"]) == 1


# ---- those that leave a mess behind


@pytest.mark.parametrize(
    "task",
    [
        "close_standard_descriptors",
        "replace_stdout",
        "close_stdout",
        "change_signal_handlers",
        "leave_an_alarm",
        "leave_a_thread",
        "fork_and_exit",
        "delete_the_environment",
        "disable_logging",
    ],
)
def test_a_mess_harms_nobody_else(nasty: Mill, task: str) -> None:
    job = ended_among_others(nasty, task)
    assert (job.state, nasty.attempts(job.id)) == ("completed", [])


@pytest.mark.parametrize(
    "task",
    [
        "change_the_umask",
        "block_signals",
        "change_signal_handlers",
        "leave_an_alarm_with_a_handler",
        "lower_limits",
        "leave_every_file_open",
        "be_nice",
        "cut_every_file",
        "close_standard_descriptors",
    ],
)
def test_the_next_job_finds_its_world_as_it_was(nasty: Mill, task: str) -> None:
    before, job, after = (nasty.enqueue(name) for name in ("world", task, "world"))
    drain(nasty, slots=1)
    assert nasty.job(job.id).state == "completed"
    assert nasty.job(after.id).result == nasty.job(before.id).result


def test_jobs_of_one_task_may_set_up_their_process_once_for_all(nasty: Mill) -> None:
    """Who loads something large, and by the way changes the environment, does not load it for each job."""
    jobs = nasty.enqueue_many("set_up_once", [{"n": n} for n in range(5)])
    drain(nasty, slots=1)
    assert [nasty.job(number).result for number in jobs] == [1, 2, 3, 4, 5]


def test_a_process_that_cannot_report_any_more_is_a_crash_of_the_job_that_broke_it(nasty: Mill) -> None:
    job = ended_among_others(nasty, "replace_a_builtin")
    assert (job.state, job.error_class, job.crashes) == ("failed", "crash", 1)


@pytest.mark.parametrize(
    "message",
    [
        ["done", 5, [], 0.1],
        ["done", [[1]], [], 0.1],
        ["done", [[], [], [], []], [], 0.1],
        ["done", [["THIS"], [1], [None]], [], 0.1],
        ["done", [["THIS"], [1, 2], [None], [5]], [], 0.1],
        ["done", [["THIS"], [1], [None], ["x"]], [], 0.1],
        ["done", [["THIS"], [1], [None], [10**17]], [], 0.1],
        ["done", [["THIS"], [1], [None], [-5]], [], 0.1],
        ["done", [], [["THIS", 1, "nonsense"]], 0.1],
        ["done", [["THIS"], [[1]], [None], [5]], [], 0.1],
        ["done", [["THIS"], [2**64 - 1], [None], [5]], [], 0.1],
        ["done", [["THIS"], [1], [{}], [5]], [], 0.1],
        ["done", [], [["THIS", 1, "error", None, 5, None, {"no": "text"}]], 0.1],
        ["done", [], [["THIS", 1, "completed", 5]], 0.1],
        ["hello", 1, 1],
        ["hello", [], False, SPOKEN],
        ["broken", "it is not"],
        ["returned", 5],
        ["x"],
    ],
    ids=str,
)
def test_a_job_that_says_nonsense_in_its_process_s_name_is_a_crash(nasty: Mill, message: list[object]) -> None:
    job = ended_among_others(nasty, "send_to_the_supervisor", message=message)
    assert (job.state, job.error_class, job.crashes) == ("failed", "crash", 3)


@pytest.mark.parametrize("task", ["fail_with_descriptors_closed", "fail_with_stdout_replaced"])
def test_an_error_is_kept_although_there_is_no_output_any_more(nasty: Mill, task: str) -> None:
    job = ended_among_others(nasty, task)
    assert (job.state, job.error, job.errors, job.crashes) == ("failed", "LookupError: quietly", 1, 0)


def test_a_file_of_the_users_is_never_taken_for_our_output(nasty: Mill, folder: Path) -> None:
    job = ended_among_others(nasty, "write_a_file_as_stdout", path=folder / "file")
    assert job.state == "completed"
    assert (folder / "file").read_text() == "precious"


def test_fifty_megabytes_of_output_are_cut_to_their_end(nasty: Mill) -> None:
    job = ended_among_others(nasty, "print_much")
    assert job.error == "LookupError: after 50 MB"
    assert 0 < len(str(nasty.attempts(job.id)[0].log)) < 20_000


def test_a_job_starts_in_the_workers_folder_wherever_the_last_one_went(nasty: Mill, folder: Path) -> None:
    moved = nasty.enqueue("change_directory", args={"to": folder})
    after = nasty.enqueue("where")
    drain(nasty, slots=1)
    assert nasty.job(moved.id).result == str(folder)
    assert nasty.job(after.id).result == str(Path.cwd())


def test_a_fork_that_returns_does_not_answer_for_the_job(nasty: Mill, folder: Path) -> None:
    job = nasty.enqueue("fork_and_return", args={"folder": folder})
    with working(nasty, slots=1):
        (fork,) = eventually(lambda: pids_of(folder / "forked"))
        eventually(lambda: not is_running(fork) or nasty.job(job.id).finished_at, "the fork ends, or answers")
        (folder / "go").touch()
        (done,) = all_end(nasty, job.id)
        other = nasty.enqueue(everyday.add, args={"a": 3})
        assert all_end(nasty, other.id)[0].result == 3
    assert (done.state, done.result) == ("completed", "parent")
