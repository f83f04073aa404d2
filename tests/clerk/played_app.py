"""Brings the played reader into the children of real workers, which import this since it has a check."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from clerk.pipeline import documents
from gristmill import Context, Finding, check
from tests.clerk import played_reading

if "pytest" not in sys.modules:
    documents.read = played_reading.read


@check
def played(ctx: Context) -> Iterator[Finding]:
    return iter(())
