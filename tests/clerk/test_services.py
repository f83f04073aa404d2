"""What `install-workers` writes: exact names, files that their readers accept, and no secret in any of them."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clerk import services
from clerk.config import Config, load
from clerk.errors import ClerkError, Usage
from clerk.services import kubernetes, sizing
from clerk.services.plan import cron_lines
from clerk.services.yaml import dumps
from gristmill.cron import Cron
from tests.clerk.units import problems
from tests.servers import ROOT

SECRETS = {
    "DATABASE_URL": "postgresql://clerk:hunter22@db.example/clerk",
    "REDIS_URL": "rediss://:redispass@r.example:6379/0",
    "DASHBOARD_TOKEN": "dash-token-1",
    "SENTRY_DSN": "https://sentrykey@sentry.example/1",
    "LOKI_URL": "https://me:lokipass@loki.example",
}
COUNTS = {"FETCH_WORKERS": 3, "OCR_WORKERS": 2, "COMPILATION_WORKERS": 1, "EXTRACTION_WORKERS": 1, "DEPLOY_WORKERS": 0}
WORKERS = ["compilation-1", "extraction-1", "fetch-1", "fetch-2", "fetch-3", "ocr-1", "ocr-2"]


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    """In a folder whose name is hard to write down."""
    folder = tmp_path / "a folder: 100% $HOME"
    folder.mkdir()
    path = folder / ".env"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**SECRETS, **COUNTS}.items()))
    path.chmod(0o600)
    return path


def made(target: str, env_file: Path, **changed: str) -> dict[str, str]:
    config = load(changed, env_file.parent)
    out = env_file.parent / "out"
    return {str(p.relative_to(out)): text for p, text in services.install(target, config, env_file, out, dry_run=True)}


# ---- how many


@pytest.mark.parametrize(
    ("cores", "ram", "expected"),
    [
        (8, 32, (16, 8, 2, 4, 2)),
        (10, 32, (20, 10, 2, 4, 2)),
        (8, 16, (16, 8, 2, 2, 2)),
        (16, 64, (32, 16, 2, 8, 2)),
        (1, 2, (2, 1, 2, 1, 2)),
    ],
)
def test_the_counts_are_those_of_the_tuning_table(cores: int, ram: float, expected: tuple[int, ...]) -> None:
    names = ("FETCH_WORKERS", "OCR_WORKERS", "COMPILATION_WORKERS", "EXTRACTION_WORKERS", "DEPLOY_WORKERS")
    assert services.counts(cores, ram) == dict(zip(names, expected, strict=True))


def test_worker_count_prints_what_can_be_pasted_into_dotenv() -> None:
    assert services.count_text(8, 32) == (
        "System: 8 cores, 32.0GB RAM\n"
        "Recommended worker counts:\n"
        "  FETCH_WORKERS=16\n  OCR_WORKERS=8\n  COMPILATION_WORKERS=2\n  EXTRACTION_WORKERS=4\n  DEPLOY_WORKERS=2"
    )
    cores, ram = sizing.machine()
    assert services.count_text().startswith(f"System: {cores} cores, {ram:.1f}GB RAM\n")
    assert services.count_text(ram_gb=1).startswith(f"System: {cores} cores, 1.0GB RAM\n")


@pytest.mark.parametrize(
    ("seen", "built"), [(31.3, 32), (62.8, 64), (15.5, 16), (7.63, 8), (32, 32), (24.5, 24.5), (3.8, 3.8)]
)
def test_what_the_kernel_keeps_is_part_of_the_machine(seen: float, built: float) -> None:
    assert sizing.built_with(seen) == built


@pytest.mark.parametrize(("cores", "ram"), [(0, 8), (-1, 8), (8, 0), (8, -1), (8, float("nan")), (8, float("inf"))])
def test_no_machine_is_like_that(cores: int, ram: float) -> None:
    with pytest.raises(Usage, match="no machine has"):
        services.counts(cores, ram)


def test_what_is_not_configured_is_what_this_machine_can_do() -> None:
    usual = services.counts(*sizing.machine())
    assert sizing.wanted(Config(ocr_workers=0)) == {
        "fetch": usual["FETCH_WORKERS"],
        "ocr": 0,
        "compilation": 2,
        "extraction": usual["EXTRACTION_WORKERS"],
        "deploy": 2,
    }


# ---- names, words and secrets, of all targets


def test_check_14_a_dry_run_shows_the_exact_names_and_changes_nothing(env_file: Path) -> None:
    assert sorted(made("launchd", env_file)) == sorted(
        [f"com.civicband.worker.{worker.replace('-', '.')}.plist" for worker in WORKERS]
        + ["com.civicband.scheduler.plist", "com.civicband.reconcile.plist"]
    )
    assert sorted(made("systemd", env_file)) == sorted(
        [f"clerk-worker@{worker}.service" for worker in WORKERS]
        + [f"clerk-{tick}.{kind}" for tick in ("scheduler", "reconcile") for kind in ("service", "timer")]
    )
    names = list(yaml.safe_load(made("compose", env_file)["compose.yaml"])["services"])
    kinds = ["fetch-workers", "ocr-workers", "compilation-workers", "extraction-workers", "deploy-workers"]
    assert names == ["upgrade", *kinds, "scheduler", "reconcile"]
    assert [path.name for path in env_file.parent.iterdir()] == [".env"]


def commands(target: str, env_file: Path, **changed: str) -> list[list[str]]:
    """Every command of clerk's that the files call, without where the program is."""
    found = []
    for name, text in made(target, env_file, **changed).items():
        if target == "launchd":
            found.append(plistlib.loads(text.encode())["ProgramArguments"][1:])
        elif target == "systemd":
            found += [line.split(" ")[1:] for line in text.splitlines() if line.startswith("ExecStart=")]
        elif name == "compose.yaml":
            for service in yaml.safe_load(text)["services"].values():
                words = " ".join(service["command"])
                found += [match.split()[1:] for match in re.findall(r"clerk [^;]*", words)]
        else:
            found += [words[1:] for words in _values(list(yaml.safe_load_all(text)), "command")]
    return found


def _values(tree: Any, key: str) -> list[Any]:
    if isinstance(tree, dict):
        return [each for name, value in tree.items() for each in ([value] if name == key else _values(value, key))]
    return [each for value in tree for each in _values(value, key)] if isinstance(tree, list) else []


@pytest.mark.parametrize("target", services.TARGETS)
def test_case_25_services_never_burst_and_call_what_clerk_offers(target: str, env_file: Path) -> None:
    allowed: set[tuple[str, ...]] = {("worker", stage) for stage in ("fetch", "ocr", "compilation", "extraction", "deploy")}
    allowed |= {("update", "--next", "--batch-size", "1"), ("reconcile",), ("db", "upgrade")}
    found = {tuple(words) for words in commands(target, env_file)}
    assert found <= allowed
    assert {("worker", "ocr"), ("update", "--next", "--batch-size", "1"), ("reconcile",)} <= found
    assert "burst" not in str(made(target, env_file))


@pytest.mark.parametrize("target", services.TARGETS)
def test_no_secret_is_in_any_file(target: str, env_file: Path) -> None:
    for text in made(target, env_file).values():
        assert "made by clerk install-workers" in text[:300]
        for secret in ("hunter22", "redispass", "dash-token-1", "sentrykey", "lokipass"):
            assert secret not in text


@pytest.mark.parametrize("target", services.TARGETS)
def test_more_sites_are_taken_at_a_time_where_that_was_said(target: str, env_file: Path) -> None:
    config = load({"SITES_PER_MINUTE": "4"}, env_file.parent)
    texts = [text for _, text in services.install(target, config, env_file, None, True)]
    assert re.search(r"--batch-size(\W|string)+4\b", " ".join(texts))
    with pytest.raises(Usage, match="SITES_PER_MINUTE"):
        load({"SITES_PER_MINUTE": "0"}, env_file.parent)


def test_what_cannot_be_installed_is_said(env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (None, env_file.with_name("none")):
        with pytest.raises(ClerkError, match=r"there is no \.env") as raised:
            services.install("compose", Config(), missing)
        assert raised.value.exit_code == 1
    with pytest.raises(Usage, match="there is no target 'upstart'; there are: launchd, systemd, compose, kubernetes"):
        services.install("upstart", Config(), env_file)
    with pytest.raises(Usage, match="OCR_WORKERS") as usage:
        made("systemd", env_file, OCR_WORKERS="-1")
    assert usage.value.exit_code == 2
    with pytest.raises(ClerkError, match="no service file can hold"):
        services.install("systemd", Config(log_dir=Path("a\nUser=root")), env_file, None, True)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClerkError, match="'clerk' is not on PATH"):
        services.install("systemd", Config(), env_file, None, True)


def test_the_cron_lines_say_what_the_services_do() -> None:
    every_minute, every_quarter = cron_lines(Path("/srv/clerk"), Path("clerk"), 4)
    assert every_minute == "* * * * * cd /srv/clerk && clerk update --next --batch-size 4"
    assert every_quarter == "*/15 * * * * cd /srv/clerk && clerk reconcile"
    for line in (every_minute, every_quarter):
        assert Cron(" ".join(line.split(" ")[:5])).words()


# ---- launchd


def test_case_25_agents_run_at_load_are_kept_alive_and_find_homebrews_programs(env_file: Path) -> None:
    found = {name: plistlib.loads(text.encode()) for name, text in made("launchd", env_file).items()}
    for name, keys in found.items():
        assert f"{keys['Label']}.plist" == name
        assert keys["RunAtLoad"] is True
        assert {"/opt/homebrew/bin", "/usr/local/bin", "/usr/bin"} <= set(keys["EnvironmentVariables"]["PATH"].split(":"))
        assert keys["WorkingDirectory"] == str(env_file.parent)
        assert Path(keys["ProgramArguments"][0]).is_file()
        assert keys["StandardErrorPath"].startswith(str(env_file.parent / "logs"))
    second = found["com.civicband.worker.ocr.2.plist"]
    assert (second["KeepAlive"], second["ExitTimeOut"]) == (True, 45)
    assert second["EnvironmentVariables"]["CLERK_WORKER_NUMBER"] == "2"
    ticks = [found[f"com.civicband.{name}.plist"] for name in ("scheduler", "reconcile")]
    assert [keys["StartInterval"] for keys in ticks] == [60, 900]
    assert not any("KeepAlive" in keys for keys in ticks)


# ---- systemd


def test_units_say_only_what_systemd_knows(env_file: Path) -> None:
    for name, text in made("systemd", env_file).items():
        assert problems(name, text) == []


def test_units_start_at_boot_come_back_are_bounded_and_log_to_the_journal(env_file: Path) -> None:
    units = made("systemd", env_file)
    limits = {
        "fetch-1": ("200M", "300M", "100%"),
        "ocr-2": ("500M", "750M", "125%"),
        "extraction-1": ("8000M", "12000M", "200%"),
    }
    for name, (high, most, cpu) in limits.items():
        lines = units[f"clerk-worker@{name}.service"].splitlines()
        assert {f"MemoryHigh={high}", f"MemoryMax={most}", f"CPUQuota={cpu}"} <= set(lines)
        assert {"Restart=always", "StartLimitIntervalSec=0", "WantedBy=multi-user.target"} <= set(lines)
        assert {"StandardOutput=journal", "StandardError=journal", "KillMode=mixed", "TimeoutStopSec=45"} <= set(lines)
        assert f"Environment=CLERK_WORKER_NUMBER={name[-1]}" in lines
    assert "OnCalendar=*:0/1" in units["clerk-scheduler.timer"]
    assert "OnCalendar=*:0/15" in units["clerk-reconcile.timer"]
    assert "[Install]" not in units["clerk-scheduler.service"]


def test_the_units_run_as_who_may_read_dotenv(env_file: Path) -> None:
    if os.geteuid() == 0:
        os.chown(env_file, 12345, 12345)
    owner = env_file.owner() if os.geteuid() else "12345"
    assert f"User={owner}\n" in made("systemd", env_file)["clerk-worker@ocr-1.service"]


def test_systemd_verifies_the_units_and_would_start_them_at_boot(env_file: Path, tmp_path: Path) -> None:
    """Its own opinion, where it is installed; test_units_say_only_what_systemd_knows is everywhere."""
    if not shutil.which("systemd-analyze") or not shutil.which("systemctl"):
        pytest.skip("no systemd here: the units were only checked by the parser of these tests")
    root = tmp_path / "root"
    folder = root / "etc" / "systemd" / "system"
    paths = [path for path, _ in services.install("systemd", load({}, env_file.parent), env_file, folder)]
    run = subprocess.run(["systemd-analyze", "verify", *map(str, paths)], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    started = [path.name for path in paths if "@" in path.name or path.suffix == ".timer"]
    subprocess.run(["systemctl", f"--root={root}", "enable", *started], check=True, capture_output=True)
    assert sorted(path.name for path in folder.glob("*.wants/*")) == started


# ---- Compose


@pytest.mark.parametrize(
    ("changed", "servers"),
    [
        ({}, set()),
        ({"DATABASE_URL": "sqlite:///civic.db"}, {"postgres"}),
        ({"DATABASE_URL": "postgresql://clerk:pw@postgres/clerk", "REDIS_URL": "redis://redis:6379"}, {"postgres", "redis"}),
    ],
)
def test_compose_takes_the_file(env_file: Path, tmp_path: Path, changed: dict[str, str], servers: set[str]) -> None:
    text = made("compose", env_file, **changed)["compose.yaml"]
    (tmp_path / "compose.yaml").write_text(text)
    check = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    run = subprocess.run([*check, str(tmp_path / "compose.yaml")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    content = yaml.safe_load(text)
    assert set(content["volumes"]) == servers == {"postgres", "redis"} & set(content["services"])
    own = "DATABASE_URL" in content["services"]["ocr-workers"]["environment"]
    assert own == ("postgres" in servers)
    if docker_compose():
        env = {**os.environ, "POSTGRES_PASSWORD": "x"}
        subprocess.run(["docker", "compose", "--file", str(tmp_path / "compose.yaml"), "config", "-q"], check=True, env=env)


def docker_compose() -> bool:
    has = shutil.which("docker") is not None
    return has and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


def test_compose_has_as_many_of_each_as_a_variable_says(env_file: Path) -> None:
    content = yaml.safe_load(made("compose", env_file)["compose.yaml"])["services"]
    assert content["ocr-workers"]["deploy"] == {
        "replicas": "${OCR_WORKERS:-2}",
        "resources": {"limits": {"cpus": "1.25", "memory": "750m"}},
    }
    assert content["deploy-workers"]["deploy"]["replicas"] == "${DEPLOY_WORKERS:-0}"
    assert content["fetch-workers"]["env_file"] == [str(env_file).replace("$", "$$")]
    assert content["fetch-workers"]["volumes"][0]["source"] == str(env_file.parent.parent / "sites")
    assert content["scheduler"]["command"][-1] == "while :; do clerk update --next --batch-size 1; sleep 60; done"
    assert content["reconcile"]["command"][-1] == "while :; do clerk reconcile; sleep 900; done"
    assert content["upgrade"]["restart"] == "no"
    elsewhere = yaml.safe_load(made("compose", env_file, DEPLOY_TARGET="s3://bucket/x")["compose.yaml"])["services"]
    assert "DEPLOY_TARGET" not in elsewhere["deploy-workers"]["environment"]


# ---- Kubernetes


def manifests(env_file: Path) -> list[dict[str, Any]]:
    texts = made("kubernetes", env_file).items()
    return [one for name, text in texts if "kustomization" not in name for one in yaml.safe_load_all(text)]


def test_kubernetes_takes_the_manifests(env_file: Path) -> None:
    found = manifests(env_file)
    for one in found:
        if one["kind"] != "ScaledObject":
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    kinds = sorted((one["kind"], one["metadata"]["name"]) for one in found)
    workers = [f"{stage}-workers" for stage in ("compilation", "extraction", "fetch", "ocr")]
    assert kinds == [
        ("CronJob", "reconcile"),
        ("CronJob", "scheduler"),
        *(("Deployment", name) for name in workers),
        ("Job", "upgrade"),
        ("PersistentVolumeClaim", "clerk-storage"),
        *(("ScaledObject", name) for name in workers),
    ]


def test_pods_get_their_secrets_by_name_and_have_no_rights(env_file: Path) -> None:
    for one in manifests(env_file):
        for pod in [spec for spec in _specs(one) if "containers" in spec]:
            [container] = pod["containers"]
            assert container["envFrom"] == [{"secretRef": {"name": "clerk-env"}}]
            assert all("value" not in entry for entry in container["env"] if entry["name"] == "DATABASE_URL")
            assert set(container["resources"]) == {"requests", "limits"}
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["terminationGracePeriodSeconds"] > 30
        assert one["kind"] != "Secret"


def _specs(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [tree, *(each for value in tree.values() for each in _specs(value))]
    return [each for value in tree for each in _specs(value)] if isinstance(tree, list) else []


# What KEDA 2 says of the part that is used here; its own definition is a file of thousands of lines.
_TRIGGER = {
    "type": "object",
    "required": ["type", "metadata"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "postgresql"},
        "metadata": {
            "type": "object",
            "required": ["query", "targetQueryValue", "connectionFromEnv"],
            "additionalProperties": {"type": "string"},
        },
    },
}
_SCALED_OBJECT = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"], "additionalProperties": {"type": "string"}},
                "pollingInterval": {"type": "integer", "minimum": 1},
                "cooldownPeriod": {"type": "integer", "minimum": 0},
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "triggers": {"type": "array", "minItems": 1, "items": _TRIGGER},
            },
        },
    },
}


def test_a_scaler_for_each_type_follows_its_queue(env_file: Path) -> None:
    import jsonschema  # type: ignore[import-untyped]

    scalers = [one for one in manifests(env_file) if one["kind"] == "ScaledObject"]
    for scaler in scalers:
        jsonschema.validate(scaler, _SCALED_OBJECT)
    [ocr] = [scaler for scaler in scalers if scaler["metadata"]["name"] == "ocr-workers"]
    assert ocr["spec"]["scaleTargetRef"]["name"] == "ocr-workers"
    assert (ocr["spec"]["minReplicaCount"], ocr["spec"]["maxReplicaCount"]) == (1, 2)
    assert ocr["spec"]["triggers"][0]["metadata"]["query"] == kubernetes.query("ocr")


def test_the_scalers_question_is_answered_by_the_database(pg_url: str) -> None:
    import psycopg

    from gristmill import Context, Mill, task

    @task(queue="ocr")
    def read(ctx: Context) -> None: ...

    @task(queue="fetch")
    def bring(ctx: Context) -> None: ...

    with Mill.open(pg_url, read, bring) as mill:
        mill.enqueue_many(read, [{}] * 3)
        mill.enqueue(bring)
    with psycopg.connect(pg_url.replace("postgresql+psycopg", "postgresql")) as connection:
        assert connection.execute(kubernetes.query("ocr").encode()).fetchone() == (3,)


def test_kustomize_builds_both_and_leaves_the_number_to_the_scaler(env_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "k"
    services.install("kubernetes", load({}, env_file.parent), env_file, folder)
    for name in ("base", "keda"):
        kustomization = yaml.safe_load((folder / name / "kustomization.yaml").read_text())
        assert all((folder / name / resource).exists() for resource in kustomization["resources"])
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here: that the files named in kustomization.yaml exist was checked, the build was not")
    built = {name: _kustomized(folder / name) for name in ("base", "keda")}
    replicas = {name: {one["spec"].get("replicas") for one in built[name] if one["kind"] == "Deployment"} for name in built}
    assert replicas == {"base": {1, 2, 3}, "keda": {None}}
    images = {each for name in built for each in _values(built[name], "image")}
    assert images == {"clerk:0.1.0.dev0"}


def _kustomized(folder: Path) -> list[dict[str, Any]]:
    run = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(run.stdout))


# ---- YAML

_HARD = st.sampled_from(["no", "1e3", "~", "0x1", "a: b", "- x", "'", "2026-01-01", "\u2028", "\U0001f600", "<<", "=", "\n"])
_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | _HARD
_TREES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_HARD, inner), max_leaves=8)


@settings(max_examples=40)
@given(st.dictionaries(_HARD, _TREES, min_size=1))
def test_what_is_written_as_yaml_is_read_the_same(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(dumps(tree, head="for people")) == tree


# ---- the image


def test_the_dockerfile_is_pinned_slim_and_runs_as_nobody_special() -> None:
    lines = re.sub(r"\\\n", " ", (ROOT / "apps" / "clerk" / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    images = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim-[a-z]+", image) for image in images)
    user = [rest for word, rest in steps if word == "USER"]
    assert user == [f"{kubernetes._USER}:{kubernetes._USER}"]
    for rest in [rest for word, rest in steps if word == "COPY" and not rest.startswith("--from")]:
        *sources, _ = rest.split()
        assert all((ROOT / source).exists() for source in sources)
    assert {word for word, _ in steps} <= {"FROM", "WORKDIR", "RUN", "ENV", "COPY", "USER", "VOLUME", "STOPSIGNAL", "CMD"}
    assert ["CMD", '["clerk", "--help"]'] in steps
    last = [rest for word, rest in steps[max(i for i, (word, _) in enumerate(steps) if word == "FROM") :] if word == "RUN"]
    assert {"openssh-client", "rsync"} <= set(" ".join(last).split())  # what the rsync deployer calls


def test_the_files_can_be_read_by_all_and_written_by_one(env_file: Path, tmp_path: Path) -> None:
    for path, _ in services.install("systemd", load({}, env_file.parent), env_file, tmp_path / "out"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
