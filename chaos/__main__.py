"""`./run chaos [ROW …] [--full] [--seed N]`: breaks things on purpose and checks that nothing is lost.

Without a row: all but `suites`, each on one of its databases, by the seed. A row that is named, or --full, is played on
all of them. Each prints its figure; a failure prints how to play it again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pkgutil
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos.rows
from chaos.play import Impossible, Play, Violation
from gristmill.ledger.migrate import upgrade
from tests import servers


def all_rows() -> dict[str, Any]:
    """The modules of `chaos.rows` by name: R1 is in r01_kills.py. Each has `TITLE`, `DATABASES` and `play(Play) -> str`."""
    names = sorted(found.name for found in pkgutil.iter_modules(chaos.rows.__path__))
    return {_short(name): importlib.import_module(f"chaos.rows.{name}") for name in names}


def _short(module: str) -> str:
    head = module.partition("_")[0]
    return f"R{int(head[1:])}" if head[0] == "r" and head[1:].isdigit() else module


def main() -> int:
    rows = all_rows()
    parser = argparse.ArgumentParser(
        prog="./run chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(rows)}")
    parser.add_argument("--full", action="store_true", help="at the scale of the table, which takes long")
    parser.add_argument("--seed", type=int, help="of the dice; without, another one each time")
    parser.add_argument("--database", choices=["SQLite", "PostgreSQL"], help="only this one")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    named = {name.upper(): name for name in rows}
    if unknown := [name for name in options.rows if name.upper() not in named]:
        print(f"there is no row {unknown[0]!r}; there are: {', '.join(rows)}", file=sys.stderr)
        return 64
    seed = options.seed if options.seed is not None else secrets.randbelow(10_000)
    chosen = [named[name.upper()] for name in options.rows] or [name for name in rows if name != "suites"]
    every = bool(options.rows) or options.full
    with Databases() as databases:
        told = [
            perform(name, rows[name], database, seed, options.full, databases.fresh)
            for number, name in enumerate(chosen)
            for database in where(rows[name].DATABASES, options.database, None if every else seed + number)
        ]
    if options.json:
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    failed = sum(1 for row in told if row["mark"] == "FAILS")
    left_out = sum(1 for row in told if row["mark"] == "CANNOT RUN HERE")
    not_run = f"; {left_out} cannot run here: nothing of them was checked" if left_out else ""
    print(f"{len(told) - failed - left_out} of {len(told)} rows hold{not_run}")
    return 1 if failed else 0


def where(databases: tuple[str, ...], only: str | None, turn: int | None) -> list[str]:
    """On which of its databases a row is played; `turn`: on one."""
    wanted = [database for database in databases if only in (None, database) or database == "none"]
    return wanted if turn is None or not wanted else [wanted[turn % len(wanted)]]


class Databases(contextlib.ExitStack):
    """Fresh ones of both kinds; PostgreSQL is started when the first row wants it."""

    _server: str | None = None

    def fresh(self, kind: str, folder: Path, stack: contextlib.ExitStack) -> str:
        if kind == "SQLite":
            return f"sqlite:///{folder}/chaos.db"
        if kind == "none":
            return ""  # the row makes its own
        if self._server is None:
            self._server = self.enter_context(servers.postgres_server())
        url = servers.create_database(self._server)
        stack.callback(servers.drop_database, url)
        upgrade(url)
        return url


def perform(
    name: str, row: Any, database: str, seed: int, full: bool, fresh: Callable[[str, Path, contextlib.ExitStack], str]
) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"gristmill-chaos-{name}-"))
    began = time.monotonic()
    mark = "holds"
    try:
        with contextlib.ExitStack() as stack:
            play = Play(seed, full, folder, fresh(database, folder, stack), database, stack)
            told = "; NOT FAST ENOUGH in this short form: ".join([row.play(play), *play.missed])
    except Impossible as reason:
        mark, told = "CANNOT RUN HERE", str(reason)
    except Violation as violation:
        mark, told = "FAILS", str(violation)
    except Exception:
        mark, told = "FAILS", traceback.format_exc()
    took = time.monotonic() - began
    where = "" if database == "none" else f" · {database}"
    print(f"{mark}  {name} {row.TITLE}{where}: {told}  (seed {seed}, {took:.0f} s)", flush=True)
    if mark == "FAILS":
        only = "" if database == "none" else f" --database {database}"
        print(
            f"       again: ./run chaos {name} --seed {seed}{' --full' if full else ''}{only}; its record: {folder}",
            flush=True,
        )
    else:
        shutil.rmtree(folder, ignore_errors=True)
    figure = {"row": name, "title": row.TITLE, "database": database, "seed": seed, "full": full}
    return {**figure, "mark": mark, "told": told, "seconds": round(took)}


if __name__ == "__main__":
    sys.exit(main())
