"""`./run chaos [NAME …]`: breaks things on purpose and checks that nothing is lost. Without a name, all of them."""

from __future__ import annotations

import importlib
import sys

PLAYS = ("hosts",)  # modules of this package, each with a `main() -> int`


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PLAYS]
    if unknown:
        print(f"there is no {unknown[0]!r}; there are: {', '.join(PLAYS)}", file=sys.stderr)
        return 64
    return max([int(importlib.import_module(f"chaos.{name}").main()) for name in names or PLAYS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
