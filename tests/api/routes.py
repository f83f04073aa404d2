"""The routes of an OpenAPI document, and a body for each that is right as far as its shape goes."""

from __future__ import annotations

from typing import Any, NamedTuple

THERE = {"run": 1, "job": 1, "subject": 1, "queue": "mail", "stage": "count"}  # what test databases have
NOT_THERE = {"fingerprint": "0" * 12, "schedule": "none", "token": "none"}


class Route(NamedTuple):
    method: str
    path: str
    role: str | None
    schema: dict[str, Any]  # of its body
    queries: tuple[str, ...]
    streams: bool

    @property
    def address(self) -> str:
        """With things that are there, as far as there are some."""
        return self.path.format(**THERE, **NOT_THERE)

    @property
    def acts(self) -> bool:
        return self.method != "GET"

    @property
    def confirms(self) -> bool:
        return "confirm" in self.schema.get("properties", {})


def routes(document: dict[str, Any]) -> list[Route]:
    return [
        _route(document, method.upper(), path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def _route(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> Route:
    security = operation.get("security") or [{}]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = resolved(document, content.get("schema", {}))
    queries = tuple(one["name"] for one in operation.get("parameters", ()) if one["in"] == "query")
    streams = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    return Route(method, path, security[0].get("token", [None])[0], schema, queries, streams)


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def body_of(route: Route, document: dict[str, Any], *, full: bool = False) -> dict[str, Any]:
    """Something that its schema allows; `full`: with all that may be left out."""
    found = _value(document, route.schema, full)
    assert isinstance(found, dict)
    return found


def _value(document: dict[str, Any], schema: dict[str, Any], full: bool) -> Any:
    schema = resolved(document, schema)
    if "anyOf" in schema:
        schema = resolved(document, schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return _object(document, schema, full)
        case "array":
            return [_value(document, schema["items"], full)]
        case "string":
            return "2027-01-31T14:30:00Z" if schema.get("format") == "date-time" else "x"
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
    return None


def _object(document: dict[str, Any], schema: dict[str, Any], full: bool) -> dict[str, Any]:
    properties = schema.get("properties", {})
    wanted = list(properties) if full else [*schema.get("required", ())]
    if not wanted and schema.get("minProperties"):
        wanted = [next(iter(properties))]
    return {name: _value(document, properties[name], full) for name in wanted}
