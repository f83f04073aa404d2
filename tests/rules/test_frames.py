"""Messages between a supervisor and its children, whatever pieces the pipe delivers them in."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.execution.frames import Unpacker, pack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)
MESSAGES = st.lists(st.lists(JSON, max_size=3), max_size=5)


def unpacked(pieces: list[bytes]) -> list[Any]:
    unpacker = Unpacker()
    return [message for piece in pieces for message in unpacker.feed(piece)]


@settings(max_examples=50)
@given(MESSAGES, st.data())
def test_any_cutting_of_the_stream_gives_the_same_messages(messages: list[list[Any]], data: st.DataObject) -> None:
    stream = b"".join(map(pack, messages))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert unpacked(pieces) == messages


@settings(max_examples=20)
@given(MESSAGES)
def test_even_byte_by_byte(messages: list[list[Any]]) -> None:
    stream = b"".join(map(pack, messages))
    assert unpacked([bytes([byte]) for byte in stream]) == messages


def test_half_a_message_is_kept_until_the_rest_comes() -> None:
    frame = pack(["done", 1, "x" * 100_000])
    unpacker = Unpacker()
    assert list(unpacker.feed(frame[:-1])) == []
    assert list(unpacker.feed(frame[-1:] + frame[:3])) == [["done", 1, "x" * 100_000]]
    assert list(unpacker.feed(frame[3:])) == [["done", 1, "x" * 100_000]]


def test_an_empty_read_is_nothing() -> None:
    assert list(Unpacker().feed(b"")) == []
