"""`./run demo`: documents are made and served; the sites fetch, read and publish them; a search; where to look next."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from clerk.cli import exits
from clerk.demo import clicking, documents, ending, show
from clerk.demo.documents import Scale, Truth
from clerk.demo.folder import Folder
from clerk.demo.towns import TOWNS
from clerk.errors import ClerkError

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULT: Final = "demo"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--folder", default=_DEFAULT, metavar="DIR", help=f"Where it goes (default: {_DEFAULT}).")
@click.option("--tiny", is_flag=True, help="Fewer pages, and coarser scans.")
@click.option("--serve/--no-serve", default=None, help="End with the dashboard open (default: on a terminal).")
@click.option("--called", default="python -m clerk.demo", hidden=True, help="What a person typed for this.")
def demo(folder: str, tiny: bool, serve: bool | None, called: str) -> None:
    """Documents of four municipalities that do not exist: made, served, fetched, read, published, searched.

    All of it goes into one folder. Run again, it does only what is new.
    """
    again = " ".join([called, *(["--folder", shlex.quote(folder)] if folder != _DEFAULT else []), *["--tiny"] * tiny])
    to, place = show.console(), Folder(Path(folder))
    try:
        with place.taken(), _with_a_way_out(place):
            truth = tell(place, "tiny" if tiny else "small", to, again)
    except KeyboardInterrupt:
        show.stopped(to, again)
        raise
    if clicking.somebody_is_there() if serve is None else serve:
        clicking.serve(truth.folder, to)


def tell(place: Folder, scale: Scale, to: Console, again: str) -> Truth:
    """All of it, in the order in which it is seen."""
    from clerk import app, config, logs
    from clerk.demo import passing
    from clerk.demo.server import serving
    from clerk.demo.sites import sites
    from clerk.reading import backends

    settings = config.load()
    backends.find(settings.ocr_backend)  # where nobody can read a scan, that is said before anything is made
    logs.configure(settings, "demo-1", aloud=False)
    show.say(to, f"Everything goes into the folder {place.shown()}")
    truth = make(place.path, scale, to)
    with app.open_mill(settings, create=True) as mill, serving(truth.folder, passing.former_port(mill)) as server:
        show.say(to, f"Serving them at {server.url}: an index, an archive, a feed, Legistar")
        runs = passing.ask(mill, sites(server.url))
        show.say(to, "Through the pipeline: fetch, ocr of each document, compile and extract, deploy\n")
        began = time.monotonic()
        ended = passing.work(mill, runs, to)
        ending.report(mill, truth, ended, time.monotonic() - began, server.counts(documents=True), to)
    ending.find(place.path / "published", truth, to)
    show.next_steps(to, ending.steps(place, truth, again))
    return truth


@contextlib.contextmanager
def _with_a_way_out(place: Folder) -> Iterator[None]:
    """Whatever somebody did to the folder, or an older version left in it: there is always another beginning."""
    try:
        yield
    except ClerkError as error:
        raise type(error)(f"{error}; to begin afresh: rm -r {place.shown()}") from error


def make(folder: Path, scale: Scale, to: Console) -> Truth:
    into = folder / ("documents" if scale == "small" else f"documents-{scale}")
    what = f"Making {documents.COUNT} documents of {len(TOWNS)} municipalities"
    return Truth(into, tuple(show.counted(to, what, documents.making(into, scale=scale), documents.COUNT)))


def _stop(number: int, frame: object) -> NoReturn:
    """Once: while it stops there is nothing that could be stopped faster."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    try:
        return exits.run_command(demo, sys.argv[1:] if argv is None else argv, "./run demo")
    except KeyboardInterrupt:
        return exits.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
