"""Persons, organisations and places by a spaCy model that is installed here; votes and the roll call by the rules.

spaCy is no dependency, and no model comes with clerk: whoever has one gives its name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from clerk.errors import Usage
from clerk.extraction.people import fold
from clerk.extraction.rules import RulesExtractor
from clerk.parts import Entities, Entity, Extracted

DEFAULT_MODEL: Final = "en_core_web_sm"
CONFIDENCE: Final = 0.85  # these models give no number of their own; what the rules found as well keeps theirs if higher
_LONGEST = 100_000  # characters of one page; models need memory for each
_AT_ONCE = 50  # pages that a process takes, and gives, together: by spaCy's thousand nobody would see how far it is
_KINDS: Final[dict[str, Literal["persons", "orgs", "locations"]]] = {
    "PERSON": "persons", "PER": "persons", "ORG": "orgs", "NORP": "orgs",
    "GPE": "locations", "LOC": "locations", "FAC": "locations",
}  # fmt: skip


def merged(found: Iterable[tuple[str, str]], rules: Entities, threshold: float) -> Entities:
    """What a model found, as (label, text), with what the rules did. Of two spellings of one the rules' stays: theirs is
    the full name, and a model's surname alone is dropped where it belongs to somebody."""
    out: Entities = {"persons": [*rules["persons"]], "orgs": [*rules["orgs"]], "locations": [*rules["locations"]]}
    parts = {part for one in rules["persons"] for part in fold(one["text"]).split()}
    if threshold > CONFIDENCE:
        return out
    for label, text in found:
        kind = _KINDS.get(label)
        text = " ".join(text.split())
        if kind is None or len(text) < 2 or not any(c.isalpha() for c in text):
            continue
        known = {fold(one["text"]) for one in out[kind]}
        is_part = kind == "persons" and fold(text) in parts
        if fold(text) not in known and not is_part:
            out[kind].append(Entity(text=text, confidence=CONFIDENCE))
    return out


class SpacyExtractor:
    """`model`: the name of an installed package, or the path of a model's folder."""

    label = "spacy"

    def __init__(self, model: str = DEFAULT_MODEL, threshold: float = 0.7, processes: int = 1) -> None:
        self._rules = RulesExtractor(threshold)
        self._threshold = threshold
        self._processes = processes
        self._model = _load(model)
        meta = self._model.meta
        self.version = f"{meta.get('lang', '')}_{meta.get('name', model)}-{meta.get('version', '')}+{self._rules.version}"

    def extract(self, pages: Sequence[str]) -> Iterator[Extracted]:
        by_rules = self._rules.extract(pages)
        texts = (page[:_LONGEST] for page in pages)
        processes = self._processes if len(pages) > _AT_ONCE else 1
        documents = self._model.pipe(texts, batch_size=_AT_ONCE, n_process=processes)
        for document, ruled in zip(documents, by_rules, strict=True):
            found = [(one.label_, one.text) for one in document.ents]
            yield Extracted(merged(found, ruled.entities, self._threshold), ruled.votes)


def _load(model: str) -> Any:
    if importlib.util.find_spec("spacy") is None:
        raise Usage("spaCy is not installed: 'pip install spacy' and a model of it, or use the extractor 'rules'")
    spacy = importlib.import_module("spacy")
    try:
        return spacy.load(model, exclude=["lemmatizer", "textcat"])
    except OSError:
        raise Usage(
            f"spaCy has no model {model!r} here: install it (for example 'python -m spacy download {DEFAULT_MODEL}'),"
            " or use the extractor 'rules'"
        ) from None
