"""The dashboard: pages over a mill, made on the server, for `gristmill serve` and for those who mount the API.

`add_pages(app, mill)` puts them into a Starlette or FastAPI application. An application adds pages of its own with
`Extra`: an entry in the menu, and routes, which answer with `page(request, template, …)` in the same frame.
"""

from __future__ import annotations

from gristmill.errors import Invalid

try:
    import jinja2 as _jinja2
except ModuleNotFoundError:
    raise Invalid("the pages need Jinja2; run: pip install 'gristmill[serve]'") from None

from gristmill.web.routing import add_pages
from gristmill.web.site import Extra
from gristmill.web.view import page

__all__ = ["Extra", "add_pages", "page"]
del _jinja2
