"""`./run bench clerk [NAME …] [--quick]`: all measurements of clerk, or those that are named."""

from __future__ import annotations

import argparse
import importlib
import sys

from bench.clerk.figures import tell

NAMES = ("ocr", "fetch", "whole", "memory", "compile", "sites")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench clerk", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small numbers, one round: to see that it works")
    options = parser.parse_args()
    modules = [importlib.import_module(f"bench.clerk.{name}") for name in options.names or NAMES]
    return int(tell(*(module.measure for module in modules), quick=options.quick) > 0)


if __name__ == "__main__":
    sys.exit(main())
