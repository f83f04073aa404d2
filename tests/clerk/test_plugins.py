"""Plugins: where they come from, who answers first, and what a broken one says. The ones in the docs work."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from clerk import plugins
from clerk.compiling import compile_site
from clerk.config import Config
from clerk.deploying import publication
from clerk.errors import ClerkError, Critical, Transient, Unreadable
from clerk.fetchers.http import Client
from clerk.parts import Known, Publication, Wanted
from clerk.plugins import Plugins
from clerk.storage import SiteFiles
from tests.clerk.site import COUNCIL, search, write_pages
from tests.docs.pages import blocks
from tests.servers import ROOT

PAGE = ROOT / "docs" / "clerk" / "plugins.md"
HEAD = "from clerk.plugins import hookimpl\n"
HOOKS = [name for name in vars(plugins.Hooks) if not name.startswith("_")]


def plugin(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(HEAD + text)
    return folder


def from_docs(section: str, folder: Path) -> Plugins:
    (text,) = [block.text for block in blocks(PAGE, "python") if block.section == section]
    return plugins.load(plugin(folder / "plugins", "from_docs.py", text))


def test_without_plugins_nobody_answers(tmp_path: Path) -> None:
    for none in (plugins.load(None), plugins.load(tmp_path / "none"), plugins.load(plugin(tmp_path, "_x.py", "1 / 0"))):
        assert none.fetcher_class("folder") is None
        assert none.fetcher_extra("folder") == {}
        assert none.ocr_backend("x") is None
        assert none.extractor("x") is None
        assert not none.deploys
        none.post_deploy({"subdomain": "a"})


def test_the_first_answer_wins_and_packages_are_asked_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = "@hookimpl\ndef fetcher_extra(label):\n    return {{'by': '{0}'}} if label in {1} else None\n"
    plugin(tmp_path, "packaged.py", answers.format("package", ["p"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint("pack", "packaged", group)])
    for name in ("b", "a"):
        plugin(tmp_path / "plugins", f"{name}.py", answers.format(name, ["p", "x", name]))
    loaded = plugins.load(tmp_path / "plugins")
    assert [loaded.fetcher_extra(label).get("by") for label in ("p", "x", "b", "none")] == ["package", "a", "b", None]


def test_other_hooks_run_in_all_plugins_in_order(tmp_path: Path) -> None:
    hooks = {
        "deploy_municipality": "subdomain",
        "post_deploy": "site",
        "upload_static_file": "file_path, storage_path",
        "post_create": "subdomain",
        "pre_compilation": "",  # one that does not want its argument
        "post_compilation": "subdomain",
    }
    for name in ("one", "two"):
        text = "".join(
            f"@hookimpl\ndef {hook}({takes}):\n    with LOG.open('a') as log:\n        log.write('{name} {hook}\\n')\n"
            for hook, takes in hooks.items()
        )
        log = f"from pathlib import Path\nLOG = Path({str(tmp_path / 'log')!r})\n"
        plugin(tmp_path / "plugins", f"{name}.py", log + text)
    loaded = plugins.load(tmp_path / "plugins")
    assert loaded.deploys
    loaded.deploy_municipality(Publication("a", "1"))
    loaded.post_deploy({"subdomain": "a"})
    loaded.upload_static_file(tmp_path / "x", "y")
    loaded.post_create("a")
    loaded.pre_compilation("a")
    loaded.post_compilation("a")
    assert (tmp_path / "log").read_text().split("\n")[:-1] == [f"{who} {hook}" for hook in hooks for who in ("one", "two")]


def test_a_plugin_adds_commands(tmp_path: Path) -> None:
    text = "import click\n@hookimpl\ndef register_cli_commands(cli):\n    cli.add_command(click.Command('hello'))\n"
    group = click.Group("clerk")
    plugins.load(plugin(tmp_path, "x.py", text)).register_cli_commands(group)
    assert list(group.commands) == ["hello"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("@hookimpl\ndef post_deplo(site): ...", "there is no hook post_deplo; did you mean post_deploy"),
        ("@hookimpl\ndef post_deploy(town): ...", "town"),
        ("def post_deploy(site): ...", "post_deploy is not marked; write @hookimpl before it"),
    ],
)
def test_a_broken_plugin_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ClerkError) as caught:
        plugins.load(plugin(tmp_path, "broken.py", text))
    assert str(caught.value).startswith(f"the plugin {tmp_path / 'broken.py'} cannot be loaded: ")
    assert said in str(caught.value)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    assert text != "1 / 0" or "clerk_plugin_broken" not in sys.modules


def test_a_hook_that_fails_is_named_and_one_that_says_how_is_believed(tmp_path: Path) -> None:
    text = "from clerk.errors import Transient\n@hookimpl\ndef post_deploy(site):\n    raise site['error']\n"
    loaded = plugins.load(plugin(tmp_path, "x.py", text))
    with pytest.raises(ClerkError, match=rf"^post_deploy of the plugin {tmp_path}/x\.py failed: ValueError: bad$"):
        loaded.post_deploy({"error": ValueError("bad")})
    with pytest.raises(Transient, match=r"^later$"):
        loaded.post_deploy({"error": Transient("later")})


def test_loading_is_fast_enough_for_every_child() -> None:
    """It brings no heavy module."""
    heavy = {"httpx", "obstore", "pypdfium2", "PIL", "sqlalchemy", "click", "rich"}
    program = "import sys; from clerk import plugins; plugins.load(None); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


# ---- the ones in the docs


def test_every_hook_is_in_the_docs() -> None:
    assert len(HOOKS) == 11
    text = PAGE.read_text()
    assert [hook for hook in HOOKS if f"`{hook}(" not in text] == []


def test_the_fetcher_in_the_docs(tmp_path: Path) -> None:
    loaded = from_docs("A fetcher", tmp_path)
    made = loaded.fetcher_class("register")
    assert made is not None
    assert loaded.fetcher_class("other") is None
    assert loaded.fetcher_extra("register") == {"register": "register.csv"}
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    rows = [f"minutes,City Council,2026-01-06,{tmp_path}/a.pdf", f"agendas,City Council,2019-01-06,{tmp_path}/b.pdf"]
    (tmp_path / "r.csv").write_text("\n".join(["kind,meeting,date,path", *rows]))
    extra = {"register": str(tmp_path / "r.csv")}
    with Client(Config()) as web:
        fetcher = made(extra, web)
    (found,) = fetcher.find(Wanted("a", extra, since_year=2026))
    assert (found.kind, found.meeting, found.date) == ("minutes", "CityCouncil", "2026-01-06")
    fetched = fetcher.get(found, None, tmp_path)
    assert fetched.path is not None
    assert fetched.path.read_bytes() == b"%PDF"
    assert fetcher.get(found, Known(fetched.sha256), tmp_path).unchanged
    (tmp_path / "a.pdf").unlink()
    with pytest.raises(Unreadable, match="in the register, but not there"):
        fetcher.get(found, None, tmp_path)


def test_the_ocr_engine_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = from_docs("An OCR engine", tmp_path).ocr_backend("textshot")
    assert engine is not None
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Critical, match="textshot is missing"):
        engine.read(tmp_path / "1.png", "eng")
    (tmp_path / "textshot").write_text(
        '#!/bin/sh\n[ "$2" = eng ] || { echo "no $2" >&2; exit 1; }\necho "text of ${3##*/}"\n'
    )
    (tmp_path / "textshot").chmod(0o755)
    assert engine.read(tmp_path / "1.png", "eng") == "text of 1.png\n"
    with pytest.raises(Unreadable, match=r"could not read 1\.png: no spa"):
        engine.read(tmp_path / "1.png", "spa")


def test_the_extractor_in_the_docs(tmp_path: Path) -> None:
    extractor = from_docs("An extractor", tmp_path).extractor("committees")
    assert extractor is not None
    first, second = extractor.extract(["The Budget Committee met.", "Adjourned."])
    assert [one["text"] for one in first.entities["orgs"]] == ["Budget Committee"]
    assert (second.entities["orgs"], second.votes) == ([], {"votes": []})


def test_the_deployer_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = SiteFiles(tmp_path / "sites", "alameda.ca")
    loaded = from_docs("A deployer", tmp_path)
    assert loaded.deploys
    for run, word in enumerate(("early", "later"), 1):
        write_pages(files, COUNCIL, f"an {word} word")
        compile_site(files, run)
        loaded.deploy_municipality(publication(files, {"name": "Alameda"}, run))
        assert search(tmp_path / "www" / "alameda.ca" / "meetings.db", word)
    assert json.loads((tmp_path / "www" / "alameda.ca" / "metadata.json").read_text())["title"].startswith("Alameda:")
