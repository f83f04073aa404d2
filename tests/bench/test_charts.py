"""Bars as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.charts import LABEL, VALUE, WIDTH, Bar, bars, ticks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows: Bar) -> ElementTree.Element:
    return ElementTree.fromstring(bars("A & <b>", "jobs per second", rows))


def test_it_is_well_formed_whatever_the_names_are():
    texts = [text.text for text in drawn(Bar('"R&Q" <fork>', 5)).iter(f"{SVG}text")]
    assert "A & <b>" in texts
    assert '"R&Q" <fork>' in texts


def test_a_bar_is_as_long_as_its_logarithm():
    root = drawn(Bar("one", 10), Bar("two", 100), Bar("three", 1000, "ours"))
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect") if rect.attrib["class"] != "ground"]
    room = WIDTH - LABEL - VALUE
    assert [round(width) for width in widths] == [1, room // 2, room]


def test_all_of_it_lies_within_the_picture():
    root = drawn(*(Bar(f"system {n}", 7.0**n) for n in range(-2, 8)))
    height = float(root.attrib["height"])
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.attrib["x"]) < WIDTH
        assert 0 < float(text.attrib["y"]) < height


def test_the_scale_ends_beyond_the_last_bar():
    assert ticks(3, 2500) == [1, 10, 100, 1000, 10_000]
    assert ticks(10, 10) == [10, 100]


def test_dark_pages_have_their_own_colours():
    assert "prefers-color-scheme: dark" in bars("t", "u", [Bar("a", 1)])


def test_without_a_figure_there_is_no_picture():
    assert bars("t", "u", [Bar("a", 0)]) == ""
