"""Which of the documents that a source lists are fetched."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from clerk.parts import Found, Wanted


def is_recent(date: str, wanted: Wanted) -> bool:
    return int(date[:4]) >= wanted.since_year


def choose(found: Iterable[Found], wanted: Wanted, minutes: Container[tuple[str, str]] = ()) -> Iterator[Found]:
    """Each URL once; agendas only where there are no minutes, unless all are wanted. `minutes`: the meeting and date of
    those that are here already, for sources that only list what is new.

    Minutes go on at once, so that reading can begin; agendas wait until the source has said all, since their minutes may
    come last.
    """
    urls: set[str] = set()
    listed: set[tuple[str, str]] = set()
    waiting: list[Found] = []
    for one in found:
        if one.url in urls or not is_recent(one.date, wanted):
            continue
        urls.add(one.url)
        meeting = one.meeting, one.date
        if wanted.all_agendas or one.kind == "minutes":
            listed.add(meeting)
            yield one
        elif meeting not in listed and meeting not in minutes:
            waiting.append(one)
    yield from (one for one in waiting if (one.meeting, one.date) not in listed)
