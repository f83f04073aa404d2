"""spaCy is used where it is installed. Here it is not, which is the case that everybody begins with."""

from __future__ import annotations

import importlib.util

import pytest

from clerk.errors import Usage
from clerk.extraction import spacy_extractor
from clerk.extraction.spacy_extractor import SpacyExtractor, merged
from clerk.parts import Entities


def test_without_spacy_or_its_model_the_error_says_how_to_get_it() -> None:
    wanted = "no_such_model" if importlib.util.find_spec("spacy") else "spaCy is not installed: 'pip install spacy'"
    with pytest.raises(Usage, match=wanted) as raised:
        SpacyExtractor("no_such_model")
    assert "extractor 'rules'" in str(raised.value)
    assert raised.value.exit_code == 2


def test_what_a_model_finds_is_added_to_what_the_rules_find() -> None:
    rules: Entities = {"persons": [{"text": "Ann Lee", "confidence": 0.95}], "orgs": [], "locations": []}
    found = [
        ("PERSON", "Lee"), ("PERSON", "ann  lee"), ("PERSON", "Zyx\nQwv"), ("ORG", "Acme"), ("GPE", "Salem"),
        ("FAC", "Oak Bridge"), ("LOC", "Salem"), ("DATE", "May 3"), ("MONEY", "$5"), ("ORG", "12"), ("ORG", " "),
    ]  # fmt: skip
    kept = merged(found, rules, 0.7)
    sure = spacy_extractor.CONFIDENCE
    assert kept == {
        "persons": [{"text": "Ann Lee", "confidence": 0.95}, {"text": "Zyx Qwv", "confidence": sure}],
        "orgs": [{"text": "Acme", "confidence": sure}],
        "locations": [{"text": "Salem", "confidence": sure}, {"text": "Oak Bridge", "confidence": sure}],
    }
    assert rules["orgs"] == []  # what was given stays as it was


def test_a_threshold_above_what_a_model_is_trusted_leaves_the_rules() -> None:
    rules: Entities = {"persons": [], "orgs": [], "locations": []}
    assert merged([("PERSON", "Zyx Qwv")], rules, 0.9) == rules
