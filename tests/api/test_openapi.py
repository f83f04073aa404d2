"""What the OpenAPI document says is what the server does: schemathesis asks for everything, right and wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill import Mill
from tests.api.server import Served, serving

pytestmark = pytest.mark.alike

# What these take besides their shape (arguments of a task, times of a schedule, so many steps since then) is for the
# application to judge.
JUDGED = ["POST /api/jobs", "POST /api/jobs/many", "PATCH /api/jobs/{job}", "POST /api/runs", "POST /api/runs/stalest"]
JUDGED += [
    "POST /api/schedules",
    "POST /api/subjects",
    "POST /api/subjects/start",
    "PATCH /api/queues/{queue}",
    "POST /api/tokens",
    "GET /api/history",
]
PATIENCE = 120  # seconds: a machine may be busy, and nothing here asserts how long something takes
SETTINGS = """
[[operations]]
include-name = "%s"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422"]
"""


def find_no_fault(url: str, folder: Path, token: str | None, *options: str) -> None:
    settings = folder / "schemathesis.toml"
    settings.write_text("".join(SETTINGS % name for name in JUDGED))
    with serving(url) as server:
        line = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(settings), "run"]
        line += [f"{server.address}/openapi.json", "--exclude-path", "/api/events", "--no-color", "--seed", "1"]
        line += ["--request-timeout", str(PATIENCE)]
        line += ["--header", f"Authorization: Bearer {token}"] if token else []
        done = subprocess.run([*line, *options], cwd=folder, capture_output=True, text=True)
        told = re.split("= (?=ERRORS|FAILURES)", done.stdout, maxsplit=1)[-1]
        assert done.returncode == 0, f"{told[:20_000]}\n{done.stderr[-2000:]}"
        assert [line for line in server.log if "bug" in line or "Traceback" in line] == []


@pytest.mark.slow  # of ./run chaos suites
@pytest.mark.timeout(900)
def test_schemathesis_finds_no_fault(filled_url: str, tmp_path: Path, mill: Mill) -> None:
    token = mill.create_token("fuzz", "admin").text
    find_no_fault(filled_url, tmp_path, token, "--phases", "examples,fuzzing", "--max-examples", "3")


@pytest.mark.parametrize(
    ("label", "right"),
    [
        *((label, True) for label in ("k", "k" * 200, "k" * 200 + "=" + "v" * 200, "k=a=b")),
        *((label, False) for label in ("k" * 201, "k=" + "v" * 201, "=v", "k=")),
    ],
)
def test_the_document_says_which_labels_there_can_be(shared: Served, label: str, right: bool) -> None:
    with shared.client() as client:
        asked = client.get("/openapi.json").json()["paths"]["/api/subjects"]["get"]["parameters"]
        schema = next(one["schema"] for one in asked if one["name"] == "label")["anyOf"][0]["items"]
        assert bool(re.search(schema["pattern"], label)) == right
        assert client.get("/api/subjects", params={"label": label}).status_code == (200 if right else 422)
