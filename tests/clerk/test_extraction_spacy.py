"""spaCy is used where it is installed. Here it is not, which is the case that everybody begins with; a stand-in is told
what it would be told."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from clerk.config import load
from clerk.errors import Usage
from clerk.extraction import spacy_extractor
from clerk.extraction.spacy_extractor import SpacyExtractor, merged
from clerk.parts import Entities
from clerk.pipeline import wiring


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


class Model:
    """As much of one as is asked for."""

    meta: ClassVar = {"lang": "xx", "name": "stand_in", "version": "1"}

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def pipe(self, texts: Iterable[str], **how: Any) -> Iterator[SimpleNamespace]:
        self.asked.append(how)
        for text in texts:
            yield SimpleNamespace(ents=[SimpleNamespace(label_="GPE", text=text)])


def test_a_long_document_is_read_by_as_many_processes_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    model, spacy = Model(), ModuleType("spacy")
    spacy.__spec__ = ModuleSpec("spacy", None)
    spacy.load = lambda name, exclude: model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    for given in ("3", ""):
        monkeypatch.setenv("SPACY_N_PROCESS", given)
        extractor = wiring.extractor(load(), {"extractor": "spacy"})
        for pages in (60, 5):  # for few of them it is not worth the start of processes
            found = list(extractor.extract([f"Salem {number}" for number in range(pages)]))
            assert [one.entities["locations"][-1]["text"] for one in found] == [f"Salem {n}" for n in range(pages)]
    assert [how["n_process"] for how in model.asked] == [3, 1, 2, 1]
