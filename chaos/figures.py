"""`python -m chaos.figures FILE …`: adds what `./run chaos ROW --full --json FILE` wrote to docs/faults-figures.md.

All plays are kept beside that page, so that a play of one row does not forget the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chaos.play import ROOT

PAGE = ROOT / "docs" / "faults-figures.md"
KEPT = PAGE.with_suffix(".json")
SHOWN = 240  # characters of why a play failed
HEAD = """# What the full forms gave

Each row of [the list](faults.md#the-rows) at its full scale, on the databases that it applies to. Two processors, which
also ran the database, the workers and the player, and in plays that took long much else. `python -m chaos.figures FILE …`
adds to this page what `./run chaos ROW --full --seed N --json FILE` wrote.
"""


def page(told: Iterable[dict[str, Any]]) -> str:
    """One part for each row, in order, and one line for each play of it."""
    parts: dict[str, list[str]] = {}
    for one in sorted(told, key=lambda one: (_order(one["row"]), one["database"] != "SQLite", one["seed"])):
        lines = parts.setdefault(f"## {one['row']}: {one['title']}", [])
        where = "" if one["database"] == "none" else f"{one['database']}, "
        text = " ".join(one["told"].split())
        said = text if one["mark"] == "holds" else f"**{one['mark']}**: {text[:SHOWN]}"
        lines.append(f"- {where}seed {one['seed']} ({one['seconds']} s): {said}")
    return "\n".join([HEAD, *("\n".join([title, "", *lines, ""]) for title, lines in parts.items())])


def _order(row: str) -> tuple[int, str]:
    number = re.search(r"\d+", row)
    return (int(number[0]) if number else 1000), row


def main(files: list[str]) -> None:
    plays = [one for file in [str(KEPT), *files] for one in json.loads(Path(file).read_text()) if one["full"]]
    latest = {(one["row"], one["database"], one["seed"]): one for one in plays}
    kept = list(latest.values())
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(page(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
