"""One short name for all failures that have the same cause: what differs from item to item is left out of it.

It is made of the error's class, its message without ids, numbers, paths and dates, and the innermost functions of its
traceback without line numbers. So it stays the same when a file is edited elsewhere, moved, or given another document.
"""

from __future__ import annotations

import re
from hashlib import blake2b

_BYTES = 6  # 12 hex digits: with a million signatures, the chance that any two are mixed up is 1 in 500
_FRAMES = 3  # enough to tell who called a library's function, few enough to survive a new caller far above
_LONGEST = 1000  # characters of a message that count

_DAYS = "mon|tue|wed|thu|fri|sat|sun"
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DOCUMENTS = "csv|db|docx?|gif|gz|html?|jpe?g|json|log|md|pdf|png|pptx?|py|tar|tiff?|tmp|tsv|txt|xlsx?|xml|zip"

# Each of these becomes its word, in this order: later ones rely on what earlier ones have taken out.
_VARYING = tuple(
    (re.compile(pattern, re.IGNORECASE), word)
    for pattern, word in (
        (r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]]+", "<url>"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "#"),
        (r"\b0x[0-9a-f]+\b", "#"),
        (rf"\b(?:(?:{_DAYS})[a-z]*,?\s+)?\d{{1,2}}[ -](?:{_MONTHS})[a-z]*[ -]\d{{2,4}}\b", "#"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*", "#"),
        (r"(?<![\w.~/\\:-])(?:[a-z]:|~|[\w.-]+)?(?:[/\\]+[\w.@%+~=-]+)+[/\\]*", "<path>"),
        (rf"(?<![\w.-])[\w-]+\.(?:{_DOCUMENTS})\b", "<path>"),
    )
)
_QUOTED = re.compile(r"(?<!\w)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`)(?!\w)", re.DOTALL)
_NAME = re.compile(r"['\"`][^\W\d]+['\"`]")
_WITH_DIGITS = re.compile(r"[-+]?\b\w*\d\w*|\b[0-9a-f]{8,}\b")  # a number, an id, a hash
_MANY_NUMBERS = re.compile(r"#(?:[\s,;:.+×-]*#)+")  # 3.5, 10:30:01, 10.0.0.1, a list of any length
_SPACE = re.compile(r"\s+")

# Errors of Python itself that quote a name out of the code, not out of a document: that name is part of the cause.
_QUOTES_NAMES = {
    "AttributeError",
    "ImportError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
}

_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line \d+, in (.+)$', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_COMPREHENSION = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}  # functions of their own in some Pythons only


def fingerprint(error_class: str | None, message: str | None, traceback: str | None) -> str:
    """12 hex digits that are the same for failures with the same cause."""
    kind = error_class or ""
    parts = [kind, normal_message(message or "", names_count=kind in _QUOTES_NAMES), *innermost_frames(traceback or "")]
    return blake2b("\n".join(parts).encode(errors="replace"), digest_size=_BYTES).hexdigest()


def normal_message(message: str, *, names_count: bool = False) -> str:
    """A message without what differs from item to item; `names_count`: a single quoted word is a name in the code."""
    for pattern, word in _VARYING:
        message = pattern.sub(word, message)
    message = _QUOTED.sub(lambda m: m[0] if names_count and _NAME.fullmatch(m[0]) else "<text>", message)
    message = _MANY_NUMBERS.sub("#", _WITH_DIGITS.sub("#", message))
    return _SPACE.sub(" ", message).strip()[:_LONGEST]


def innermost_frames(traceback: str) -> list[str]:
    """`file function` of the last few frames of the error that was raised last, from outside to inside."""
    raised_last = traceback.rpartition(_TRACEBACK)[2]
    frames: list[str] = []
    for file, function in reversed(_FRAME.findall(raised_last)):
        frame = f"{_file_name(file)} {function.strip()}"
        if function.strip() not in _COMPREHENSION and frame not in frames[-1:]:  # a recursion is as deep as its document
            frames.append(frame)
        if len(frames) == _FRAMES:
            break
    return frames[::-1]


def _file_name(path: str) -> str:
    return _WITH_DIGITS.sub("#", path.replace("\\", "/").rpartition("/")[2])
