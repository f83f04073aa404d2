"""A kill -9 after every statement of finish, close, start-next and every other verb, before its COMMIT and after it.

The scenes are those of the tests: a process runs the verb and kills itself there. Nothing may have changed before the
COMMIT, and everything after it; then others do the rest, and each stage has fired once.
"""

from __future__ import annotations

from xml.etree import ElementTree

from chaos.play import Play, Violation
from chaos.rows.suites import CRASHES, slow_tests

TITLE = "kill -9 at every statement boundary"
DATABASES = ("none",)  # the tests have both


def play(play: Play) -> str:
    report = play.folder / "report.xml"
    slow_tests(CRASHES, f"--junitxml={report}")
    points: dict[str, int] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        points[case.attrib["name"]] = sum(
            int(found.attrib["value"]) for found in case.iter("property") if found.attrib["name"] == "crash points"
        )
    if not points or not all(points.values()):
        raise Violation(f"scenes in which nobody died: {[name for name, died in points.items() if not died]}")
    return (
        f"{sum(points.values())} crash points in {len(points)} scenes: 0 missing, 0 double; all or nothing at each of them"
    )
