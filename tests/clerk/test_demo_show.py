"""What the demonstration shows: bars or lines, the hits of a search, the votes."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from clerk import demo
from clerk.demo import show
from clerk.demo.finding import MARKS, Hit
from clerk.demo.show import Found, Progress, Signs, Step
from clerk.errors import ClerkError
from clerk.parts import MemberVote, Tally, Vote

VOTE = Vote(
    motion_by="Tobias Lindqvist",
    seconded_by=None,
    result="passed",
    tally=Tally(ayes=3, nays=1, abstain=0, absent=1),
    individual_votes=[MemberVote(name="Elena Reyes", vote="aye"), MemberVote(name="Minh Tran", vote="absent")],
    raw_text="…",
)


# ---- progress


def looks() -> list[list[tuple[str, str, int, int, str]]]:
    return [
        [("a.ca", "fetch", 0, 1, "waiting")],
        [("a.ca", "fetch", 0, 1, "running"), ("b.me", "fetch", 0, 3, "running")],
        [("a.ca", "fetch", 1, 1, "completed"), ("a.ca", "ocr", 2, 4, "running"), ("b.me", "fetch", 1, 3, "running")],
        [("a.ca", "fetch", 1, 1, "completed"), ("a.ca", "ocr", 3, 4, "completed"), ("b.me", "fetch", 1, 3, "failed")],
    ]


def watched(to: Console, hour: Iterator[float]) -> list[Progress]:
    """All looks in turn, each an instant of the given clock apart."""
    seen = iter(looks())
    left = iter([False, False, False, True])
    return show.watch(lambda: next(seen), lambda: next(left), to, lambda: next(hour))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "_LOOK_EVERY", 0.0)


def hours(every: float) -> Iterator[float]:
    return (number * every for number in range(1, 1000))


def test_without_a_terminal_there_is_a_line_for_what_changed() -> None:
    out = io.StringIO()
    end = watched(Console(file=out, width=80), hours(10))
    assert end == [Progress(*one) for one in looks()[-1]]
    assert out.getvalue().splitlines() == [
        "b.me: fetch 0/3",
        "a.ca: fetch completed",
        "a.ca: ocr 2/4",
        "b.me: fetch 1/3",
        "a.ca: ocr 3/4 completed",
        "b.me: fetch 1/3 failed",
    ]


def test_lines_do_not_come_faster_than_they_can_be_read_but_ends_are_always_said() -> None:
    out = io.StringIO()
    watched(Console(file=out, width=80), hours(0.01))
    lines = out.getvalue().splitlines()
    assert lines == [
        "b.me: fetch 0/3", "a.ca: fetch completed", "a.ca: ocr 2/4", "a.ca: ocr 3/4 completed", "b.me: fetch 1/3 failed"
    ]  # fmt: skip


def drawn(seen: Sequence[Progress], width: int, encoding: str = "utf-8") -> list[str]:
    to = Console(file=io.StringIO(), width=width)
    with to.capture() as captured:
        to.print(show.bars(seen, width, Signs.of(encoding)))
    return [line.rstrip() for line in captured.get().splitlines()]


SEEN = [
    Progress("bramblecreek.k12", "fetch", 6, 6, "completed"),
    Progress("bramblecreek.k12", "ocr", 3, 6, "running"),
    Progress("a.ca", "fetch", 1, 1, "completed"),
    Progress("a.ca", "ocr", 5, 6, "completed"),
    Progress("a.ca", "compilation", 0, 1, "running"),
    Progress("a.ca", "extraction", 0, 0, "skipped"),
    Progress("a.ca", "deploy", 0, 1, "failed"),
]


def test_bars_fit_eighty_columns() -> None:
    assert drawn(SEEN, 80) == [
        "site              fetch       ocr         compile     extract     deploy",
        "bramblecreek.k12  ✓ 6         ━━━─── 3/6  ·           ·           ·",
        "a.ca              ✓ 1         ✓ 5/6       running     · skipped   ✗ 0/1",
    ]


def test_bars_are_longer_where_there_is_room() -> None:
    wide = drawn(SEEN, 120)
    assert "━━━━━━━─────── 3/6" in wide[1]
    assert max(map(len, wide)) <= 120


def test_a_terminal_without_unicode_gets_letters() -> None:
    assert drawn(SEEN, 80, "ascii")[1] == "bramblecreek.k12  ok 6        ###--- 3/6  .           .           ."
    assert all(line.isascii() for line in drawn(SEEN, 80, "ascii"))


def test_a_terminal_sees_bars_and_the_last_stays() -> None:
    out = io.StringIO()
    end = watched(Console(file=out, width=80, force_terminal=True, color_system=None), hours(1))
    assert end[-1].state == "failed"
    assert "✓ 3/4" in out.getvalue()
    assert "✗ 1/3" in out.getvalue().rpartition("compile")[2]  # the last picture


def test_what_a_terminal_cannot_write_is_no_reason_to_stop() -> None:
    program = "from clerk.demo import show; show.next_steps(show.console(), [show.Step('caf\\u00e9 \\u2026', 'ls')])"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["", "Where to look next", "  caf? ?", "    ls"]


# ---- the end


def shown(width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width), out


def test_a_hit_says_where_it_is_and_how_it_was_read() -> None:
    to, out = shown()
    text = f"the corrugated {MARKS[0]}culvert{MARKS[1]} that carries Tamarack Creek " + "and so on " * 10
    show.hits(to, "culvert", [Found("a.ca", Hit("minutes", "City Council", "2026-02-10", 3, text, ()), "a scan")])
    lines = out.getvalue().splitlines()
    assert lines[1:3] == ['Searching for "culvert"', "  a.ca  City Council minutes, 2026-02-10, page 3, read from a scan"]
    assert lines[3].startswith("    the corrugated culvert that carries Tamarack Creek")
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_the_word_stands_out() -> None:
    found = show.excerpt(f"a {MARKS[0]}b{MARKS[1]} c")
    assert found.plain == "a b c"
    [bold] = [span for span in found.spans if span.style == "bold yellow"]
    assert found.plain[bold.start : bold.end] == "b"


def test_no_hit_and_no_vote_are_said() -> None:
    to, out = shown()
    show.hits(to, "zebra", [])
    show.votes(to, [])
    assert 'No page has "zebra".' in out.getvalue()
    assert "None was found." in out.getvalue()


def test_a_vote_has_its_mover_its_tally_and_its_members() -> None:
    to, out = shown()
    show.votes(to, [VOTE] * 6)
    lines = out.getvalue().splitlines()
    assert lines[2:5] == [
        "  passed 3-1  moved by Tobias Lindqvist, seconded by nobody",
        "    aye     Elena Reyes",
        "    absent  Minh Tran",
    ]
    assert lines[-1] == "  and 2 more"


def test_a_command_is_never_broken() -> None:
    to, out = shown(40)
    command = "datasette " + "/long" * 30
    show.next_steps(to, [Step("In a browser [all of it]", command)])
    assert out.getvalue().splitlines()[2:] == ["  In a browser [all of it]", f"    {command}"]


def test_a_second_pass_is_told_in_numbers() -> None:
    to, out = shown()
    show.asked_again(to, {304: 20, 200: 1})
    assert "of 21 documents 20 were answered with 304 Not Modified, 1 were sent." in out.getvalue()


# ---- searching


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two tables as the compilation of a site has them."""
    path = tmp_path / "a b?.db"
    columns = (
        "id TEXT PRIMARY KEY, meeting TEXT, date TEXT, page INTEGER, text TEXT, page_image TEXT, entities_json, votes_json"
    )
    pages = [
        ("1", "CityCouncil", "2026-01-13", 1, "Nothing but a bridge.", "", "{}", '{"votes": []}'),
        (
            "2",
            "CityCouncil",
            "2026-02-10",
            3,
            "The culvert\nunder the road; a culvert.",
            "",
            "{}",
            json.dumps({"votes": [VOTE]}),
        ),
        ("3", "CityCouncil", "2026-02-24", 2, "A report, " + "long " * 60 + "culvert.", "", "{}", None),
    ]
    with sqlite3.connect(path) as connection:
        for kind, rows in (
            ("minutes", pages),
            ("agendas", [("9", "CityCouncil", "2026-03-10", 1, "Culvert.", "", "{}", "{}")]),
        ):
            connection.execute(f"CREATE TABLE {kind} ({columns})")
            connection.execute(f"CREATE VIRTUAL TABLE {kind}_fts USING fts5(text, content='{kind}')")
            connection.executemany(f"INSERT INTO {kind} VALUES (?,?,?,?,?,?,?,?)", rows)
            connection.execute(f"INSERT INTO {kind}_fts ({kind}_fts) VALUES ('rebuild')")
    connection.close()
    return path


def test_a_search_finds_the_page_and_the_votes_on_it(database: Path) -> None:
    first, second, third = demo.search(database, "culvert")
    assert (first.kind, first.meeting, first.date, first.page) == ("minutes", "CityCouncil", "2026-02-10", 3)
    assert first.excerpt == "The \x02culvert\x03 under the road; a \x02culvert\x03."
    assert first.votes == (VOTE,)
    assert (second.date, second.votes) == ("2026-02-24", ())
    assert (third.kind, third.date) == ("agendas", "2026-03-10")
    assert len(demo.search(database, "culvert", limit=2)) == 2


@pytest.mark.parametrize("word", ['"', "a OR b", "culvert*", "text:culvert", "'; DROP TABLE minutes; --", "-", "zebra", ""])
def test_whatever_is_searched_for_is_words_and_nothing_else(database: Path, word: str) -> None:
    found = demo.search(database, word)
    assert bool(found) == (word in ("culvert*",))  # the star is no letter, so it is the word itself


def test_a_database_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ClerkError, match=r"none\.db cannot be searched: .*`clerk update` compiles it anew"):
        demo.search(tmp_path / "none.db", "x")
    assert not (tmp_path / "none.db").exists()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; import clerk.demo.documents, clerk.demo.server, clerk.demo.show, clerk.demo.sites;"
        "print([name for name in ('PIL', 'reportlab', 'rich', 'pypdfium2', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
