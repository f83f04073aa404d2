"""Who gets in: tokens and roles, other sites' pages, read-only servers, and where a server may listen."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from gristmill import Mill
from tests.api.server import APP, PLAIN, At, Served, serving, serving_here
from tests.cli.conftest import Cli

pytestmark = pytest.mark.alike


@pytest.fixture
def tokens(mill: Mill) -> dict[str, str]:
    return {role: mill.create_token(role, role).text for role in ("viewer", "operator", "admin")}


@pytest.fixture
def guarded(tokens: dict[str, str], filled_url: str, mill: Mill) -> Iterator[At]:
    with serving_here(filled_url, mill) as server:
        yield server


def test_roles_may_what_they_may_and_tokens_end_at_once(guarded: At, tokens: dict[str, str], mill: Mill) -> None:
    def asked(token: str | None, path: str, body: dict[str, object] | None = None) -> int:
        with guarded.client(token) as client:
            return (client.get(path) if body is None else client.post(path, json=body)).status_code

    viewer, operator, admin = tokens.values()
    assert asked(None, "/health") == 200
    assert [asked(token, "/api/queues") for token in (None, "gm_wrong", viewer)] == [401, 401, 200]
    assert [asked(token, "/api/queues/mail/pause", {}) for token in (None, viewer, operator)] == [401, 403, 200]
    assert [asked(token, "/api/queues/default/purge", {}) for token in (viewer, operator, admin)] == [403, 403, 200]
    assert [asked(token, "/api/tokens") for token in (viewer, operator, admin)] == [403, 403, 200]
    assert [entry.who for entry in mill.audit(verb="queue.pause")] == ["operator (api)"]
    with guarded.client(admin) as client:
        made = client.post("/api/tokens", json={"name": "new", "role": "operator"}).json()
        assert asked(made["text"], "/api/me") == 200
        assert "text" not in client.get("/api/tokens").text
        assert client.post("/api/tokens/new/revoke", json={}).status_code == 200
        assert asked(made["text"], "/api/me") == 401


def test_a_refusal_says_what_is_missing(guarded: At, tokens: dict[str, str]) -> None:
    with guarded.client() as client:
        answer = client.get("/api/jobs")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "gristmill token create" in answer.json()["detail"]
    with guarded.client(tokens["viewer"]) as client:
        said = client.post("/api/jobs/1/retry", json={}).json()["detail"]
        assert said == "this needs the role operator; 'viewer (api)' has the role viewer"


def test_the_first_token_closes_an_open_server_and_the_last_one_does_not_open_it(served: At, mill: Mill) -> None:
    with served.client() as client:
        assert client.get("/api/me").json()["role"] == "admin"
        token = mill.create_token("first", "viewer").text
        while client.get("/api/me").status_code == 200:
            pass
        assert client.get("/api/me").status_code == 401
        assert client.get("/api/me", headers={"Authorization": f"Bearer {token}"}).json()["role"] == "viewer"
        mill.revoke_token("first")
        assert client.get("/api/me").status_code == 401


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8080"},
    {"Host": "127.0.0.1.evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_an_open_server_answers_no_other_site(shared: Served, headers: dict[str, str]) -> None:
    with shared.client() as client:
        looked = client.get("/api/jobs", headers=headers)
        acted = client.post("/api/queues/mail/pause", json={}, headers=headers)
        assert [looked.status_code, acted.status_code] == [403, 403]
        assert looked.headers["content-type"] == "application/problem+json"
        assert not client.get("/api/queues/mail").json()["paused"]


def test_an_open_server_says_once_what_it_answers_to(shared: Served) -> None:
    with shared.client() as client:
        said = client.get("/api/jobs", headers={"Host": "evil.example"}).json()["detail"]
    assert said.endswith("it answers only to localhost, 127.0.0.1, ::1")


def test_its_own_pages_may_act(shared: Served) -> None:
    with shared.client() as client:
        headers = {"Origin": shared.address, "Sec-Fetch-Site": "same-origin"}
        assert client.post("/api/queues/mail/pause", json={}, headers=headers).status_code == 200
        assert client.post("/api/queues/mail/resume", json={}, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_form_of_another_site_cannot_act(shared: Served, kind: str) -> None:
    with shared.client() as client:
        answer = client.post("/api/queues/mail/pause", content=b"{}", headers={"Content-Type": kind} if kind else {})
        assert answer.status_code == 415
        answer = client.post("/api/queues/mail/pause", json={}, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403
        assert not client.get("/api/queues/mail").json()["paused"]


def test_a_read_only_server_changes_nothing(filled_url: str, mill: Mill) -> None:
    with serving(filled_url, "--read-only") as server, server.client() as client:
        assert client.get("/api/me").json()["role"] == "viewer"
        answer = client.post("/api/queues/mail/pause", json={})
        assert (answer.status_code, answer.json()["detail"]) == (
            403,
            "this server is read-only: it was started with --read-only",
        )
        assert mill.audit(verb="queue.*") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_token_only_this_machine_is_served(made: Cli, host: str) -> None:
    result = made.call("-A", APP, "serve", "--host", host, "--port", "0")
    assert (result.code, result.out) == (64, "")
    assert "there is no token" in result.err
    assert "gristmill token create NAME --role admin" in result.err


def test_with_a_token_others_are_served_by_any_name(tokens: dict[str, str], filled_url: str) -> None:
    with serving(filled_url, "--host", "0.0.0.0") as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=address, trust_env=False, timeout=60, verify=PLAIN) as client:
            headers = {"Host": "mill.example", "Authorization": f"Bearer {tokens['viewer']}"}
            assert client.get("/api/jobs", headers=headers).status_code == 200
            assert client.get("/api/jobs", headers={"Host": "mill.example"}).status_code == 401


def test_a_port_that_is_taken_is_one_line(shared: Served, made: Cli) -> None:
    port = httpx.URL(shared.address).port
    result = made.call("serve", "--port", str(port))
    assert (result.code, result.err.count("\n")) == (64, 1)
    assert f"cannot listen on 127.0.0.1 port {port}" in result.err
