"""The HTTP API: an ASGI application over a mill, which `gristmill serve` runs, and which others can mount or extend.

`app(mill)` is a FastAPI application: `include_router`, `mount` and `add_api_route` add to it.
"""

from __future__ import annotations

from gristmill.errors import Invalid

try:
    import fastapi as _fastapi
except ModuleNotFoundError:
    raise Invalid("the HTTP API needs FastAPI and uvicorn; run: pip install 'gristmill[serve]'") from None

from gristmill.api.access import Admin, Call, Caller, Operator, Viewer, caller_of, needs
from gristmill.api.application import app
from gristmill.watched import Role

__all__ = ["Admin", "Call", "Caller", "Operator", "Role", "Viewer", "app", "caller_of", "needs"]
del _fastapi
