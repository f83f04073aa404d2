"""Kubernetes, with Kustomize: `base` has the workers and what runs by the clock, `keda` lets the queues decide how many."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clerk import __version__
from clerk.services.plan import GRACE, MARK, Plan, Tick
from clerk.services.programs import call, works
from clerk.services.sizing import TICK, Need
from clerk.services.yaml import dumps

SECRET: Final = "clerk-env"  # kubectl create secret generic clerk-env --from-env-file=.env
_STORAGE: Final = "clerk-storage"
_LABEL: Final = "app.kubernetes.io/name"
_USER: Final = 10001  # as in the Dockerfile
_HEAD: Final = f"{MARK}; the Secret {SECRET} is yours to make"

ends = f"kubectl delete deployment,cronjob,job --selector {_LABEL}=clerk"  # the storage stays
names = re.compile(r"(base/(kustomization|workers|clock|storage|upgrade)|keda/(kustomization|scalers))\.yaml")


def folder(env_folder: Path) -> Path:
    return env_folder / "kubernetes"


def check() -> None:
    """Anybody may write a file."""


def files(plan: Plan) -> Mapping[str, str]:
    kinds = [stage for stage, count in plan.counts.items() if count]
    resources = ["storage.yaml", "upgrade.yaml", *(["workers.yaml"] if kinds else []), "clock.yaml"]
    base = {
        **_kustomization(),
        "resources": resources,
        "images": [{"name": "clerk", "newTag": __version__}],
    }
    made = {
        "base/kustomization.yaml": dumps(base, head=_HEAD),
        "base/storage.yaml": dumps(_storage(), head=_HEAD),
        "base/upgrade.yaml": dumps(_upgrade(plan), head=_HEAD),
        "base/clock.yaml": dumps(*(_cron_job(plan, tick) for tick in plan.ticks), head=_HEAD),
    }
    if kinds:
        made["base/workers.yaml"] = dumps(*(_deployment(plan, kind) for kind in kinds), head=_HEAD)
        made["keda/kustomization.yaml"] = dumps(_overlay(), head=_HEAD)
        made["keda/scalers.yaml"] = dumps(*(_scaler(kind, plan.counts[kind]) for kind in kinds), head=_HEAD)
    return made


def _kustomization() -> dict[str, Any]:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}


def _named(kind: str, version: str, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {_LABEL: "clerk", **(labels or {})}}}


def _pod(plan: Plan, command: Sequence[str], need: Need) -> dict[str, Any]:
    """Without a DATABASE_URL in the Secret it does not start: no two pods share a file of SQLite."""
    url = {"secretKeyRef": {"name": SECRET, "key": "DATABASE_URL"}}
    published = [{"name": "DEPLOY_TARGET", "value": "/data/published"}] if plan.publishes_here else []
    container = {
        "name": "clerk",
        "image": "clerk",
        "command": list(command),
        "envFrom": [{"secretRef": {"name": SECRET}}],
        "env": [
            {"name": "DATABASE_URL", "valueFrom": url},
            {"name": "STORAGE_DIR", "value": "/data/sites"},
            {"name": "LOG_DIR", "value": "/tmp/logs"},
            *published,
        ],
        "resources": {
            "requests": {"cpu": "100m" if need.cpu <= 1 else "1", "memory": f"{need.memory}Mi"},
            "limits": {"cpu": f"{need.cpu * 1000:.0f}m", "memory": f"{need.most}Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": _STORAGE}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _deployment(plan: Plan, stage: str) -> dict[str, Any]:
    """An update takes each worker away only after another has come."""
    labels = {_LABEL: "clerk", "app.kubernetes.io/component": stage}
    pod = _pod(plan, ["clerk", "worker", stage], plan.needs[stage])
    return {
        **_named("Deployment", "apps/v1", f"{stage}-workers", labels),
        "spec": {
            "replicas": plan.counts[stage],
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _job(plan: Plan, command: Sequence[str], seconds: int, backoff: int) -> dict[str, Any]:
    labels = {_LABEL: "clerk", "app.kubernetes.io/component": "command"}
    pod = {**_pod(plan, command, TICK), "restartPolicy": "Never"}
    return {
        "backoffLimit": backoff,
        "activeDeadlineSeconds": seconds,
        "ttlSecondsAfterFinished": 600,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _cron_job(plan: Plan, tick: Tick) -> dict[str, Any]:
    return {
        **_named("CronJob", "batch/v1", tick.name),
        "spec": {
            "schedule": tick.cron,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 120,  # what was missed is made up for by the next one
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": _job(plan, ["clerk", *tick.words], 600, 0)},
        },
    }


def _upgrade(plan: Plan) -> dict[str, Any]:
    return {**_named("Job", "batch/v1", "upgrade"), "spec": _job(plan, ["clerk", "db", "upgrade"], 1800, 4)}


def _storage() -> dict[str, Any]:
    return {
        **_named("PersistentVolumeClaim", "v1", _STORAGE),
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}},
    }


def _overlay() -> dict[str, Any]:
    """The number of workers is the scaler's: applying this again must not set it back."""
    patch = "- op: remove\n  path: /spec/replicas\n"
    return {
        **_kustomization(),
        "resources": ["../base", "scalers.yaml"],
        "patches": [{"target": {"kind": "Deployment", "labelSelector": f"{_LABEL}=clerk"}, "patch": patch}],
    }


def query(stage: str) -> str:
    """Work in hand counts: without it a worker in the middle of a long job would be taken away as soon as no other waits."""
    return f"SELECT count(*) FROM gristmill_jobs WHERE queue = '{stage}' AND state IN ('queued', 'in_progress')"  # noqa: S608


def _scaler(stage: str, most: int) -> dict[str, Any]:
    metadata = {"connectionFromEnv": "DATABASE_URL", "query": query(stage), "targetQueryValue": "1"}
    return {
        **_named("ScaledObject", "keda.sh/v1alpha1", f"{stage}-workers"),
        "spec": {
            "scaleTargetRef": {"name": f"{stage}-workers"},
            "pollingInterval": 30,
            "cooldownPeriod": 300,
            "minReplicaCount": 1,  # queued work without any worker of its type is an alarm
            "maxReplicaCount": most,
            "triggers": [{"type": "postgresql", "metadata": metadata}],
        },
    }


# ---- what is running: only on demand, for the cluster is elsewhere


def stop(_: Sequence[Path]) -> None:
    """`kubectl delete -k` would take the storage too: that is for a person."""


def start(_: Sequence[Path], __: Sequence[Path]) -> None:
    """`kubectl apply -k`, to the cluster that is meant."""


def restart(every: Sequence[Path]) -> None:
    """First the manifests of now, whose image may be another; with those for KEDA if its scalers are in the cluster, since
    the number of workers is theirs then. Restarted they are in any case: the Secret may have changed."""
    top = every[0].parent.parent
    scalers = top / "keda" / "scalers.yaml"
    scaled = scalers in every and works("kubectl", "get", "--filename", str(scalers))
    call("kubectl", "apply", "-k", str(top / ("keda" if scaled else "base")))
    call("kubectl", "rollout", "restart", "deployment", "--selector", f"{_LABEL}=clerk")
