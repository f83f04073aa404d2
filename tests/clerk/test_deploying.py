"""Every deployer does the same: brings all of it, then switches in one step; and what was there stays if anything fails."""

from __future__ import annotations

import json
import os
from collections import UserDict
from collections.abc import Callable, ItemsView, Iterator, Mapping
from pathlib import Path

import pytest

from clerk import deploying
from clerk.compiling import compile_site
from clerk.deploying import FolderDeployer, RsyncDeployer, S3Deployer, deployer
from clerk.errors import ClerkError, Critical, Transient, Usage
from clerk.parts import Publication
from clerk.storage import Document, SiteFiles
from tests.clerk import targets
from tests.clerk.site import AGENDA, COUNCIL, write_pages, write_pdf
from tests.clerk.targets import Target

SITE = "alameda.ca"


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    with targets.s3_server() as environment:
        yield environment


@pytest.fixture(params=["folder", *targets.RSYNCS, "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    if request.param == "folder":
        yield targets.folder(tmp_path)
    elif request.param == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        yield targets.Store(tmp_path.name)
    else:
        with targets.other_machine(tmp_path, request.param) as there:
            yield there


@pytest.fixture
def files(tmp_path: Path) -> SiteFiles:
    files = SiteFiles(tmp_path / "sites", SITE)
    write_pages(files, COUNCIL, "one")
    write_pdf(files, COUNCIL)
    write_pdf(files, AGENDA, b"%PDF-1.4 agenda")
    compile_site(files, 1)
    return files


def version(files: SiteFiles, name: str) -> Publication:
    """The site as it is now, with a database that says which one it is."""
    database = files.root / f"{name}.db"
    database.write_text(name)
    made = deploying.publication(files, {}, 1)
    return Publication(SITE, name, {**made.files, "meetings.db": database})


def test_each_version_replaces_the_one_before_which_is_kept(target: Target, files: SiteFiles) -> None:
    for name in ("v1", "v2", "v3"):
        target.deployer.deploy(version(files, name))
        assert target.read(SITE, "meetings.db") == name.encode()
    assert target.read(SITE, "pdfs/CityCouncil/2026-01-06.pdf") == b"%PDF-1.4 small"
    assert target.read(SITE, "_agendas/pdfs/CityCouncil/2026-01-06.pdf") == b"%PDF-1.4 agenda"
    assert json.loads(target.read(SITE, "metadata.json") or b"")["databases"]["meetings"]["tables"]["minutes"][
        "label_column"
    ]
    assert [name.partition(".")[0] for name in target.versions(SITE)] == ["v2", "v3"]


def test_a_pdf_that_did_not_change_is_not_brought_again(target: Target, files: SiteFiles) -> None:
    pdfs = ["pdfs/CityCouncil/2026-01-06.pdf", "_agendas/pdfs/CityCouncil/2026-01-06.pdf"]
    target.deployer.deploy(version(files, "v1"))
    first = [target.identity(SITE, pdf) for pdf in pdfs]
    target.deployer.deploy(version(files, "v2"))
    assert [target.identity(SITE, pdf) for pdf in pdfs] == first
    files.pdf(AGENDA).unlink()
    write_pdf(files, AGENDA, b"%PDF-1.4 another")
    target.deployer.deploy(version(files, "v3"))
    assert target.identity(SITE, pdfs[0]) == first[0]
    assert target.read(SITE, pdfs[1]) == b"%PDF-1.4 another"


def test_what_was_published_stays_if_a_file_is_missing(target: Target, files: SiteFiles) -> None:
    target.deployer.deploy(version(files, "v1"))
    broken = version(files, "v2")
    files.pdf(AGENDA).unlink()
    with pytest.raises(ClerkError):
        target.deployer.deploy(broken)
    assert target.read(SITE, "meetings.db") == b"v1"
    target.deployer.deploy(version(files, "v3"))
    assert target.read(SITE, "meetings.db") == b"v3"
    assert [name.partition(".")[0] for name in target.versions(SITE)] == ["v1", "v3"]


def test_the_same_publication_again_is_the_same_publication(target: Target, files: SiteFiles) -> None:
    for _ in range(2):
        target.deployer.deploy(version(files, "v1"))
    assert target.read(SITE, "meetings.db") == b"v1"


def test_a_process_that_slept_does_not_take_back_a_later_publication(target: Target, files: SiteFiles) -> None:
    target.deployer.deploy(version(files, "v2"))
    with pytest.raises(ClerkError, match="has a later publication of"):
        target.deployer.deploy(version(files, "v1"))
    assert target.read(SITE, "meetings.db") == b"v2"


class _Slow(UserDict[str, Path]):
    """Files of a publication; while they are brought, something else happens."""

    def __init__(self, files: Mapping[str, Path], meanwhile: Callable[[], object]) -> None:
        super().__init__(files)
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def items(self) -> ItemsView[str, Path]:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().items()


@pytest.mark.parametrize("target", [*targets.RSYNCS, "s3"], indirect=True)  # in a folder, one at a time is at work
def test_a_later_publication_that_came_meanwhile_is_not_taken_back(target: Target, files: SiteFiles) -> None:
    later = version(files, "v2")
    slow = _Slow(version(files, "v1").files, lambda: target.deployer.deploy(later))
    with pytest.raises(ClerkError, match="has a later publication of"):
        target.deployer.deploy(Publication(SITE, "v1", slow))
    assert target.read(SITE, "meetings.db") == b"v2"


def test_what_has_arrived_of_a_publication_that_was_broken_off_does_not_travel_again(
    tmp_path: Path, files: SiteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: a first publication may take longer than a job may."""
    for day in range(1, 6):  # and two that are there already
        write_pdf(files, Document("minutes", "CityCouncil", f"2026-02-0{day}"))
    with targets.other_machine(tmp_path, "rsync-stand-in") as there:
        versions = tmp_path / "their home; touch x" / "published" / ".versions" / SITE
        monkeypatch.setenv("RSYNC_BREAKS_AFTER", "3")
        for number in (1, 2):
            with pytest.raises(Transient, match="rsync failed with 12"):
                there.deployer.deploy(version(files, f"v{number}"))
        arrived = {path.stat().st_ino for path in versions.rglob("*.pdf") if not path.name.startswith(".")}
        assert len(arrived) == 6
        there.deployer.deploy(version(files, "v3"))
        seen = {path.stat().st_ino for path in versions.rglob("*.pdf")}
        assert (arrived < seen, len(seen)) == (True, 7)
        assert [name.partition(".")[0] for name in there.versions(SITE)] == ["v3"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\nb"])
def test_names_cannot_leave_their_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(Usage, match="no file of a publication is called"):
        targets.folder(tmp_path).deployer.deploy(Publication(SITE, "v1", {name: tmp_path / "f"}))
    for bad in (Publication("../x", "v1"), Publication(SITE, "../v1"), Publication(SITE, "-v")):
        with pytest.raises(Usage):
            targets.folder(tmp_path).deployer.deploy(bad)


@pytest.mark.parametrize("target", ["folder", *targets.RSYNCS], indirect=True)
def test_what_stands_in_the_way_is_not_removed(target: targets.Tree, files: SiteFiles) -> None:
    (target.root / SITE).mkdir(parents=True)
    (target.root / SITE / "kept").write_text("x")
    with pytest.raises(ClerkError, match="is no link that clerk has made"):
        target.deployer.deploy(version(files, "v1"))
    assert target.read(SITE, "kept") == b"x"


# ---- what is published


def test_a_publication_is_the_database_its_description_and_the_pdfs(files: SiteFiles) -> None:
    made = deploying.publication(files, {"name": "Alameda", "state": "CA"}, 12)
    assert sorted(made.files) == [
        "_agendas/pdfs/CityCouncil/2026-01-06.pdf",
        "meetings.db",
        "metadata.json",
        "pdfs/CityCouncil/2026-01-06.pdf",
    ]
    before = made.files["metadata.json"].stat().st_mtime_ns
    described = json.loads(made.files["metadata.json"].read_text())
    assert (described["title"], described["description"][:36]) == (
        "Alameda: minutes and agendas",
        "The meeting documents of Alameda, CA",
    )
    again = deploying.publication(files, {"name": "Alameda", "state": "CA"}, 13)
    assert again.version > made.version
    assert again.files["metadata.json"].stat().st_mtime_ns == before, "what says the same is not written again"
    with pytest.raises(ClerkError, match="compile none first"):
        deploying.publication(SiteFiles(files.root.parent, "none"), {}, 1)


def test_the_published_database_is_a_file_of_its_own(tmp_path: Path, files: SiteFiles) -> None:
    FolderDeployer(tmp_path / "published").deploy(deploying.publication(files, {}, 1))
    assert (tmp_path / "published" / SITE / "meetings.db").stat().st_nlink == 1
    assert (tmp_path / "published" / SITE).readlink().is_absolute() is False, "the folder can be moved as a whole"


def test_where_there_are_no_hard_links_to_the_storage_pdfs_are_linked_from_the_version_before(
    tmp_path: Path, files: SiteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the storage is on another file system."""
    link = os.link

    def within(source: Path, target: Path) -> None:
        if "sites" in Path(source).parts:
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", within)
    test_a_pdf_that_did_not_change_is_not_brought_again(targets.folder(tmp_path), files)


# ---- which deployer


def test_the_target_says_which_deployer() -> None:
    folder, rsync, url, s3 = (
        deployer(target)
        for target in ("./published", "clerk@host.example:/srv/x", "ssh://clerk@host:2222/srv/a%20b", "s3://bucket/a/b/")
    )
    assert isinstance(folder, FolderDeployer)
    assert folder.root == Path.cwd() / "published"
    assert isinstance(rsync, RsyncDeployer)
    assert (rsync.there.host, rsync.there.path, rsync.there.port) == ("clerk@host.example", "/srv/x", None)
    assert isinstance(url, RsyncDeployer)
    assert (url.there.host, url.there.path, url.there.port) == ("clerk@host", "/srv/a b", 2222)
    assert isinstance(s3, S3Deployer)
    assert (s3.bucket, s3.prefix) == ("bucket", "a/b")


NO_TARGETS = ["", "a\nb", "ftp://x/y", "s3://", "s3://key:secret@bucket/x", "ssh://-oProxyCommand=x/y", "ssh://u:p@host/x"]
NO_TARGETS += ["ssh://host:99999/x", "ssh://host", "host:-rf", "host:", "ssh://host/", "host:a\nb", "rsync://ho st/x"]


@pytest.mark.parametrize("target", NO_TARGETS)
def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(Usage, match="DEPLOY_TARGET wants"):
        deployer(target)


@pytest.mark.parametrize("rsync", targets.RSYNCS)
def test_no_connection_may_come_back_and_a_missing_program_is_critical(
    tmp_path: Path, files: SiteFiles, monkeypatch: pytest.MonkeyPatch, rsync: str
) -> None:
    with targets.other_machine(tmp_path, rsync) as there:
        monkeypatch.setenv("SSH_FAILS", "1")
        with pytest.raises(Transient, match="ssh failed with 255: ssh: connect to host"):
            there.deployer.deploy(version(files, "v1"))
        assert set((tmp_path / "ssh.log").read_text().split()) == {"clerk@other.example"}
        monkeypatch.delenv("SSH_FAILS")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(Critical, match="the program ssh is missing"):
            there.deployer.deploy(version(files, "v1"))


def test_a_store_that_is_not_there_may_come_back_and_a_key_that_is_wrong_may_not(
    files: SiteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore
    from obstore.exceptions import PermissionDeniedError

    def refused(*given: object, **named: object) -> None:
        raise PermissionDeniedError("Forbidden")

    monkeypatch.setattr(obstore, "get", refused)
    with pytest.raises(ClerkError, match=r"s3://bucket/alameda\.ca refuses these credentials"):
        S3Deployer("s3://bucket").deploy(version(files, "v1"))
    monkeypatch.undo()
    for name, value in {"ENDPOINT_URL": "http://127.0.0.1:9", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("clerk.deploying.s3._RETRIES", {"max_retries": 0})
    with pytest.raises(Transient, match="could not be written"):
        S3Deployer("s3://bucket/x").deploy(version(files, "v1"))


def test_credentials_may_be_in_the_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service has nothing else."""
    (tmp_path / ".env").write_text("AWS_ACCESS_KEY_ID=mine\nAWS_SECRET_ACCESS_KEY=secret\nAWS_REGION=eu-north-1\n")
    monkeypatch.chdir(tmp_path)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    found = S3Deployer("s3://bucket/x")._store().config
    assert (found.get("access_key_id"), found.get("region")) == ("mine", "eu-north-1")
