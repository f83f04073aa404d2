"""What can go wrong, by what a person does about it. The text of each is for people: what, where, and what to do."""

from __future__ import annotations


class ClerkError(Exception):
    """Refused or failed: one line on stderr, exit code 1."""

    exit_code = 1


class Usage(ClerkError):
    """A bad option, value, queue, worker type or subdomain."""

    exit_code = 2


class NoDatabase(ClerkError):
    """The database is out of reach, or its schema is not the one that this code needs."""

    exit_code = 3


class OutOfReach(NoDatabase):
    """It may be there in a moment."""


# ---- what a document or a page can do to the stage that works on it


class Transient(ClerkError):
    """It may work in a moment: a timeout, 429, 5xx, an incomplete transfer."""

    retry_after: float | None = None  # seconds, where a server said so


class Incomplete(Transient):
    """A source could not be listed to its end; what it did list counts."""


class Unreadable(ClerkError):
    """It never will, as it is: corrupt, encrypted, empty, missing, 404."""


class Crashed(ClerkError):
    """Native code died over it: once more, then it failed."""


class TimedOut(Crashed):
    """It took longer than it may."""


class Critical(ClerkError):
    """Nobody can work here now: the storage cannot be written, the disk is full, a tool is missing."""
