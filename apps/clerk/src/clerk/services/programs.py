"""Other people's programs: called with lists of words, never through a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

from clerk.errors import ClerkError

_AT_ONCE = 200  # names in one call: a command line has its limit
_PATIENCE = 300.0


def call(*words: str) -> None:
    """It works, or is said to have failed."""
    done = _run(words)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ClerkError(f"`{' '.join(words[:4])}{' …' if len(words) > 4 else ''}` failed: {said[:300]}")


def works(*words: str) -> bool:
    return _run(words).returncode == 0


def call_for(names: Sequence[str], *words: str) -> None:
    """For all of these names, some at a time."""
    for some in _portions(names):
        call(*words, *some)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise ClerkError(f"the program {words[0]!r} is not on PATH; --output DIR only writes the files") from None
    except subprocess.TimeoutExpired:
        raise ClerkError(f"`{' '.join(words[:4])}` did not end within {_PATIENCE:.0f} seconds") from None


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _AT_ONCE):
        yield names[start : start + _AT_ONCE]
