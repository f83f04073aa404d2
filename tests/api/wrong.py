"""A server with tokens, and clients who ask for what is wrong: what they are told, and what must not change."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from gristmill import Mill
from tests.api.routes import Route, body_of, routes
from tests.api.server import PLAIN

OPEN = {"/health", "/ready"}  # to all


class World:
    def __init__(self, address: str, tokens: dict[str, str], mill: Mill) -> None:
        self.mill = mill
        headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()} | {"nobody": {}}
        self.clients = {
            role: httpx.Client(base_url=address, headers=given, timeout=60, trust_env=False, verify=PLAIN)
            for role, given in headers.items()
        }
        self.document: dict[str, Any] = self.clients["nobody"].get("/openapi.json").json()
        self.routes = [route for route in routes(self.document) if route.path not in OPEN]
        assert len(self.routes) > 50
        assert all(route.role for route in self.routes), "a route that anybody may use"
        for client in self.clients.values():
            client.get("/api/me")  # from now on it is known that the tokens are used
        self.before = self.state()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self.clients.values():
            client.close()

    def state(self) -> list[Any]:
        """All that a request could have changed."""
        mill = self.mill
        things = [mill.jobs(limit=1000, archived=None), mill.runs(limit=1000), mill.schedules(), mill.limits()]
        subjects = [(subject.name, subject.labels, subject.interval) for subject in mill.subjects(limit=1000)]
        queues = [(queue.name, queue.paused, queue.weight, queue.at_once, queue.ready) for queue in mill.queues()]
        tokens = [(token.name, token.state) for token in mill.tokens(every=True)]
        return [things, subjects, queues, tokens, mill.audit(limit=1000)]

    def send(self, role: str, route: Route, **how: Any) -> httpx.Response:
        """A request that is right but for what is given."""
        if route.acts and not how.keys() & {"json", "content"}:
            how["json"] = body_of(route, self.document)
        return self.clients[role].request(route.method, how.pop("address", route.address), **how)

    @staticmethod
    def refused(answer: httpx.Response, *statuses: int) -> None:
        said = f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code in statuses, said
        assert answer.headers["content-type"] == "application/problem+json", said
        problem = answer.json()
        assert problem["status"] == answer.status_code, said
        assert problem["detail"], said
        assert len(problem["detail"]) < 1100, said
        assert "Traceback" not in answer.text, said
