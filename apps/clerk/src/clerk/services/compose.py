"""Docker Compose: a service for each type of worker, as many of each as a variable says."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clerk import __version__
from clerk.names import STAGES
from clerk.services.plan import GRACE, MARK, Plan, ticks
from clerk.services.programs import call
from clerk.services.sizing import TICK, Need, variable
from clerk.services.yaml import dumps

FILE = "compose.yaml"
_PROJECT = "clerk"
_HEAD = f"{MARK}; start it with: docker compose --env-file"
_READY = {"upgrade": "service_completed_successfully", "postgres": "service_healthy"}

names = re.compile(re.escape(FILE))
ends = f"docker compose --project-name {_PROJECT} down"  # by its labels: the file may be gone


def folder(env_folder: Path) -> Path:
    return env_folder


def check() -> None:
    """Anybody may write a file."""


def files(plan: Plan) -> Mapping[str, str]:
    servers = _servers(plan)
    upgrade = _service(plan, ["clerk", "db", "upgrade"], TICK, {"postgres"} & set(servers))
    services: dict[str, Any] = {"upgrade": {**upgrade, "restart": "no"}}
    for stage in plan.counts:
        worker = _service(plan, ["clerk", "worker", stage], plan.needs[stage], {"upgrade"})
        worker["deploy"] = {"replicas": f"${{{variable(stage)}:-{plan.counts[stage]}}}", **worker["deploy"]}
        services[f"{stage}-workers"] = worker
    for tick in plan.ticks:
        services[tick.name] = _service(plan, _again_and_again(["clerk", *tick.words], tick.minutes), TICK, {"upgrade"})
    content = {"name": _PROJECT, "services": {**services, **servers}, "volumes": {name: {} for name in servers}}
    return {FILE: dumps(content, head=f"{_HEAD} {plan.env_file} up -d")}


def _service(plan: Plan, command: Sequence[str], need: Need, after: Collection[str]) -> dict[str, Any]:
    owner = plan.env_file.stat()
    return {
        "image": f"${{CLERK_IMAGE:-clerk:{__version__}}}",
        "command": list(command),
        "init": True,
        "user": f"{owner.st_uid}:{owner.st_gid}",  # who owns the storage and .env
        "env_file": [_literal(plan.env_file)],
        "environment": _environment(plan),
        "volumes": _volumes(plan),
        "restart": "unless-stopped",
        "stop_grace_period": f"{GRACE}s",
        "deploy": {"resources": {"limits": {"cpus": f"{need.cpu:g}", "memory": f"{need.most}m"}}},
        **({"depends_on": {name: {"condition": _READY[name]} for name in after}} if after else {}),
    }


def _again_and_again(words: Sequence[str], minutes: int) -> list[str]:
    """Compose has no clock. The words are this program's own, so a shell may have them."""
    return ["sh", "-c", f"while :; do {' '.join(words)}; sleep {minutes * 60}; done"]


def _environment(plan: Plan) -> dict[str, str]:
    """What the containers see otherwise than the machine; what is in .env comes from there."""
    found = {"STORAGE_DIR": "/data/sites", "LOG_DIR": "/tmp/logs"}  # in the container, whose it is alone
    if plan.publishes_here:
        found["DEPLOY_TARGET"] = "/data/published"
    if _has_own(plan, "postgres"):
        found["DATABASE_URL"] = "postgresql://clerk:${POSTGRES_PASSWORD}@postgres:5432/clerk"
    return found


def _volumes(plan: Plan) -> list[dict[str, Any]]:
    places = [(plan.config.storage, "/data/sites")]
    if plan.publishes_here:
        places.append((Path(plan.config.deploy_target), "/data/published"))
    return [{"type": "bind", "source": _literal(plan.path(source)), "target": target} for source, target in places]


def _servers(plan: Plan) -> dict[str, Any]:
    """A database unless there is one elsewhere, and Redis if it is to be reached under that name."""
    found: dict[str, Any] = {}
    if _has_own(plan, "postgres"):
        found["postgres"] = {
            "image": "postgres:17",
            "environment": {
                "POSTGRES_USER": "clerk",
                "POSTGRES_DB": "clerk",
                "POSTGRES_PASSWORD": "${POSTGRES_PASSWORD:?set it in .env, letters and digits}",
            },
            "volumes": ["postgres:/var/lib/postgresql/data"],
            "healthcheck": {
                "test": ["CMD", "pg_isready", "-U", "clerk", "-d", "clerk"],
                "interval": "5s",
                "retries": 20,
            },
            "restart": "unless-stopped",
            "deploy": {"resources": {"limits": {"memory": "2g"}}},
        }
    if _has_own(plan, "redis"):
        found["redis"] = {
            "image": "redis:7-alpine",
            "volumes": ["redis:/data"],
            "restart": "unless-stopped",
            "deploy": {"resources": {"limits": {"memory": "256m"}}},
        }
    return found


def _has_own(plan: Plan, server: str) -> bool:
    url = plan.config.database_url if server == "postgres" else plan.config.redis_url or ""
    return url.startswith("sqlite") or urlsplit(url).hostname == server  # no container shares SQLite's file with another


def _literal(path: Path) -> str:
    return str(path).replace("$", "$$")


# ---- what is running: only on demand, for Docker may be elsewhere


def stop(_: Sequence[Path]) -> None:
    """`docker compose down` is for who knows what else is in it."""


def start(_: Sequence[Path], __: Sequence[Path]) -> None:
    """`docker compose up -d`, with the images that are there."""


def restart(every: Sequence[Path]) -> None:
    """New containers, of the image and the settings of now: a restart of the old ones would run the old release. Only ours:
    the database goes on, which all of them need."""
    ours = [*(f"{stage}-workers" for stage in STAGES), *(tick.name for tick in ticks())]
    up = ("up", "-d", "--no-deps", "--force-recreate", "--timeout", str(GRACE))
    for path in every:
        call("docker", "compose", "--env-file", str(path.with_name(".env")), "--file", str(path), *up, *ours)
