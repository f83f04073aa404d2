"""Installing, changing and removing services, with programs on PATH that stand in for systemctl, launchctl and others.

They write down how they were called. The one for launchctl also knows what is loaded, and refuses as the real one does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from clerk import services
from clerk.config import Config
from clerk.errors import ClerkError
from clerk.services import launchd, systemd

_RECORDS = """#!/bin/sh
echo "${0##*/} $*" >> "$STAND_IN/calls"
test ! -e "$STAND_IN/refuses" || { echo "Failed: no" >&2; exit 1; }
"""
_LAUNCHCTL = """
case $1 in
    print) test -e "$STAND_IN/loaded-${2##*/}" ;;
    bootout) rm "$STAND_IN/loaded-${2##*/}" 2>/dev/null || exit 3 ;;
    bootstrap)
        rm "$STAND_IN/busy" 2>/dev/null && exit 37
        name=${3##*/}; name=${name%.plist}
        test ! -e "$STAND_IN/loaded-$name" && touch "$STAND_IN/loaded-$name" ;;
esac
"""
_KUBECTL = """
test "$1" != get -o -e "$STAND_IN/scaled"
"""


class Machine:
    """A folder of services, and what the programs there were told."""

    def __init__(self, root: Path) -> None:
        self.env_file = root / "app" / ".env"
        self.folder = root / "services"
        self.state = root / "state"
        self.bin = root / "bin"
        for folder in (self.env_file.parent, self.state, self.bin):
            folder.mkdir()
        self.env_file.write_text("")
        for name, more in {"systemctl": "", "docker": "", "kubectl": _KUBECTL, "launchctl": _LAUNCHCTL}.items():
            (self.bin / name).write_text(_RECORDS + more)
            (self.bin / name).chmod(0o755)

    def install(self, target: str, **counts: int) -> None:
        every = dict.fromkeys(("fetch", "ocr", "compilation", "extraction", "deploy"), 0)
        config = Config(**{f"{stage}_workers": count for stage, count in {**every, **counts}.items()})  # type: ignore[arg-type]
        services.install(target, config, self.env_file)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def calls(self) -> list[str]:
        """Since the last time."""
        path = self.state / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def loaded(self) -> list[str]:
        return sorted(path.name.removeprefix("loaded-") for path in self.state.glob("loaded-*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    here = Machine(tmp_path)
    monkeypatch.setenv("STAND_IN", str(here.state))
    monkeypatch.setenv("PATH", f"{here.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "FOLDER", here.folder)
    monkeypatch.setattr(systemd, "RUNNING", here.state)
    monkeypatch.setattr(launchd, "folder", lambda _: here.folder)
    return here


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


TIMERS = "clerk-reconcile.timer clerk-scheduler.timer"
CLOCK = ["clerk-reconcile.service", "clerk-reconcile.timer", "clerk-scheduler.service", "clerk-scheduler.timer"]


@pytest.mark.usefixtures("as_root")
def test_units_are_enabled_changed_lowered_reloaded_and_removed(machine: Machine) -> None:
    machine.install("systemd", ocr=2)
    assert machine.files() == [*CLOCK, "clerk-worker@ocr-1.service", "clerk-worker@ocr-2.service"]
    both = "clerk-worker@ocr-1.service clerk-worker@ocr-2.service"
    assert machine.calls() == ["systemctl daemon-reload", f"systemctl enable --now {TIMERS} {both}"]

    machine.install("systemd", ocr=2)
    again = machine.calls()
    assert again == ["systemctl daemon-reload", f"systemctl enable --now {TIMERS} {both}"]  # which changes nothing

    machine.install("systemd", ocr=1)
    assert machine.files() == [*CLOCK, "clerk-worker@ocr-1.service"]
    assert machine.calls()[0] == "systemctl disable --now clerk-worker@ocr-2.service"

    services.reload("systemd")
    assert machine.calls() == ["systemctl restart clerk-worker@ocr-1.service"]

    (machine.folder / "clerk-worker@ocr-1.service").write_text("# made by clerk install-workers, long ago")
    machine.install("systemd", ocr=1)
    assert machine.calls()[-1] == "systemctl restart clerk-worker@ocr-1.service"

    gone = services.uninstall("systemd")
    assert [path.name for path in gone] == [*CLOCK, "clerk-worker@ocr-1.service"]
    disabled = f"systemctl disable --now {TIMERS} clerk-worker@ocr-1.service"
    assert machine.calls() == [disabled, "systemctl daemon-reload"]
    assert machine.files() == []


@pytest.mark.usefixtures("as_user")
def test_agents_are_loaded_changed_lowered_reloaded_and_removed(machine: Machine) -> None:
    machine.install("launchd", ocr=2)
    clock = ["com.civicband.reconcile", "com.civicband.scheduler"]
    assert machine.loaded() == [*clock, "com.civicband.worker.ocr.1", "com.civicband.worker.ocr.2"]
    assert (machine.env_file.parent / "logs").is_dir()
    machine.calls()

    machine.install("launchd", ocr=2)
    assert {call.split()[1] for call in machine.calls()} == {"print"}

    machine.install("launchd", ocr=1)
    domain = f"gui/{os.getuid()}"
    assert f"launchctl bootout {domain}/com.civicband.worker.ocr.2" in machine.calls()
    assert machine.loaded() == [*clock, "com.civicband.worker.ocr.1"]
    assert machine.files() == [f"{name}.plist" for name in machine.loaded()]

    services.reload("launchd")
    assert machine.calls() == [f"launchctl kill SIGTERM {domain}/com.civicband.worker.ocr.1"]

    path = machine.folder / "com.civicband.worker.ocr.1.plist"
    path.write_text("<!-- made by clerk install-workers -->")
    (machine.state / "busy").touch()  # the old one has not gone yet
    machine.install("launchd", ocr=1)
    told = [call for call in machine.calls() if "ocr.1" in call]
    there = f"{domain}/com.civicband.worker.ocr.1"
    load = f"launchctl bootstrap {domain} {path}"
    assert told == [f"launchctl print {there}", f"launchctl bootout {there}", load, load]

    assert len(services.uninstall("launchd")) == 3
    assert machine.loaded() == machine.files() == []


@pytest.mark.usefixtures("as_root")
def test_an_uninstall_leaves_what_is_not_clerks(machine: Machine) -> None:
    machine.install("systemd", ocr=1)
    others = ["clerk-worker@.service", "clerk-worker@mine-1.service", "postgresql.service", "clerk-worker@ocr-7.service"]
    for name in others:
        (machine.folder / name).write_text("[Unit]\nDescription=written by hand\n")
    services.uninstall("systemd")
    assert machine.files() == sorted(others)


@pytest.mark.parametrize("target", services.TARGETS)
def test_with_nothing_installed_an_uninstall_is_fine_and_a_reload_is_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(machine.env_file.parent)
    assert services.uninstall(target) == []
    assert machine.calls() == []
    with pytest.raises(ClerkError, match=f"clerk install-workers --target {target}") as raised:
        services.reload(target)
    assert raised.value.exit_code == 1


def test_who_may_not_install_is_refused_before_anything_is_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClerkError, match="sudo clerk install-workers") as raised:
        machine.install("systemd", ocr=1)
    assert raised.value.exit_code == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ClerkError, match="without sudo"):
        machine.install("launchd", ocr=1)
    assert not machine.folder.exists()
    assert machine.calls() == []


@pytest.mark.usefixtures("as_root")
def test_where_systemd_does_not_run_nothing_is_written_and_what_is_there_can_be_removed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("systemd", ocr=1)
    machine.calls()
    monkeypatch.setattr(systemd, "RUNNING", machine.state / "none")
    for asked in (lambda: machine.install("systemd", ocr=2), lambda: services.uninstall("systemd")):
        with pytest.raises(ClerkError, match="systemd does not run this machine; --output DIR"):
            asked()
    assert machine.files() == [*CLOCK, "clerk-worker@ocr-1.service"]
    services.uninstall("systemd", output=machine.folder)
    assert (machine.files(), machine.calls()) == ([], [])


@pytest.mark.usefixtures("as_root")
def test_a_program_that_fails_or_is_missing_is_named_and_the_next_install_goes_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.state / "refuses").touch()
    with pytest.raises(ClerkError, match="`systemctl daemon-reload` failed: Failed: no"):
        machine.install("systemd", ocr=1)
    (machine.state / "refuses").unlink()
    machine.calls()
    machine.install("systemd", ocr=1)
    assert len(machine.calls()) == 2
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(ClerkError, match="'systemctl' is not on PATH"):
        services.uninstall("systemd")
    assert "clerk-worker@ocr-1.service" in machine.files()


@pytest.mark.usefixtures("as_root")
def test_an_uninstall_that_died_halfway_is_finished_by_the_next(machine: Machine) -> None:
    machine.install("systemd", ocr=2)
    (machine.folder / "clerk-worker@ocr-1.service").unlink()
    assert len(services.uninstall("systemd")) == 5
    assert machine.files() == []


@pytest.mark.usefixtures("as_root")
def test_many_workers_are_told_some_at_a_time(machine: Machine) -> None:
    machine.install("systemd", fetch=450)
    _, *enabled = machine.calls()
    assert [len(call.split()) - 3 for call in enabled] == [200, 200, 52]


@pytest.mark.parametrize("target", services.TARGETS)
def test_with_an_output_folder_files_are_only_written_and_removed_there(machine: Machine, target: str) -> None:
    out = machine.env_file.parent / "out"
    config = Config(fetch_workers=1, ocr_workers=1, compilation_workers=1, extraction_workers=1, deploy_workers=1)
    installed = services.install(target, config, machine.env_file, out)
    assert all(path.read_text() == text for path, text in installed)
    assert services.install(target, config, machine.env_file, out) == installed
    assert services.uninstall(target, output=out) == sorted(path for path, _ in installed)
    assert list(out.iterdir()) == []
    assert machine.calls() == []


@pytest.mark.parametrize(("target", "name"), [("compose", "compose.yaml"), ("kubernetes", "kubernetes/base/workers.yaml")])
def test_a_file_that_somebody_else_wrote_is_not_overwritten(machine: Machine, target: str, name: str) -> None:
    path = machine.env_file.parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("services: {}\n")
    with pytest.raises(ClerkError, match="was not made by clerk"):
        machine.install(target, ocr=1)
    assert path.read_text() == "services: {}\n"
    assert [p.name for p in path.parent.iterdir() if p.name != ".env"] == [path.name]


def test_containers_are_made_anew_of_what_is_installed_now_and_servers_are_left_alone(machine: Machine) -> None:
    machine.install("compose", ocr=1)
    services.reload("compose", machine.env_file)
    [said] = machine.calls()
    compose = machine.env_file.parent / "compose.yaml"
    options = "up -d --no-deps --force-recreate --timeout 45"
    named = said.removeprefix(f"docker compose --env-file {machine.env_file} --file {compose} {options} ").split()
    made = yaml.safe_load(compose.read_text())["services"]
    assert named == [name for name in made if name not in ("upgrade", "postgres", "redis")]
    assert "postgres" in made


@pytest.mark.parametrize("manifests", ["base", "keda"])
def test_pods_are_made_anew_of_the_manifests_of_now(machine: Machine, manifests: str) -> None:
    """With those for KEDA only where its scalers are in the cluster."""
    if manifests == "keda":
        (machine.state / "scaled").touch()
    machine.install("kubernetes", ocr=1)
    services.reload("kubernetes", machine.env_file)
    folder = machine.env_file.parent / "kubernetes"
    assert machine.calls() == [
        f"kubectl get --filename {folder}/keda/scalers.yaml",
        f"kubectl apply -k {folder}/{manifests}",
        "kubectl rollout restart deployment --selector app.kubernetes.io/name=clerk",
    ]


def test_without_any_worker_there_are_no_scalers_to_look_for(machine: Machine) -> None:
    machine.install("kubernetes")
    services.reload("kubernetes", machine.env_file)
    assert machine.calls()[0] == f"kubectl apply -k {machine.env_file.parent}/kubernetes/base"


def test_a_type_with_no_workers_any_more_is_gone_from_the_manifests(machine: Machine) -> None:
    machine.install("kubernetes", ocr=1)
    assert "ocr-workers" in (machine.env_file.parent / "kubernetes" / "base" / "workers.yaml").read_text()
    machine.install("kubernetes")
    left = sorted(path.name for path in (machine.env_file.parent / "kubernetes").rglob("*"))
    assert left == ["base", "clock.yaml", "kustomization.yaml", "storage.yaml", "upgrade.yaml"]


@pytest.mark.usefixtures("as_root")
def test_a_folder_that_cannot_be_written_is_named(machine: Machine) -> None:
    machine.folder.write_text("a file")
    with pytest.raises(ClerkError, match=r"clerk-reconcile\.service cannot be written"):
        machine.install("systemd", ocr=1)
