"""Whatever is given to a job is taken whole or refused whole, by the mill and on the command line; small cases are found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import Mill
from gristmill.errors import GristmillError
from tests.cli import letters
from tests.cli.conftest import APP, Cli

LINE = 2000  # characters: nobody reads a longer one

_text = st.text(st.characters(), max_size=20)  # also NUL, and halves of pairs, which are no UTF-8
_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), _text, st.binary(max_size=4), st.dates(), st.decimals(), st.uuids()
)
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(_text, st.integers(), st.none()), inner, max_size=4),
        st.sets(st.integers(), max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)
_often = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_json(value: Any) -> bool:
    """Would everybody read back the same?"""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(key) and is_json(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, str):
        return "\0" not in value and value == value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63)


@pytest.fixture
def lettered(database_url: str) -> Iterator[Mill]:
    with Mill.open(database_url, letters.anything) as mill:
        yield mill


@_often
@given(value=_values)
def test_a_job_gets_what_was_given_or_is_not_there(lettered: Mill, value: Any) -> None:
    before, refused, job = lettered.jobs(limit=1), None, None
    try:
        job = lettered.enqueue("anything", args={"value": value})
    except GristmillError as error:
        refused = str(error)
    if job is None:
        assert refused
        assert "\n" not in refused
        assert len(refused) <= LINE
        assert not is_json(value), refused
        assert lettered.jobs(limit=1) == before
    else:
        kept = lettered.job(job.id).args
        assert kept == {"value": value} or not is_json(value)
        assert json.loads(json.dumps(kept)) == kept


_options = ["--arg", "--queue", "--needs", "--at", "--in", "--unique", "--once", "--timeout", "--retries", "--json", "--"]
_words = st.one_of(_text, _text.map("n={}".format), st.sampled_from(["n=1", "=", 'n={"a":', "-1", "1e9", "2030-01-01"]))


@_often
@given(line=st.lists(st.tuples(st.sampled_from(_options), _words), max_size=3))
def test_a_command_line_is_understood_or_refused_in_a_few_words(cli: Cli, line: list[tuple[str, str]]) -> None:
    words = [word.replace("\0", "") for pair in line for word in pair]  # no process could be given one
    result = cli.call("-A", APP, "enqueue", "anything", *words)
    assert result.code in (0, 1, 64), result
    assert bool(result.out) == (result.code == 0), result
    assert result.code == 0 or result.err.startswith("Error: "), result
    assert "Traceback" not in result.err, result
    assert "this is a bug" not in result.err, result
    assert len(result.err) <= LINE
