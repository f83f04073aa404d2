"""`token create|list|revoke`."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_a_token_is_printed_once_and_listed_without_its_text(made: Cli) -> None:
    created = made.run("token", "create", "grafana", "--expires", "90d")
    assert created.code == 0
    text = created.out.strip()
    assert text.startswith("gm_")
    assert "nobody can show it again" in created.err
    listed = made.call("token", "list")
    assert "grafana" in listed.out
    assert text not in listed.out
    (entry,) = made.call("token", "list", "--json").json
    assert (entry["name"], entry["role"], entry["state"], entry["used_at"]) == ("grafana", "viewer", "live", None)
    assert "hash" not in entry


def test_json_has_the_text_and_what_it_is_of(made: Cli) -> None:
    created = made.call("token", "create", "anna", "--role", "operator", "--json").json
    assert created["text"].startswith("gm_")
    assert (created["token"]["name"], created["token"]["role"], created["token"]["expires_at"]) == ("anna", "operator", None)


def test_a_revoked_token_is_listed_only_with_all(made: Cli) -> None:
    made.call("token", "create", "anna")
    assert made.call("token", "revoke", "anna").out == "token anna is revoked\n"
    assert made.call("token", "list").out == ""
    assert made.call("token", "list", "--all", "--json").json[0]["state"] == "revoked"
    again = made.call("token", "revoke", "anna")
    assert again.code != 0
    assert "there is no token 'anna'" in again.err


def test_what_cannot_be_is_said_so(made: Cli) -> None:
    made.call("token", "create", "anna")
    for args, said in [
        (("anna",), "there is a token 'anna' already"),
        (("bert", "--role", "root"), "root"),
        (("bert", "--expires", "soon"), "not a duration"),
        (("",), "token"),
    ]:
        refused = made.call("token", "create", *args)
        assert refused.code != 0
        assert said in refused.err
    assert len(made.call("token", "list", "--json").json) == 1
