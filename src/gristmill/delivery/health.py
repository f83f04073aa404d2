"""What `doctor` says of the delivery: is its server there, and does it take our password?"""

from __future__ import annotations

from gristmill.delivery.redis import RedisServer
from gristmill.errors import Invalid
from gristmill.model import Diagnosis
from gristmill.settings import delivery_name, redis_url

_SET = ("export", "GRISTMILL_REDIS_URL=redis://:PASSWORD@HOST:6379/0")


def examine_delivery(delivery: str | None = None, url: str | None = None) -> list[Diagnosis]:
    """Nothing for `database`: whoever can read the ledger has it."""
    name, url = delivery_name(delivery), redis_url(url)
    if name == "database":
        return []
    if not url:
        return [Diagnosis("redis", False, f"delivery {name} needs Redis, and nobody says where it is", _SET)]
    try:
        server = RedisServer(url)
    except Invalid as error:
        return [Diagnosis("redis", False, str(error), _SET)]
    try:
        version = server.client.info("server").get("redis_version", "unknown")
    except server.wrong_password as error:
        return [Diagnosis("redis", False, f"{server.shown} refuses the password: {error}", _SET)]
    except server.errors as error:
        said = f"{server.shown} cannot be reached: {error}; workers find their jobs by polling"
        return [Diagnosis("redis", False, said, ("redis-cli", "-u", server.shown, "ping"))]
    finally:
        server.close()
    return [Diagnosis("redis", True, f"{server.shown}, version {version}; delivery {name}")]
