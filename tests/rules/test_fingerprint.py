"""Which failures are the same: stable under what differs from item to item, different for different causes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.fingerprint import fingerprint, innermost_frames, normal_message

# ---- what varies, as people's messages have it

segments = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_-", min_size=1, max_size=12)
paths = st.lists(segments, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1))
varying = {
    "number": st.integers(-(10**12), 10**12).map(str) | st.floats(0, 1e9).map("{:.3f}".format),
    "id": st.uuids().map(str) | st.binary(min_size=4, max_size=20).map(bytes.hex) | st.integers(1).map("doc{}".format),
    "address": st.integers(0, 2**48).map("{:#x}".format),
    "path": paths,
    "url": st.builds("{}://{}.example{}?q={}".format, st.sampled_from(["http", "https", "s3"]), segments, paths, segments),
    "date": moments.map(lambda at: at.isoformat()) | moments.map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S")),
    "quoted": st.text("abcdefgh 0123/-.", max_size=30).map(repr),
}
values = st.fixed_dictionaries(varying)

MESSAGES = [
    "page {number} of {number} is damaged",
    "cannot read {path}: the file ends after {number} bytes",
    "GET {url} answered with {number} at {date}",
    "<Page object at {address}> of document {id} has no text",
    "could not convert string to float: {quoted}",
    "no document {id} in '{path}'",
    "[{number}, {number}, {number}] and [{number}]",
]


@st.composite
def traces(draw: st.DrawFn) -> Callable[[str, str], str]:
    """A traceback in which all that may change has: folders, line numbers, source lines, callers far above."""
    line, folder, text = draw(st.integers(1, 99_999)), draw(paths), draw(segments)
    above = draw(st.lists(segments, max_size=3))

    def frame(file: str, function: str) -> str:
        return f'  File "{folder}/{file}", line {line + len(function)}, in {function}\n    {text}({line})\n'

    def trace(inner: str, said: str) -> str:
        frames = [*(frame("main.py", name) for name in above), frame("steps.py", "page"), frame("pdf.py", "read")]
        return "".join(["Traceback (most recent call last):\n", *frames, frame("pdf.py", inner), f"ValueError: {said}\n"])

    return trace


@given(st.sampled_from(MESSAGES), values, values, traces(), traces())
def test_what_differs_from_item_to_item_makes_no_difference(
    message: str, one: dict[str, str], other: dict[str, str], here: Callable[..., str], there: Callable[..., str]
) -> None:
    said, also = message.format(**one), message.format(**other)
    first = fingerprint("ValueError", said, here("decode", said))
    assert first == fingerprint("ValueError", also, there("decode", also))
    assert first != fingerprint("KeyError", also, there("decode", also))
    assert first != fingerprint("ValueError", also, there("unpack", also))
    assert first != fingerprint("ValueError", f"worse: {also}", there("decode", also))


@given(st.none() | st.text(), st.none() | st.text(), st.none() | st.text())
def test_any_text_has_one(kind: str | None, said: str | None, trace: str | None) -> None:
    found = fingerprint(kind, said, trace)
    assert found == fingerprint(kind, said, trace)
    assert len(found) == 12
    assert set(found) <= set("0123456789abcdef")


@given(st.text(max_size=300))
def test_a_normal_message_is_as_normal_as_it_gets(message: str) -> None:
    once = normal_message(message)
    assert "1" not in normal_message(f"{message} 1")
    assert len(once) <= 1000


@pytest.mark.parametrize(
    ("message", "normal"),
    [
        ("page 12 of 400", "page # of #"),
        ("took 3.5 s, not 1,000", "took # s, not #"),
        ("at 10.0.0.1:5432", "at #"),
        ("can't open 'my file.pdf' or \"b\"", "can't open <text> or <text>"),
        ("cannot open C:\\docs\\a.pdf", "cannot open <path>"),
        ("minutes-of-may.pdf is empty", "<path> is empty"),
        ("two\n  lines", "two lines"),
        ("[Errno 2] No such file or directory: '/tmp/x'", "[Errno #] No such file or directory: <text>"),
        ("commit deadbeef is gone", "commit # is gone"),
    ],
)
def test_messages_are_made_normal(message: str, normal: str) -> None:
    assert normal_message(message) == normal


def test_a_name_in_the_code_counts_and_a_value_does_not() -> None:
    missing = [fingerprint("KeyError", f"KeyError: '{key}'", None) for key in ("title", "author")]
    assert len(set(missing)) == 2
    bad = [fingerprint("ValueError", f"ValueError: no number: '{text}'", None) for text in ("twelve", "many")]
    assert len(set(bad)) == 1


def test_paths_that_end_alike_or_not_are_the_same_message() -> None:
    said = {normal_message(f"cannot read {path}") for path in ("/a/b.pdf", "c/d/e.txt", "./x", "~/x/y")}
    assert said == {"cannot read <path>"}


# ---- real tracebacks


def fail(depth: int) -> int:
    if depth:
        fail(depth - 1)
    raise ValueError("too deep")


def caught(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("it did not fail")


def test_the_frames_of_a_real_traceback() -> None:
    frames = innermost_frames(caught(lambda: fail(0)))
    assert frames == ["test_fingerprint.py caught", "test_fingerprint.py <lambda>", "test_fingerprint.py fail"]


def test_a_recursion_is_the_same_at_any_depth() -> None:
    shallow, deep = caught(lambda: fail(1)), caught(lambda: fail(200))
    assert innermost_frames(shallow) == innermost_frames(deep)


def test_of_chained_errors_the_last_one_counts() -> None:
    def chained() -> None:
        try:
            fail(0)
        except ValueError as error:
            raise RuntimeError("gave up") from error

    assert innermost_frames(caught(chained)) == ["test_fingerprint.py caught", "test_fingerprint.py chained"]


def test_a_comprehension_is_no_function_of_its_own() -> None:
    frames = innermost_frames(caught(lambda: [depth for depth in range(1) if fail(depth)]))
    assert frames == ["test_fingerprint.py caught", "test_fingerprint.py <lambda>", "test_fingerprint.py fail"]


def test_a_long_message_is_done_at_once() -> None:
    for nasty in ("a" * 2000, "a/" * 1000, "'" * 2000, "1" * 2000, "1 " * 1000, "a-" * 1000, "\\" * 2000, "é." * 1000):
        normal_message(nasty)  # the test's own timeout is the measure: no pattern may go back and forth
