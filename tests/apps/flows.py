"""Pipelines of every shape that the documentation promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

from gristmill import Context, EndRun, Permanent, Pipeline, Retries
from tests.apps.barriers import mark, wait_for

# ---- a site: pages are found, read, counted; every function says something of its context

site = Pipeline("site")


@site.stage(queue="find")
def find(ctx: Context, pages: int, prefix: str = "p") -> Generator[Any, None, dict[str, Any]]:
    for number in range(pages):
        yield f"{prefix}{number:03}", {"number": number}
    return {"found": pages, "key": ctx.key}


@site.stage(after=find, each=True, timeout=30)
def read(ctx: Context, number: int, bad: int = -1) -> dict[str, Any]:
    """`number` is the item's, `bad` is the run's."""
    if number == bad:
        raise Permanent("unreadable")
    return {"number": number, "of": [ctx.subject, ctx.run, ctx.stage, ctx.key, ctx.attempt, ctx.pipeline]}


@site.stage(after=read)
def total(ctx: Context) -> dict[str, Any]:
    counts = ctx.counts("read")
    results = list(ctx.results("read"))
    return {
        "keys": [key for key, _ in results],
        "sum": sum(result["number"] for _, result in results),
        "counts": [counts.total, counts.completed, counts.failed],
        "first": results[0][1]["of"] if results else None,
        "found": next(ctx.results("find"))[1],
    }


# ---- async all the way

asynchronous = Pipeline("asynchronous")


@asynchronous.stage
async def emit(ctx: Context, items: int) -> AsyncIterator[Any]:
    for number in range(items):
        yield f"i{number:05}", {"number": number}


@asynchronous.stage(after=emit, each=True)
async def square(ctx: Context, number: int) -> int:
    return number * number


@asynchronous.stage(after=square)
async def add_up(ctx: Context) -> int:
    return sum(result for _, result in ctx.results("square"))


# ---- each after each: generators, and results that are passed on

nested = Pipeline("nested")


@nested.stage
def shelves(ctx: Context) -> Iterator[Any]:
    yield "a", {"books": 2}
    yield "b", {"books": 0}
    yield "c", {"books": 1}


@nested.stage(after=shelves, each=True)
def books(ctx: Context, books: int) -> Iterator[Any]:
    for number in range(books):
        yield str(number), {"title": f"{ctx.key}-{number}"}


@nested.stage(after=books, each=True)
def titles(ctx: Context, title: str) -> dict[str, str]:
    return {"text": title.upper(), "ignored": "not an argument of the next"}


@nested.stage(after=titles, each=True)
def texts(ctx: Context, text: str, ignored: str) -> str:
    return text


@nested.stage(after=texts, each=True)
def words(ctx: Context, word: str) -> None:
    return None


@nested.stage(after=words, each=True)
def nothing(ctx: Context) -> str:
    return str(ctx.key)


# ---- items for one of several stages

routed = Pipeline("routed")


@routed.stage
def route(ctx: Context) -> Iterator[Any]:
    yield "x", {"n": 1}, "left"
    yield "y", {"n": 2}, "right"
    yield "z", {"n": 3}
    yield "x", {"n": 4}, right  # another stage's key is another item


@routed.stage(after=route, each=True)
def left(ctx: Context, n: int) -> int:
    return n


@routed.stage(after=route, each=True)
def right(ctx: Context, n: int) -> int:
    return -n


# ---- gates, and runs that end early

gated = Pipeline("gated")


@gated.stage
def look(ctx: Context, verdict: str) -> str:
    if verdict == "unchanged":
        raise EndRun("unchanged")
    return verdict


@gated.gate(after=look)
def check(ctx: Context) -> None:
    """Looks at what the stage before it returned."""
    (_, verdict) = next(ctx.results("look"))
    if verdict == "fail":
        raise Permanent("it does not add up")
    if verdict == "end":
        raise EndRun("no_documents")


@gated.stage(after=look)
def use(ctx: Context, verdict: str) -> str:
    return f"used {verdict}"


# ---- items that are wrong

wrong = Pipeline("wrong")


@wrong.stage(retries=Retries(2, delays=[0.01]))
def produce(ctx: Context, how: str) -> Iterator[Any]:
    yield "good", {"n": 0}
    match how:
        case "number":
            yield 7
        case "list":
            yield ["a", {"n": 1}, "consume", "more"]
        case "unknown argument":
            yield "a", {"m": 1}
        case "wrong type":
            yield "a", {"n": "many"}
        case "missing argument":
            yield "a"
        case "unknown stage":
            yield "a", {"n": 1}, "consumer"
        case "empty key":
            yield " ", {"n": 1}
        case "long key":
            yield "k" * 501, {"n": 1}
        case "control character":
            yield "a\nb", {"n": 1}
        case "same key":
            yield "good", {"n": 1}
        case "same key much later":
            yield from ((f"k{number}", {"n": number}) for number in range(3000))
            yield "k1", {"n": 1}
        case "too large":
            yield "a", {"n": 1, "text": "x" * (1 << 20)}
        case "not json":
            yield "a", {"n": 1, "text": {1, 2}}
        case "raises":
            raise ZeroDivisionError("after the first item")


@wrong.stage(after=produce, each=True)
def consume(ctx: Context, n: int, text: Any = None) -> int:
    return n


# ---- a slow producer, whose items must not wait for it

streaming = Pipeline("streaming")


@streaming.stage(queue="slow")
def drip(ctx: Context, folder: Path) -> Iterator[Any]:
    yield "first", {}
    wait_for(folder / "go")
    yield "second", {}


@streaming.stage(after=drip, each=True)
def drop(ctx: Context, folder: Path) -> None:
    mark(folder / "dropped", str(ctx.key))


# ---- a producer that fails in the middle, and tries again

again = Pipeline("again")


@again.stage(retries=Retries(1, delays=[0.01]))
def start_over(ctx: Context) -> Iterator[Any]:
    for number in range(1200):
        yield str(number), {"n": number}
        if ctx.attempt == 1 and number == 1100:
            raise ConnectionError("lost it")


@again.stage(after=start_over, each=True)
def once(ctx: Context, n: int) -> int:
    return n


# ---- as many items as one likes

wide = Pipeline("wide")


@wide.stage(queue="spread")
def spread(ctx: Context, items: int, folder: Path) -> Iterator[Any]:
    import os

    mark(folder / "producer", str(os.getpid()))
    text = "x" * 2000
    for number in range(items):
        yield f"{number:07}", {"text": text}


@wide.stage(after=spread, each=True, queue="leaf")
def leaf(ctx: Context, text: str) -> None:
    return None


@wide.stage(after=leaf)
def closed(ctx: Context, folder: Path) -> None:
    mark(folder / "closed")


# ---- runs that end, or are ended, in the middle of many items

endless = Pipeline("endless")


@endless.stage(queue="spread")
def spring(ctx: Context, folder: Path) -> Iterator[Any]:
    number = 0
    while True:
        yield f"{number:09}", {"number": number}
        number += 1


@endless.stage(after=spring, each=True, queue="leaf")
def sip(ctx: Context, number: int, folder: Path, enough: int | None = None) -> None:
    mark(folder / "sips", str(number))
    if enough is not None and number >= enough:
        raise EndRun("enough")


# ---- priorities go through all stages

ranked = Pipeline("ranked")


@ranked.stage
def first(ctx: Context, folder: Path) -> Iterator[Any]:
    mark(folder / "order", f"{ctx.subject} first")
    yield "a", {}
    yield "b", {}


@ranked.stage(after=first, each=True)
def second(ctx: Context, folder: Path) -> None:
    mark(folder / "order", f"{ctx.subject} second")


@ranked.stage(after=second)
def third(ctx: Context, folder: Path) -> None:
    mark(folder / "order", f"{ctx.subject} third")
