"""Tokens: what their bearer says is never kept, and they end when they should."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gristmill.errors import Invalid, NotFound, Refused
from gristmill.ledger import backup as backups
from gristmill.ledger.store import Ledger
from gristmill.watched import Role
from tests import servers
from tests.ledger import invariants
from tests.ledger.play import Play
from tests.ledger.together import outcomes


def test_a_token_is_known_by_what_its_bearer_says_and_only_by_that(play: Play) -> None:
    made = play.mill.create_token("anna", "operator", by="me")
    found = play.mill.check_token(made.text)
    assert found is not None
    assert (found.name, found.role, found.state, found.created_by) == ("anna", Role.OPERATOR, "live", "me")
    for wrong in ("", made.text[:-1], made.text + " ", made.text.upper(), "gm_", "\ud800", "x" * 10_000, "anna", "\0"):
        assert play.mill.check_token(wrong) is None
    assert play.mill.check_token(None) is None  # type: ignore[arg-type]


def test_nothing_in_the_database_tells_what_a_token_is(play: Play) -> None:
    made = play.mill.create_token("anna", "admin")
    kept = str(invariants.snapshot(play.ledger))
    assert "anna" in kept
    assert made.text not in kept
    assert made.text.removeprefix("gm_") not in kept
    assert play.mill.create_token("bert", "admin").text != made.text


def test_a_revoked_token_is_nobodys_and_its_name_is_free_again(play: Play) -> None:
    first = play.mill.create_token("anna", "viewer")
    play.mill.revoke_token("anna", by="boss")
    assert play.mill.check_token(first.text) is None
    second = play.mill.create_token("anna", "admin")
    assert (play.mill.check_token(first.text), play.mill.check_token(second.text)) == (None, second.token)
    assert [(token.role, token.state, token.revoked_by) for token in play.mill.tokens(every=True)] == [
        ("viewer", "revoked", "boss"),
        ("admin", "live", None),
    ]
    assert [token.id for token in play.mill.tokens()] == [second.token.id]


def test_a_token_expires_by_the_databases_clock(play: Play) -> None:
    soon = play.mill.create_token("soon", "viewer", expires=timedelta(minutes=5))
    at = play.clock.now + timedelta(1)
    later = play.mill.create_token("later", "viewer", expires=at)
    play.clock.advance(299)
    assert play.mill.check_token(soon.text) is not None
    play.clock.advance(1)
    assert play.mill.check_token(soon.text) is None
    assert play.mill.check_token(later.text) is not None
    assert [token.state for token in play.mill.tokens()] == ["expired", "live"]


def test_its_use_is_written_at_most_once_a_minute(play: Play) -> None:
    text = play.mill.create_token("anna", "viewer").text
    used = []
    for _ in range(5):
        play.mill.check_token(text)
        used.append(play.value("SELECT used_at FROM gm_token"))
        play.clock.advance(30)
    began = used[0]
    assert used == [began, began, began + 60_000_000, began + 60_000_000, began + 120_000_000]


@pytest.mark.parametrize(
    ("name", "role", "expires"),
    [
        ("", "viewer", None),
        ("a\0", "viewer", None),
        ("a", "root", None),
        ("a", "Viewer", None),
        ("a", None, None),
        ("a", "viewer", -1),
        ("a", "viewer", 0),
        ("a", "viewer", datetime(2020, 1, 1, tzinfo=UTC)),
        ("a", "viewer", datetime(2030, 1, 1)),
        ("a", "viewer", "tomorrow"),
    ],
)
def test_nonsense_is_refused_and_makes_no_token(play: Play, name: str, role: str, expires: object) -> None:
    with pytest.raises(Invalid):
        play.mill.create_token(name, role, expires=expires)  # type: ignore[arg-type]
    assert play.mill.tokens(every=True) == []
    assert play.mill.audit() == []


def test_a_name_is_of_one_live_token_also_when_many_ask_at_once(play: Play) -> None:
    made = 0
    for outcome in outcomes(*[lambda: play.mill.create_token("anna", "viewer")] * 10):
        with suppress(Refused):
            outcome()
            made += 1
    assert (made, len(play.mill.tokens(every=True))) == (1, 1)


def test_who_is_not_there_cannot_be_revoked(play: Play) -> None:
    play.mill.create_token("anna", "viewer")
    with pytest.raises(NotFound, match="did you mean 'anna'"):
        play.mill.revoke_token("ana")
    play.mill.revoke_token("anna")
    with pytest.raises(NotFound):
        play.mill.revoke_token("anna")


def test_making_and_revoking_are_recorded(play: Play) -> None:
    play.mill.create_token("anna", "operator", by="boss")
    play.mill.revoke_token("anna", by="boss")
    told = [(entry.who, entry.verb, entry.target, entry.detail.get("role")) for entry in play.mill.audit()]
    assert told == [("boss", "token.revoke", "token anna", None), ("boss", "token.create", "token anna", "operator")]


def test_each_role_may_do_what_those_before_it_may() -> None:
    assert [[role.may(needed) for needed in Role] for role in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_a_restore_brings_no_revoked_token_back(play: Play, owner_pg_url: str, tmp_path: Path) -> None:
    url = play.url if play.ledger.is_sqlite else owner_pg_url
    text = play.mill.create_token("anna", "viewer").text
    owner = Ledger(url)
    backups.backup(owner, tmp_path / "b")
    owner.close()
    play.mill.revoke_token("anna")
    kept = play.mill.create_token("bert", "viewer").text
    backups.restore(url, tmp_path / "b", by="me", force=True)
    assert play.mill.check_token(text) is None
    assert play.mill.check_token(kept) is not None
    assert play.mill.create_token("carl", "viewer").token.id > 2


def test_a_new_database_gets_the_tokens_of_the_backup(play: Play, tmp_path: Path) -> None:
    text = play.mill.create_token("anna", "viewer").text
    backups.backup(play.ledger, tmp_path / "b")
    backups.restore(f"sqlite:///{tmp_path}/new.db", tmp_path / "b", by="me")
    there = Play(f"sqlite:///{tmp_path}/new.db", (), play.clock)
    try:
        assert there.mill.check_token(text) is not None
    finally:
        there.close()


def test_a_role_that_only_reads_can_check_a_token(pg_url: str, owner_pg_url: str) -> None:
    play = Play(pg_url, ())
    text = play.mill.create_token("anna", "viewer").text
    with servers.role(owner_pg_url, "reader") as role:
        reader = Play(servers.with_user(owner_pg_url, role), (), play.clock)
        found = reader.mill.check_token(text)
        reader.close()
    assert found is not None
    assert play.value("SELECT used_at FROM gm_token") is None
    play.close()
