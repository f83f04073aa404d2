"""What was done in each minute, as the ledger has counted it."""

from __future__ import annotations

from datetime import datetime

from gristmill.mill import Mill


def minutes(mill: Mill, most: int) -> list[tuple[datetime, int, int]] | None:
    """(minute, ended well, failed) of the last so many minutes; None: this ledger does not count them."""
    return None
