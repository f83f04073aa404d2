"""Caches of what was extracted: made once, made anew when the text, the document around it or the extractor is another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from clerk.extraction.cache import Counts, cache_of, extract_document
from clerk.extraction.rules import RulesExtractor
from clerk.parts import Extracted
from clerk.storage import Document, SiteFiles

DOCUMENT = Document("minutes", "CityCouncil", "2026-01-31")
PAGES = [
    "Present: Mayor Ann Lee, Councilmember Bob Park\n",
    "Motion by Lee, seconded by Park, to pave. Motion carried 2-0.\n",
    "Mr. Park left.\n",
]


class Counting(RulesExtractor):
    """Counts how often it is asked."""

    def __init__(self, threshold: float = 0.7) -> None:
        super().__init__(threshold)
        self.asked = 0

    def extract(self, pages: Sequence[str]) -> list[Extracted]:
        self.asked += 1
        return super().extract(pages)


@pytest.fixture
def files(tmp_path: Path) -> SiteFiles:
    site = SiteFiles(tmp_path, "alder.bay")
    folder = site.text(DOCUMENT)
    folder.mkdir(parents=True)
    for number, text in enumerate(PAGES, 1):
        (folder / f"{number}.txt").write_text(text)
    return site


def caches(files: SiteFiles) -> list[Path]:
    return [cache_of(page) for page in files.pages(DOCUMENT)]


def test_every_page_gets_a_cache_with_the_names_of_the_roll_call(files: SiteFiles) -> None:
    steps: list[tuple[int, int]] = []
    counts = extract_document(files, DOCUMENT, RulesExtractor(), lambda done, of: steps.append((done, of)))
    assert counts == Counts(pages=3, extracted=3, votes=1)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    _, second, third = (orjson.loads(path.read_bytes()) for path in caches(files))
    assert second["votes"]["votes"][0]["motion_by"] == "Ann Lee"
    assert third["entities"]["persons"] == [{"text": "Bob Park", "confidence": 0.85}]
    assert (third["extractor"], third["version"]) == ("rules", RulesExtractor().version)
    assert sorted(path.name for path in files.text(DOCUMENT).iterdir())[:2] == ["1.txt", "1.txt.extracted.json"]


class Dying(RulesExtractor):
    """Gives page by page, and dies at the last."""

    def extract(self, pages: Sequence[str]) -> Iterator[Extracted]:  # type: ignore[override]
        yield from super().extract(pages)[:-1]
        raise RuntimeError("no more")


def test_each_page_is_told_of_and_kept_as_it_is_done(files: SiteFiles) -> None:
    steps: list[tuple[int, list[bool]]] = []
    with pytest.raises(RuntimeError, match="no more"):
        extract_document(
            files, DOCUMENT, Dying(), lambda done, of: steps.append((done, [path.exists() for path in caches(files)]))
        )
    assert steps == [(1, [True, False, False]), (2, [True, True, False])]
    counts = extract_document(files, DOCUMENT, RulesExtractor())
    assert counts == Counts(pages=3, extracted=1, votes=1)


@pytest.mark.parametrize("count", [2, 4])
def test_an_extractor_that_gives_another_number_of_pages_is_refused(files: SiteFiles, count: int) -> None:
    class Wrong(RulesExtractor):
        def extract(self, pages: Sequence[str]) -> list[Extracted]:
            return super().extract(["Adjourned."] * count)

    with pytest.raises(ValueError, match="zip"):
        extract_document(files, DOCUMENT, Wrong())


def test_what_is_cached_is_not_done_again(files: SiteFiles) -> None:
    extractor = Counting()
    extract_document(files, DOCUMENT, extractor)
    before = [path.stat().st_mtime_ns for path in caches(files)]
    assert extract_document(files, DOCUMENT, extractor) == Counts(pages=3, extracted=0, votes=1)
    assert extractor.asked == 1
    assert [path.stat().st_mtime_ns for path in caches(files)] == before


def test_stopped_halfway_only_the_rest_is_written(files: SiteFiles) -> None:
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_document(files, DOCUMENT, RulesExtractor(), stop)
    assert [path.exists() for path in caches(files)] == [True, True, False]
    assert extract_document(files, DOCUMENT, RulesExtractor()) == Counts(pages=3, extracted=1, votes=1)


def test_a_new_roll_call_makes_later_pages_anew(files: SiteFiles) -> None:
    extract_document(files, DOCUMENT, RulesExtractor())
    files.pages(DOCUMENT)[0].write_text("Present: Mayor Ann Lee, Councilmember Beth Park\n")
    assert extract_document(files, DOCUMENT, RulesExtractor()).extracted == 3
    assert b"Beth Park" in caches(files)[2].read_bytes()


def test_another_version_makes_them_anew(files: SiteFiles) -> None:
    extract_document(files, DOCUMENT, RulesExtractor(0.7))
    assert extract_document(files, DOCUMENT, RulesExtractor(0.9)).extracted == 3


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"null", b'{"text_sha256": 1}', b"\xff\xfe"])
def test_a_broken_cache_is_made_anew(files: SiteFiles, broken: bytes) -> None:
    extract_document(files, DOCUMENT, RulesExtractor())
    whole = caches(files)[1].read_bytes()
    caches(files)[1].write_bytes(broken)
    assert extract_document(files, DOCUMENT, RulesExtractor()) == Counts(pages=3, extracted=1, votes=1)
    assert caches(files)[1].read_bytes() == whole


def test_a_cache_that_lost_a_list_is_made_anew(files: SiteFiles) -> None:
    extract_document(files, DOCUMENT, RulesExtractor())
    found = orjson.loads(caches(files)[1].read_bytes())
    found["entities"]["persons"] = None
    caches(files)[1].write_bytes(orjson.dumps(found))
    assert extract_document(files, DOCUMENT, RulesExtractor()).extracted == 1


def test_a_document_without_pages_is_nothing_to_do(tmp_path: Path) -> None:
    assert extract_document(SiteFiles(tmp_path, "none"), DOCUMENT, RulesExtractor()) == Counts()


def test_bytes_that_are_no_text_are_extracted_all_the_same(files: SiteFiles) -> None:
    files.pages(DOCUMENT)[2].write_bytes(b"\xff\xfe Mayor Lee \x00")
    assert extract_document(files, DOCUMENT, RulesExtractor()).pages == 3
