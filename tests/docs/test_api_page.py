"""What the page about the HTTP API shows is what a real server answers."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import httpx

from gristmill import Mill
from tests.api.server import serving
from tests.docs.pages import blocks, programs
from tests.servers import ROOT

PAGE = ROOT / "docs" / "api.md"
_EXPECTED = re.compile(r"# → (\d+) (.*)")


def examples() -> list[tuple[str, list[str], int, Any]]:
    """(section, the words of a curl, the status and a part of the answer that it promises)."""
    found = []
    for block in blocks(PAGE, "sh"):
        lines = block.text.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("curl ") and (promised := _EXPECTED.match(following)):
                found.append((block.section, shlex.split(line)[1:], int(promised[1]), json.loads(promised[2])))
    return found


def ask(client: httpx.Client, words: list[str]) -> httpx.Response:
    """As curl would: `--json BODY` is a POST."""
    body = words[words.index("--json") + 1] if "--json" in words else None
    path = words[-1].removeprefix("localhost:8080")
    kind = {"Content-Type": "application/json"}
    return client.get(path) if body is None else client.post(path, content=body, headers=kind)


def is_part(promised: Any, answered: Any) -> bool:
    if isinstance(promised, dict):
        return isinstance(answered, dict) and all(is_part(value, answered.get(name)) for name, value in promised.items())
    return bool(promised == answered)


def test_the_examples_answer_what_the_page_says(sqlite_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("abc")
    (tmp_path / "texts" / "b.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    program = next(program for program in programs(PAGE) if program.section == "Your own")
    module = program.module(tmp_path)
    app = tmp_path / f"{program.name}.py"
    shown = examples()
    assert len(shown) > 12
    with (
        serving(sqlite_url, app=app) as server,
        server.client() as client,
        Mill.open(sqlite_url, module.letters, module.greet) as mill,
    ):
        for section, words, status, promised in shown:
            if section == "Looking" and mill.jobs(state="queued"):
                mill.work(until="drained", slots=1)
            answer = ask(client, words)
            assert (words, answer.status_code) == (words, status), answer.text
            assert is_part(promised, answer.json()), (words, answer.text)
        own = client.post("/shop/greet/dan", json={})
        assert mill.job(own.json()["job"]).args == {"name": "dan"}
    assert os.fspath(app)


def test_every_path_on_the_page_is_a_route() -> None:
    from gristmill.api.routes import ROUTERS

    known = {f"/api{route.path}" for router in ROUTERS for route in router.routes}
    shapes = [re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path)) for path in known]
    for path in set(re.findall(r"/api/[\w/-]*\w", PAGE.read_text())):
        assert any(re.fullmatch(shape, path) for shape in shapes), path
