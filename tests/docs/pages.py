"""The documentation as the tests see it: pages, their fenced blocks, and the programs that these form.

In a page, the Python blocks of one `##` section form one program; those before the first section come before each of
them. Blocks that define things become a module, which worker processes import. Blocks that use `mill`, or say with
`# → ` what they print, are run against it one after another.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.servers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_ARROW = re.compile(r"#\s*→ ?(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, where it is."""

    page: Path
    section: str
    line: int
    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    return [block for block in _blocks(page) if block.language in languages]


def _blocks(page: Path) -> Iterator[Block]:
    section, language, start, lines = "", None, 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("## "):
            section = line[3:].strip()
        elif line.startswith("```"):
            if language is None:
                language, start, lines = line[3:].strip(), number, []
            else:
                yield Block(page, section, start, language, "\n".join(lines) + "\n")
                language = None
        else:
            lines.append(line)


@dataclass(frozen=True)
class Program:
    """The Python of one section of a page."""

    page: Path
    section: str
    definitions: tuple[Block, ...]
    uses: tuple[Block, ...]

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", f"{self.page.stem} {self.section}").lower().strip("_")

    def module(self, folder: Path) -> ModuleType:
        """The definitions as a module in `folder`, with the line numbers of the page."""
        lines: list[str] = []
        for block in self.definitions:
            lines += [""] * (block.line - len(lines))
            lines += block.text.splitlines()
        (folder / f"{self.name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        importlib.invalidate_caches()
        sys.modules.pop(self.name, None)
        return importlib.import_module(self.name)

    def run_uses(self, names: dict[str, Any]) -> None:
        for block in self.uses:
            code = compile("\n" * block.line + block.text, str(self.page), "exec")
            exec(code, names)  # noqa: S102

    @property
    def promised(self) -> list[str]:
        """What the page says that it prints."""
        return [line.strip() for block in self.uses for line in _ARROW.findall(block.text)]


def programs(page: Path) -> list[Program]:
    found = blocks(page, "python")
    sections = list(dict.fromkeys(block.section for block in found if block.section))
    return [_program(page, section, [b for b in found if b.section in ("", section)]) for section in sections]


def _program(page: Path, section: str, found: list[Block]) -> Program:
    uses = tuple(block for block in found if _is_use(block))
    return Program(page, section, tuple(block for block in found if block not in uses), uses)


def _is_use(block: Block) -> bool:
    names = {node.id for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name)}
    return "mill" in names or bool(_ARROW.search(block.text))
