"""Publishing a site: all of it is brought to where it will be, then one step makes it the one that others see."""

from __future__ import annotations

from pathlib import Path

from clerk.deploying.folder import FolderDeployer
from clerk.deploying.publication import metadata, publication
from clerk.deploying.rsync import RsyncDeployer, remote
from clerk.deploying.s3 import S3Deployer
from clerk.errors import Usage
from clerk.parts import Deployer

__all__ = ["FolderDeployer", "RsyncDeployer", "S3Deployer", "deployer", "is_gone", "metadata", "publication"]


def deployer(target: str) -> Deployer:
    """What DEPLOY_TARGET says: `./published`, `user@host:/path`, `ssh://user@host:22/path` or `s3://bucket/prefix`."""
    if target.startswith("s3://"):
        return S3Deployer(target)
    host = remote(target)
    if host is not None:
        return RsyncDeployer(host)
    if not target or "://" in target or not target.isprintable():
        raise Usage(
            f"DEPLOY_TARGET wants a folder, user@host:/path, ssh://user@host/path or s3://bucket/prefix, not {target[:80]!r}"
        )
    return FolderDeployer(Path(target))


def is_gone(target: str, subdomain: str) -> bool:
    """Whether what this machine has published in a folder of its own is not there any more. Other places are not asked: that
    would be a connection for every site, every day."""
    here = "://" not in target and remote(target) is None
    return here and not FolderDeployer(Path(target)).has(subdomain)
