"""The page about schedules: the manifest in it is one that Kubernetes takes, and calls a command that exists."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import yaml

from gristmill.cron import Cron
from tests.docs.pages import blocks
from tests.docs.test_coverage import command_of
from tests.servers import ROOT

[BLOCK] = blocks(ROOT / "docs" / "schedules.md", "yaml")
MANIFEST: dict[str, Any] = yaml.safe_load(BLOCK.text)


def test_kubernetes_takes_the_manifest() -> None:
    kubernetes_validate.validate(MANIFEST, kubernetes_validate.latest_version(), strict=True)


def test_its_times_are_what_this_program_understands_too() -> None:
    spec = MANIFEST["spec"]
    assert Cron(spec["schedule"], spec["timeZone"]).words() == "At 03:00 every day (Europe/Berlin)"


def test_the_command_in_it_can_be_typed_and_its_key_is_the_jobs_name() -> None:
    [container] = MANIFEST["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    command, rest = command_of(words)
    with command.make_context(command.name, rest) as ctx:
        assert (program, ctx.params["task"], ctx.params["once"]) == ("gristmill", "clean", "$(JOB_NAME)")
    [variable] = container["env"]
    assert variable["name"] == "JOB_NAME"
    assert "job-name" in variable["valueFrom"]["fieldRef"]["fieldPath"]
