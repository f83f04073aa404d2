"""Native code runs in children that may crash, hang or be killed, and in backends that may be missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from clerk.config import Config
from clerk.errors import Crashed, Critical, TimedOut, Transient, Unreadable, Usage
from clerk.parts import PageText
from clerk.reading import backends, reader
from tests.clerk import papers

CONFIG = Config(ocr_lang="eng")
Install = Callable[[str], Path]


@pytest.fixture
def tesseract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a program of that name first on the path."""

    def install(body: str) -> Path:
        backends.installed.cache_clear()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        return papers.program(tmp_path / "bin", body)

    yield install
    backends.installed.cache_clear()


def read(path: Path, config: Config = CONFIG, backend: str = "tesseract") -> list[PageText]:
    return list(reader.pages(path, 1, None, config, backends.find(backend)))


def child_of(pid: int, *but: int) -> psutil.Process:
    children = [each for each in psutil.Process(pid).children() if each.pid not in but and not is_gone(each.pid)]
    [child] = [each for each in children if "clerk.reading.child" in each.cmdline()]
    return child


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- crashes


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
def test_case_10_a_child_that_crashes_is_an_error_of_the_document(tmp_path: Path, how: signal.Signals) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE] * 3)
    with reader.opened(path, CONFIG) as opened:
        child = child_of(os.getpid())
        child.send_signal(how)
        with pytest.raises(Crashed, match=rf"a\.pdf: reading pages 1 to 3, at page 1, the process was killed by {how.name}"):
            list(opened.read(1, 3))
    assert is_gone(child.pid)
    assert len(read(path)) == 3  # and the next one is read


def test_case_24_the_child_is_a_new_python_and_has_no_thread_of_ours(tmp_path: Path) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE])
    with reader.opened(path, CONFIG):
        command = child_of(os.getpid()).cmdline()
    assert command == [sys.executable, "-P", "-m", "clerk.reading.child"]


def test_a_child_that_did_well_reads_the_next_document_too(tmp_path: Path) -> None:
    one, other = papers.typed(tmp_path / "a.pdf", [papers.LINE] * 2), papers.typed(tmp_path / "b.pdf", ["Another " * 20])
    with reader.opened(one, CONFIG) as opened:
        first = child_of(os.getpid())
        assert [page.text.count(papers.LINE) for page in opened.read(1, 2)] == [1, 1]
    wait_for(lambda: str(one) not in [file.path for file in first.open_files()])
    with reader.opened(other, CONFIG) as opened, reader.opened(one, CONFIG) as beside:
        assert child_of(os.getpid(), first.pid) != first  # this one is busy
        assert [page.text.strip()[:7] for page in opened.read(1, 1)] == ["Another"]
        assert beside.count == 2


@pytest.mark.parametrize("trouble", ["killed while it waits", "a page that failed", "half read", "another environment"])
def test_a_child_with_any_trouble_reads_no_other_document(
    tmp_path: Path, tesseract: Install, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    tesseract("echo bad image >&2; exit 1" if trouble == "a page that failed" else "echo Read it")
    path = papers.scanned(tmp_path / "a.pdf", ["one", "two"])
    with reader.opened(path, CONFIG, backends.find("tesseract")) as opened:
        child = child_of(os.getpid())
        pages = opened.read(1, 2)
        assert next(pages).number == 1
        if trouble != "half read":
            assert next(pages).number == 2
    if trouble == "killed while it waits":
        child.kill()
        wait_for(lambda: is_gone(child.pid))
    if trouble == "another environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with reader.opened(path, CONFIG, backends.find("tesseract")) as opened:
        assert child_of(os.getpid()).pid != child.pid
        assert len(list(opened.read(1, 2))) == 2
    assert is_gone(child.pid)


def test_a_document_is_not_blamed_for_a_child_that_is_killed_as_it_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE])
    assert reader.inspect(path, CONFIG) == 1
    child = child_of(os.getpid())

    def dies_when_seen(_: object) -> bool:
        child.kill()
        return True

    monkeypatch.setattr(reader._Child, "is_alive", property(dies_when_seen))
    assert reader.inspect(path, CONFIG) == 1
    assert is_gone(child.pid)


def test_who_asks_for_pages_of_a_closed_document_gets_none_of_the_next(tmp_path: Path) -> None:
    one, other = papers.typed(tmp_path / "a.pdf", [papers.LINE]), papers.typed(tmp_path / "b.pdf", ["Another " * 20])
    with reader.opened(one, CONFIG) as opened:
        late = opened.read(1, 1)
    with reader.opened(other, CONFIG) as opened:
        with pytest.raises(ValueError, match="the document is closed"):
            next(late)
        assert [page.text[:7] for page in opened.read(1, 1)] == ["Another"]


def test_the_last_words_of_a_child_are_about_the_document_that_it_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypdfium2.py").write_text(
        "import os, sys\n"
        "class PdfDocument:\n"
        "    def __init__(self, path):\n"
        "        if path.name == 'a.pdf':\n"
        "            print('odd font in', path, file=sys.stderr, flush=True)\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, number): os._exit(3)\n"
        "    def close(self): ...\n"
        "    init_forms = close\n"
        "class PdfiumError(Exception): ...\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert reader.inspect(papers.typed(tmp_path / "a.pdf", [papers.LINE]), CONFIG) == 1
    with pytest.raises(Crashed, match=r"b\.pdf: reading pages 1 to 1, at page 1, the process ended with code 3: $"):
        read(papers.typed(tmp_path / "b.pdf", [papers.LINE]))


def test_a_fork_of_ours_has_its_own_child(tmp_path: Path) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE])
    assert reader.inspect(path, CONFIG) == 1
    pid = os.fork()
    if not pid:
        code = 1
        with reader.opened(path, CONFIG) as opened:
            code = 0 if child_of(os.getpid()).ppid() == os.getpid() and len(list(opened.read(1, 1))) == 1 else 2
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(read(path)) == 1


def test_a_bug_in_the_child_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise RuntimeError('no library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE])
    with pytest.raises(Crashed, match="opening it, the process ended with code 1: RuntimeError: no library"):
        reader.inspect(path, CONFIG)


@pytest.mark.parametrize("times", [1, 2])
def test_a_tesseract_that_crashes_on_a_page_is_asked_once_more(tmp_path: Path, tesseract: Install, times: int) -> None:
    count = tmp_path / "count"
    tesseract(f"echo x >> {count}; if [ $(wc -l < {count}) -le {times} ]; then kill -SEGV $$; fi; echo Read it")
    path = papers.scanned(tmp_path / "a.pdf", ["one", "two"])
    first = PageText(1, "Read it", None, "tesseract")
    crashed = PageText(1, "", "tesseract crashed twice on it (SIGSEGV)")
    assert read(path) == [first if times == 1 else crashed, PageText(2, "Read it", None, "tesseract")]


def test_a_page_that_tesseract_refuses_is_an_error_of_that_page(tmp_path: Path, tesseract: Install) -> None:
    tesseract("echo Leptonica: bad image >&2; exit 1")
    path = papers.scanned(tmp_path / "a.pdf", ["one"])
    assert read(path) == [PageText(1, "", "tesseract cannot read it: Leptonica: bad image")]


def test_a_machine_without_a_place_for_images_is_nobodys_documents_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(Critical, match="documents cannot be read on this machine now"):
        reader.inspect(papers.typed(tmp_path / "a.pdf", [papers.LINE]), CONFIG)


# ---- time


def test_opening_has_its_time(tmp_path: Path) -> None:
    path = papers.typed(tmp_path / "a.pdf", [papers.LINE])
    with pytest.raises(TimedOut, match=r"a\.pdf: opening it took longer than 0\.001 s"):
        reader.inspect(path, Config(pdf_read_timeout=0.001))


def test_a_page_that_takes_forever_costs_only_itself(tmp_path: Path, tesseract: Install) -> None:
    tesseract(f"if mkdir {tmp_path}/first 2>/dev/null; then exec sleep 600; fi; echo Read it")
    path = papers.scanned(tmp_path / "a.pdf", ["one", "two"])
    assert read(path, Config(pdf_convert_timeout=12)) == [
        PageText(1, "", "tesseract took longer than 4 s on it"),
        PageText(2, "Read it", None, "tesseract"),
    ]


def test_a_lot_of_pages_has_its_time_and_nothing_is_left_running(tmp_path: Path, tesseract: Install) -> None:
    tesseract(f"echo $$ >> {tmp_path}/pids; exec sleep 600")
    path = papers.scanned(tmp_path / "a.pdf", ["page"] * 5)
    with pytest.raises(TimedOut, match=r"reading pages 1 to 5, at page \d took longer than 4 s"):
        read(path, Config(pdf_convert_timeout=4))
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_for(lambda: all(map(is_gone, started)))


def test_children_die_with_their_parent(tmp_path: Path, tesseract: Install) -> None:
    tesseract(f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    path = papers.scanned(tmp_path / "a.pdf", ["one"])
    script = """
import pathlib, sys
from clerk.config import Config
from clerk.reading import backends, reader
list(reader.pages(pathlib.Path(sys.argv[1]), 1, None, Config(ocr_lang="eng"), backends.find("tesseract")))
"""
    images = tmp_path / "images"
    images.mkdir()
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(images)}) as parent:
        wait_for((tmp_path / "pid").exists)
        reading, ocr = child_of(parent.pid).pid, int((tmp_path / "pid").read_text())
        assert list(images.iterdir())
        parent.kill()
    wait_for(lambda: is_gone(reading) and is_gone(ocr))
    wait_for(lambda: not list(images.glob("*/*")))


# ---- backends


def test_the_program_of_the_wheel_serves_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backends.installed.cache_clear()
    image = tmp_path / "page.png"
    papers.picture("Motion carried").save(image)
    assert "eng" in backends.installed()
    assert backends.find("tesseract").read(image, "eng").strip() == "Motion carried"


def test_languages_are_those_that_are_installed(tesseract: Install) -> None:
    tesseract("")
    assert backends.languages("tesseract", None) == "eng+spa"
    assert backends.languages("tesseract", "spa") == "spa"
    assert backends.languages("of a plugin", None) == "eng"
    with pytest.raises(Critical, match="no data for deu, xyz here, only eng, spa: install it or change OCR_LANG"):
        backends.languages("tesseract", "eng+deu+xyz")


def test_tesseract_gets_its_languages_and_one_thread(tmp_path: Path, tesseract: Install) -> None:
    tesseract('echo "$OMP_THREAD_LIMIT $3 $4"')
    path = papers.scanned(tmp_path / "a.pdf", ["one"])
    assert read(path, Config()) == [PageText(1, "1 -l eng+spa", None, "tesseract")]


def test_a_tesseract_that_does_not_run_is_the_machines_fault(tmp_path: Path, tesseract: Install) -> None:
    program = tesseract("")
    program.write_text("#!/bin/sh\necho libtesseract.so.5: cannot open shared object >&2\nexit 127\n")
    with pytest.raises(Critical, match=r"does not run here: libtesseract\.so\.5"):
        read(papers.scanned(tmp_path / "a.pdf", ["one"]))


def test_a_tesseract_that_vanishes_is_the_machines_fault(tmp_path: Path, tesseract: Install) -> None:
    program = tesseract(f"rm {tmp_path}/bin/tesseract; echo Read it")
    path = papers.scanned(tmp_path / "a.pdf", ["one", "two"])
    with pytest.raises(Critical, match=r"cannot be read on this machine now: .*No such file"):
        read(path)
    assert not program.exists()


def test_a_backend_that_is_impossible_here_says_so() -> None:
    if sys.platform != "darwin":
        with pytest.raises(Usage, match="'vision' needs macOS, and this is Linux: take tesseract"):
            backends.find("vision")
    with pytest.raises(Usage, match="'rapidocr' is not installed here: pip install rapidocr onnxruntime"):
        backends.find("rapidocr")
    with pytest.raises(Usage, match=r"no OCR backend 'tesseact': tesseract, vision, rapidocr, or a plugin's\. Did you mean"):
        backends.find("tesseact", lambda label: None)


class Loud:
    """A backend as a plugin brings it."""

    label = "loud"

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[bytes, str]] = []

    def read(self, image: Path, languages: str) -> str:
        self.asked.append((image.read_bytes()[:2], languages))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_plugins_backend_reads_images_in_the_process_that_has_it(tmp_path: Path) -> None:
    long = "MOTION " * 50_000  # more than a pipe holds
    loud = Loud("ONE", Unreadable("too loud"), ValueError("a bug"), long)
    path = papers.scanned(tmp_path / "a.pdf", ["one", "two", "three", "four"])
    found = backends.find("loud", {"loud": loud}.get)
    assert list(reader.pages(path, 1, None, Config(), found)) == [
        PageText(1, "ONE", None, "loud"),
        PageText(2, "", "too loud"),
        PageText(3, "", "loud cannot read it: ValueError: a bug"),
        PageText(4, long.strip(), None, "loud"),
    ]
    assert loud.asked == [(b"\xff\xd8", "eng")] * 4


def test_a_plugins_backend_may_say_that_it_is_not_the_page(tmp_path: Path) -> None:
    path = papers.scanned(tmp_path / "a.pdf", ["one"])
    with pytest.raises(Transient, match="429"):
        list(reader.pages(path, 1, None, Config(), Loud(Transient("429"))))


def test_vision_leaves_a_page_that_it_cannot_read_to_tesseract(
    tmp_path: Path, tesseract: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for macOS and its framework: ours is the order, the languages and the fall-back."""
    tesseract("echo by tesseract")
    (tmp_path / "ocrmac").mkdir()
    (tmp_path / "ocrmac" / "__init__.py").write_text("import os\nos.uname = lambda: os.uname_result(['Darwin'] * 5)\n")
    (tmp_path / "ocrmac" / "ocrmac.py").write_text("""
class OCR:
    def __init__(self, image, language_preference):
        self.image, self.languages = image, language_preference
    def recognize(self):
        if self.image.width == 800:
            return [("by Vision", 1.0, [0, 0, 1, 1]), (" ".join(self.languages), 1.0, [0, 0, 1, 1])]
        raise RuntimeError("no")
""")
    (tmp_path / "sitecustomize.py").write_text("import ocrmac")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "", "", "", "")))
    [page] = read(papers.scanned(tmp_path / "a.pdf", ["one"]), Config(), "vision")
    assert (page.text, page.source) == ("by Vision\nen-US es-ES", "vision")
    [page] = read(papers.scanned(tmp_path / "b.pdf", ["one"], dpi=220), Config(), "vision")
    assert (page.text, page.source) == ("by tesseract", "tesseract")
