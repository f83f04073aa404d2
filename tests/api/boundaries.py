"""`python -m tests.api.boundaries`: schemathesis tries every boundary of every route, which takes a quarter of an hour."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gristmill.ledger.migrate import upgrade
from tests.api.conftest import fill, mill_of
from tests.api.test_openapi import find_no_fault

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/mill.db"
        upgrade(url)
        fill(url, folder / "texts")
        with mill_of(url) as mill:
            token = mill.create_token("fuzz", "admin").text
        find_no_fault(url, folder, token, "--phases", "examples,coverage", "--continue-on-failure")
        print("no fault")
