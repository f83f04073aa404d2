"""Everything that can be done from the pages, by pressing the buttons: it is done, and recorded with who did it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Page, expect

from gristmill.clock import SECOND
from gristmill.model import AuditEntry
from tests.web import town
from tests.web.conftest import Dashboard
from tests.web.filling import mill_of
from tests.web.test_guarding import token_of


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).first.click()


def last(dashboard: Dashboard, verb: str) -> AuditEntry:
    [entry] = dashboard.mill.audit(verb=verb, limit=1)
    assert entry.who.endswith(" (web)")
    return entry


def test_a_queue_is_paused_and_resumed(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues")
    page.locator("#queue-find").get_by_role("button", name="Pause").click()
    expect(page.locator(".said")).to_contain_text("queue find is paused")
    expect(page.locator("#queue-find")).to_contain_text("paused")
    assert next(queue for queue in dashboard.mill.queues() if queue.name == "find").paused
    last(dashboard, "queue.pause")
    page.locator("#queue-find").get_by_role("button", name="Resume").click()
    expect(page.locator(".said")).to_contain_text("queue find goes on")
    assert not next(queue for queue in dashboard.mill.queues() if queue.name == "find").paused


def test_a_queue_is_set(dashboard: Dashboard, page: Page) -> None:
    page.goto("/queues/ocr")
    page.locator("#set summary").click()
    page.get_by_label("Weight").fill("2.5")
    page.get_by_label("At once").fill("7")
    press(page, "Set")
    expect(page.locator(".said")).to_contain_text("queue ocr is set")
    found = next(queue for queue in dashboard.mill.queues() if queue.name == "ocr")
    assert (found.weight, found.at_once, found.per_second) == (2.5, 7, None)
    page.locator("#set summary").click()
    page.get_by_label("Weight").fill("heavy")
    press(page, "Set")
    expect(page.locator("main")).to_contain_text("weight is a number, not 'heavy'")
    getattr(page, "complaints").clear()  # noqa: B009  # the 422 itself


def test_a_run_of_a_new_subject_is_started_and_then_one_like_it(dashboard: Dashboard, page: Page) -> None:
    page.goto("/subjects")
    page.locator("#start summary").click()
    page.get_by_label("Subject", exact=True).fill("Neuburg")
    page.get_by_label("Arguments as JSON").fill('{"pagse": 2}')
    press(page, "Start")
    expect(page.locator("main")).to_contain_text("takes no argument 'pagse'")
    getattr(page, "complaints").clear()  # noqa: B009  # the 422 itself
    page.get_by_role("link", name="Back", exact=True).click()
    expect(page.get_by_label("Arguments as JSON")).to_have_value('{"pagse": 2}')  # nothing of it is lost
    page.get_by_label("Arguments as JSON").fill('{"pages": 2}')
    press(page, "Start")
    expect(page.locator(".said")).to_contain_text("is queued")
    (run,) = dashboard.mill.runs(subject="Neuburg")
    assert (run.pipeline, run.args) == ("minutes", {"pages": 2})
    dashboard.mill.cancel_run(run.id)
    (subject,) = dashboard.mill.subjects(name="Neuburg")
    page.goto(f"/subjects/{subject.id}")
    press(page, "Start a run")
    expect(page.locator(".said")).to_contain_text("is queued")
    assert [run.args for run in dashboard.mill.runs(subject="Neuburg")] == [{"pages": 2}] * 2
    assert last(dashboard, "run.start").detail == {"pipeline": "minutes", "subject": "Neuburg"}


def test_a_queue_is_purged_after_a_question(dashboard: Dashboard, page: Page) -> None:
    ids = dashboard.mill.enqueue_many(town.hold, [{"path": "/nowhere"}] * 3)
    page.goto("/queues/slow")
    expect(page.locator("#live-mark")).to_be_visible()
    press(page, "Purge")
    expect(page.locator(".effect")).to_contain_text("3 jobs cancelled")
    expect(page.locator("#live-mark")).to_have_count(0)  # nothing is looked at again here
    assert {dashboard.mill.job(number).state for number in ids} == {"queued"}
    page.get_by_label("Why").fill("not wanted")
    press(page, "Purge")
    expect(page.locator(".said")).to_contain_text("3 jobs cancelled")
    assert {dashboard.mill.job(number).state for number in ids} == {"cancelled"}
    assert last(dashboard, "queue.purge").detail["reason"] == "not wanted"


def test_jobs_that_match_are_retried_after_a_question(dashboard: Dashboard, page: Page) -> None:
    page.goto("/jobs?q=task:fail+state:failed")
    expect(page.locator("main tbody tr")).to_have_count(3)
    page.get_by_label("all that match").check()
    expect(page.locator("[data-marked]")).to_have_text("All that match")
    press(page, "Retry")
    expect(page.locator(".effect")).to_contain_text("3 jobs queued")
    expect(page.locator("main")).to_contain_text("task:fail state:failed")
    assert len(dashboard.mill.jobs(task="fail", state="failed")) == 3
    press(page, "Retry")
    expect(page.locator(".said")).to_contain_text("done: 3 jobs queued")
    assert len(dashboard.mill.jobs(task="fail", state="queued")) == 3
    last(dashboard, "job.retry")


def test_a_question_that_is_out_of_date_is_asked_again(dashboard: Dashboard, page: Page) -> None:
    first = dashboard.mill.enqueue(town.notify, args={"to": "x"}, unique="old-1")
    page.goto("/jobs?q=key:old-*")
    page.get_by_label("all that match").check()
    press(page, "Cancel")
    expect(page.locator(".effect")).to_contain_text("1 job cancelled")
    second = dashboard.mill.enqueue(town.notify, args={"to": "x"}, unique="old-2")
    press(page, "Cancel")
    expect(page.locator("main")).to_contain_text("This is about 2 now, not 1.")
    getattr(page, "complaints").clear()  # noqa: B009  # the 409 itself
    assert {dashboard.mill.job(job.id).state for job in (first, second)} == {"queued"}
    press(page, "Cancel")
    expect(page.locator(".said")).to_contain_text("2 jobs cancelled")


def test_what_was_made_lately_is_confirmed_as_of_when_it_was_asked(dashboard: Dashboard) -> None:
    """Or what is a minute old by now would go out of it while others come in, and their number stay the same."""
    asked = int(time.time()) - 120
    with mill_of(str(dashboard.mill.ledger.url), clock=lambda: asked * SECOND) as then:
        job = then.enqueue(town.notify, args={"to": "x"}, unique="lately").id
    with dashboard.served.client() as client:
        form = {"token": token_of(client), "action": "cancel", "all": "1", "q": "key:lately since:1m"}
        assert "There is nothing that this would change" in client.post("/jobs/many", data=form).text
        asked_back = client.post("/jobs/many", data={**form, "at": str(asked)}).text
        assert "1 job cancelled" in asked_back
        assert f'name="at" value="{asked}"' in asked_back
        assert client.post("/jobs/many", data={**form, "at": str(asked), "confirm": "1"}).status_code == 303
    assert dashboard.mill.job(job).state == "cancelled"


def test_marked_jobs_are_cancelled_archived_and_deleted(dashboard: Dashboard, page: Page) -> None:
    ids = dashboard.mill.enqueue_many(town.hold, [{"path": f"/n{n}"} for n in range(3)])
    for action, said in (("Cancel", "2 jobs cancelled"), ("Archive", "2 jobs archived")):
        page.goto("/jobs?q=queue:slow")
        for number in ids[:2]:
            page.get_by_label(f"Job {number}", exact=True).check()
        expect(page.locator("[data-marked]")).to_have_text("2 marked")
        press(page, action)
        expect(page.locator(".effect")).to_contain_text(said)
        press(page, action)
        expect(page.locator(".said")).to_contain_text(said)
    assert dashboard.mill.job(ids[2]).state == "queued"
    page.goto("/jobs?q=queue:slow+is:archived")
    for number in ids[:2]:
        page.get_by_label(f"Job {number}", exact=True).check()
    press(page, "Delete")
    press(page, "Delete")
    expect(page.locator(".said")).to_contain_text("2 jobs deleted")
    last(dashboard, "job.delete")


def test_one_job_is_cancelled_retried_and_edited(dashboard: Dashboard, page: Page) -> None:
    job = dashboard.mill.enqueue(town.notify, args={"to": "bob"})
    page.goto(f"/jobs/{job.id}")
    page.locator("#edit summary").click()
    page.get_by_label("Arguments as JSON").fill('{"to": "eve"}')
    press(page, "Change them")
    expect(page.locator(".said")).to_contain_text("other arguments")
    assert dashboard.mill.job(job.id).args == {"to": "eve"}
    page.locator("#edit summary").click()
    page.get_by_label("Arguments as JSON").fill("")
    press(page, "Change them")
    expect(page.locator("main")).to_contain_text("the arguments are not JSON")  # nothing written does not mean none
    getattr(page, "complaints").clear()  # noqa: B009  # the 422 itself
    assert dashboard.mill.job(job.id).args == {"to": "eve"}
    page.goto(f"/jobs/{job.id}")
    press(page, "Cancel")
    expect(page.locator(".effect")).to_contain_text("the job is cancelled")
    expect(page.get_by_role("link", name="Back")).to_be_focused()  # who presses Enter once too often has cancelled nothing
    assert dashboard.mill.job(job.id).state == "queued"
    page.get_by_label("Why").fill("not to eve")
    press(page, "Cancel the job")
    expect(page.locator("h1")).to_contain_text("cancelled")
    assert dashboard.mill.job(job.id).state == "cancelled"
    assert last(dashboard, "job.cancel").detail["reason"] == "not to eve"
    press(page, "Retry")
    expect(page.locator("h1")).to_contain_text("queued")
    assert dashboard.mill.job(job.id).state == "queued"
    assert last(dashboard, "job.*").target.endswith(str(job.id))


def test_a_job_of_later_runs_now(dashboard: Dashboard, page: Page) -> None:
    job = dashboard.mill.enqueue(town.notify, args={"to": "later"}, delay=86_400)
    page.goto(f"/jobs/{job.id}")
    press(page, "Run now")
    expect(page.locator(".said")).to_be_visible()
    assert dashboard.mill.job(job.id).run_at is None


def test_a_run_is_started_stopped_and_retried(dashboard: Dashboard, page: Page) -> None:
    subject = dashboard.mill.set_subject(town.minutes, "Newtown")
    dashboard.mill.start(town.minutes, "Newtown", args={"pages": 1})
    page.goto(f"/subjects/{subject.id}")
    press(page, "Stop its run")
    expect(page.locator("h1")).to_contain_text("Stop run")
    press(page, "Stop the run")
    expect(page.locator(".said")).to_contain_text("cancelled")
    last(dashboard, "run.cancel")
    page.goto("/runs/1")
    press(page, "Retry what failed")
    expect(page.locator(".question")).to_contain_text("after that: extract, thumbnails, publish")
    press(page, "Run it again")
    expect(page.locator(".said")).to_contain_text("queued again")
    assert dashboard.mill.run(1).epoch == 2
    last(dashboard, "run.retry")
    page.goto("/runs?q=state:in_progress")
    page.get_by_label("Run 1", exact=True).check()
    press(page, "Stop")
    expect(page.locator(".effect")).to_contain_text("1 run stopped")
    expect(page.locator(".question")).to_contain_text(re.compile(r"With them \d+ unfinished jobs? stops?\."))
    page.get_by_label("Why").fill("too early")
    press(page, "Stop them")
    expect(page.locator(".said")).to_contain_text("done: 1 run stopped")
    assert dashboard.mill.run(1).state == "cancelled"
    assert last(dashboard, "run.cancel").detail["reason"] == "too early"


def test_runs_that_match_are_retried_after_a_question(dashboard: Dashboard, page: Page) -> None:
    page.goto("/runs?q=oak+state:completed_with_errors")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".effect")).to_contain_text("1 run retried")
    page.get_by_role("button", name="Retry them").click()
    expect(page.locator(".said")).to_contain_text("done: 1 run retried")
    [run] = dashboard.mill.runs(subject="Oakfield")
    assert (run.state, run.epoch) == ("in_progress", 2)
    assert dashboard.mill.audit(verb="run.retry_many")[0].who.endswith("(web)")


def test_subjects_that_match_are_started_after_a_question(dashboard: Dashboard, page: Page) -> None:
    for name in ("Eastham", "Westham"):
        run = dashboard.mill.start(town.minutes, name, args={"pages": 1})
        dashboard.mill.cancel_run(run.id)
    page.goto("/subjects?q=ham")
    page.get_by_label("Subject Eastham").check()
    expect(page.locator("[data-marked]")).to_have_text("1 marked")
    page.get_by_label("all that match").check()
    press(page, "Start a run of each")
    expect(page.locator(".effect")).to_contain_text("2 runs would be started")
    expect(page.locator("main")).to_contain_text("Each with the arguments of its last run.")
    press(page, "Start them")
    expect(page.locator(".said")).to_contain_text("2 runs are started")
    for name in ("Eastham", "Westham"):
        found = dashboard.mill.runs(subject=name)
        assert (len(found), found[0].terminal, found[0].args) == (2, False, {"pages": 1})
    assert last(dashboard, "run.start").target == "2 subjects"


def test_a_subject_is_set_and_purged(dashboard: Dashboard, page: Page) -> None:
    subject = dashboard.mill.set_subject(town.minutes, "Setville", labels={"old": "yes"})
    page.goto(f"/subjects/{subject.id}")
    page.locator("#set summary").click()
    page.get_by_label("Interval").fill("2h")
    page.get_by_label("Labels").fill("county=east\ntier=silver")
    press(page, "Set")
    expect(page.locator(".said")).to_be_visible()
    found = dashboard.mill.subject("minutes", "Setville")
    assert (found.interval, found.labels) == (7200.0, {"county": "east", "tier": "silver"})
    run = dashboard.mill.start(town.minutes, "Setville", args={"pages": 1})
    page.reload()
    press(page, "Purge")
    press(page, "Purge")
    expect(page.locator(".said")).to_contain_text("stopped")
    assert dashboard.mill.run(run.id).state == "cancelled"


def test_a_form_that_is_open_keeps_what_it_showed(dashboard: Dashboard, page: Page) -> None:
    subject = dashboard.mill.set_subject(town.minutes, "Twoville", labels={"tier": "gold"})
    page.goto(f"/subjects/{subject.id}")
    page.locator("#set summary").click()
    page.get_by_label("Labels").fill("tier=silver")
    page.get_by_label("Interval").focus()
    dashboard.mill.set_subject(town.minutes, "Twoville", labels={"z": "another's"})
    expect(page.locator("dl.facts")).to_contain_text("z=another's")
    press(page, "Set")
    expect(page.locator(".said")).to_contain_text("is set")
    assert dashboard.mill.subject("minutes", "Twoville").labels == {"tier": "silver", "z": "another's"}


def test_an_error_is_ignored_heeded_and_retried(dashboard: Dashboard, page: Page) -> None:
    error = next(e for e in dashboard.mill.errors() if e.error_class == "Permanent" and e.failed)
    page.goto("/errors")
    page.locator(f"#error-{error.fingerprint}").get_by_role("button", name="Ignore").click()
    expect(page.locator("h1")).to_contain_text("ignored")
    assert error.fingerprint not in {e.fingerprint for e in dashboard.mill.errors()}
    press(page, "Heed again")
    expect(page.locator(".said")).to_contain_text("listed again")
    page.get_by_role("button", name=re.compile("^Retry")).click()
    expect(page.locator(".effect")).to_contain_text("would be queued again")
    press(page, "Retry")
    expect(page.locator(".said")).to_contain_text("queued again")
    last(dashboard, "job.retry_many")


def test_a_schedule_is_paused_resumed_and_run(dashboard: Dashboard, page: Page) -> None:
    [last_time, *_] = dashboard.mill.schedule_history("nightly")
    assert last_time.job is not None
    dashboard.mill.cancel_job(last_time.job, by="test")
    page.goto("/schedules")
    page.locator("#schedule-nightly").get_by_role("button", name="Pause").click()
    expect(page.locator("h1")).to_contain_text("paused")
    assert dashboard.mill.schedule("nightly").state == "paused"
    press(page, "Resume")
    expect(page.locator("h1")).to_contain_text("on")
    press(page, "Run now")
    expect(page.locator(".said")).to_contain_text("started job")
    [fired, *_] = dashboard.mill.schedule_history("nightly")
    assert fired.by is not None
    assert fired.by.endswith("(web)")
    expect(page.locator("main tbody tr").first).to_contain_text(f"job {fired.job}")


def test_a_circuit_is_closed_and_a_limit_set(dashboard: Dashboard, page: Page) -> None:
    page.goto("/limits")
    row = page.locator("tbody tr", has_text="example.org")
    expect(row).to_contain_text("left alone")
    rule = page.locator("tbody tr", has_text="each key (the rule)").first
    assert [rule.locator(f"td[data-label={label}]").inner_text() for label in ("Waiting", "Circuit")] == ["", ""]
    press(page, "Let it through")
    expect(page.locator(".said")).to_contain_text("host example.org is let through again")
    assert next(limit for limit in dashboard.mill.limits("host") if limit.key).circuit == "closed"
    row = page.locator("tbody tr").first
    row.locator("summary").click()
    row.get_by_label("At once").fill("5")
    row.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator(".said")).to_contain_text("limit host is set")
    assert dashboard.mill.limits("host")[0].at_once == 5


def test_who_may_only_look_sees_no_buttons(dashboard: Dashboard, opened: Callable[..., Page]) -> None:
    from tests.web.conftest import dashboard_of

    with dashboard_of(dashboard.served.database, "--read-only") as locked:
        page = opened(locked.address)
        for path in (
            "/",
            "/queues",
            "/queues/mail",
            "/jobs",
            "/jobs/1",
            "/runs/1",
            "/runs",
            "/errors",
            "/schedules",
            "/limits",
        ):
            page.goto(path)
            assert page.locator("main form[method=post] button").count() == 0, path
            assert page.locator("main input[type=checkbox]").count() == 0, path
        expect(page.locator(".who")).to_contain_text("read-only")
        page.close()  # before its server ends
