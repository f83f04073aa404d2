"""A delivery by its name."""

from __future__ import annotations

from gristmill.delivery.database import database_delivery
from gristmill.delivery.protocol import Delivery
from gristmill.errors import Invalid
from gristmill.ledger.store import Ledger


def choose(ledger: Ledger, name: str, redis_url: str | None) -> Delivery:
    """The delivery of this name for a ledger; `redis_url` is of no concern to `database`."""
    if name == "database":
        return database_delivery(ledger)
    if not redis_url:
        raise Invalid(f"delivery {name!r} needs Redis: set GRISTMILL_REDIS_URL=redis://HOST:6379/0")
    from gristmill.delivery.redis import RedisDelivery, RedisServer

    server = RedisServer(redis_url)
    if name == "redis":
        return RedisDelivery(server)
    from gristmill.delivery.broker import BrokerDelivery

    try:
        if name == "rq":
            from gristmill.delivery.rq import RqBroker

            return BrokerDelivery(ledger, server, RqBroker(server.client))
        from gristmill.delivery.arq import ArqBroker

        return BrokerDelivery(ledger, server, ArqBroker())
    except ImportError as error:
        raise Invalid(f"delivery {name!r} needs more ({error}); run: pip install 'gristmill[{name}]'") from None
