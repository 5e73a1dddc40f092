"""Sources: hub ids, folders, packages; what lies elsewhere; downloads that are checked, whole or not there."""

import hashlib
import io
import shutil
import subprocess
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from kdcore import layout, sources
from kdcore.errors import UserError
from kdcore.sources import Location, Package, locate, resolve

FILES = {"config.json": b"{}", "sub/vocab.txt": b"a\nb\n"}


def sha256(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()


def wheel(path: Path, files: dict[str, bytes] = FILES, extra: dict[str, bytes] | None = None) -> bytes:
    """A wheel `carrier` 1.0 that holds the files under carrier/model; returns its bytes."""
    info = "carrier-1.0.dist-info"
    members = {f"carrier/model/{name}": content for name, content in files.items()} | (extra or {}) | {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b""}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return path.read_bytes()


def tarball(members: dict[str, bytes | str]) -> bytes:
    """A tar.gz; a text value makes a symbolic link to it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                file.addfile(member)
            else:
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    return sink.getvalue()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index, and a package `carried` that it holds."""
    folder = tmp_path / "index"
    folder.mkdir()
    content = wheel(folder / "carrier-1.0-py3-none-any.whl")
    package = Package("carrier", "1.0", True, 0.001, sha256(content), "carrier/model",
                      {name: sha256(data) for name, data in FILES.items()})
    monkeypatch.setattr(layout, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(sources, "PACKAGES", {"carried": package})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KDFLOW_SOURCES", "")
    return folder


@pytest.fixture
def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Downloads are copies from the index folder; returns the growing list of what was fetched."""
    fetched = []

    def copy(name: str, package: Package, folder: Path) -> Path:
        fetched.append(name)
        folder.mkdir()
        return Path(shutil.copy(next(index.iterdir()), folder))

    monkeypatch.setattr(sources, "_download", copy)
    return fetched


def repack(change: dict[str, object]) -> None:
    """Change what is pinned of `carried`."""
    sources.PACKAGES["carried"] = replace(sources.PACKAGES["carried"], **change)  # type: ignore[arg-type]


def remains(folder: Path) -> list[str]:
    """Everything below the folder of sources but lock files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock")


@pytest.mark.parametrize("name", ["bert-base-uncased", "nyu-mll/glue", "google-research-datasets/paws"])
def test_hub_ids_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDFLOW_SOURCES", "other/one=/nowhere")
    assert resolve(name) == name
    assert resolve(name, "main") == name
    assert not locate(name).is_local


def test_folders_are_seen_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(resolve("./model")).resolve() == tmp_path / "model"
    assert resolve(str(tmp_path / "model")) == str(tmp_path / "model")
    assert Path(resolve("~/model")) == tmp_path / "model"


@pytest.mark.parametrize(("source", "revision", "says"), [
    ("./none", None, r"'\./none' is no folder.*correct the path"),
    ("model", None, r"'model' is a folder here.*'\./model'"),
    ("a/b/c", None, r"'a/b/c' is no hub id.*package:NAME"),
    ("", None, "is no hub id"),
    ("./model", "main", "no revision 'main'"),
    ("package:all-MiniLM-L6", None, "did you mean 'all-MiniLM-L6-v2'"),
])
def test_what_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, revision: str | None,
                           says: str) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KDFLOW_SOURCES", "")
    with pytest.raises(UserError, match=says):
        resolve(source, revision)


def test_sources_that_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative folders are seen from the repository, whatever the current folder is."""
    for name in ("glue", "ood", "mini"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(layout, "ROOT", tmp_path / "root")
    monkeypatch.setenv("KDFLOW_SOURCES", f"nyu-mll/glue=../data/glue, allenai/scitail=../data/ood#scitail,"
                                         f"package:all-MiniLM-L6-v2={tmp_path / 'data' / 'mini'},")
    assert resolve("nyu-mll/glue") == str(tmp_path / "data" / "glue")
    assert resolve("nyu-mll/glue", "main") == str(tmp_path / "data" / "glue")
    assert locate("allenai/scitail") == Location(str(tmp_path / "data" / "ood"), True, "scitail")
    assert resolve("package:all-MiniLM-L6-v2") == str(tmp_path / "data" / "mini")
    assert resolve("stanfordnlp/imdb") == "stanfordnlp/imdb"


@pytest.mark.parametrize(("value", "says"), [
    ("nyu-mll/glue", "holds 'nyu-mll/glue', expected source=folder"), ("=x", "holds '=x'"), ("a=", "holds 'a='"),
    ("a=#b", "holds 'a=#b'"), ("nyu-mll/glue=./nowhere", r"'nyu-mll/glue' lies in '\./nowhere'.*no folder"),
])
def test_malformed_places(monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    monkeypatch.setenv("KDFLOW_SOURCES", value)
    with pytest.raises(UserError, match=says):
        resolve("nyu-mll/glue")


def test_a_package_is_fetched_once(index: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """Really by pip; the second time without it."""
    folder = Path(resolve("package:carried"))
    assert folder == layout.SOURCES / "carried-1.0"
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()} == FILES
    assert "fetching carried" in capsys.readouterr().err
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("fetched again"))
    assert resolve("package:carried") == str(folder)


def test_an_incomplete_folder_is_fetched_again(index: Path, without_pip: list[str]) -> None:
    folder = Path(resolve("package:carried"))
    (folder / "config.json").unlink()
    assert (Path(resolve("package:carried")) / "config.json").read_bytes() == FILES["config.json"]


def test_other_bytes_on_the_index_are_refused(index: Path) -> None:
    repack({"archive_sha256": "0" * 64})
    with pytest.raises(UserError, match=r"cannot fetch package:carried \(carrier 1\.0\)") as caught:
        resolve("package:carried")
    assert "\n" not in str(caught.value)
    assert remains(layout.SOURCES) == []


def test_an_absent_package_says_what_to_do(index: Path) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(UserError, match="KDFLOW_SOURCES=package:carried=FOLDER"):
        resolve("package:carried")
    assert remains(layout.SOURCES) == []


def test_other_bytes_inside_are_refused(index: Path, without_pip: list[str]) -> None:
    repack({"files": {"config.json": "0" * 64}})
    found = sha256(FILES["config.json"])
    with pytest.raises(UserError, match=rf"config\.json in carrier.* has SHA-256 {found}, expected 0"):
        resolve("package:carried")
    assert remains(layout.SOURCES) == []


def test_a_member_that_is_not_there(index: Path, without_pip: list[str]) -> None:
    repack({"files": {"none.json": "0" * 64}})
    with pytest.raises(UserError, match=r"does not hold carrier/model/none\.json"):
        resolve("package:carried")
    assert remains(layout.SOURCES) == []


def test_only_what_is_pinned_is_unpacked(index: Path, without_pip: list[str]) -> None:
    """A wheel with members that lie outside or were not asked for: nothing of them is written anywhere."""
    evil = {"../../evil.txt": b"x", "/evil.txt": b"x", "carrier/model/evil.py": b"x"}
    content = wheel(next(index.iterdir()), extra=evil)
    repack({"archive_sha256": sha256(content)})
    folder = Path(resolve("package:carried"))
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(FILES)
    assert not list(index.parent.rglob("evil*"))


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "sub/../../evil.txt"])
def test_a_pinned_name_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tarball({f"root/{name}": b"x"}))
    package = Package("x", "1", False, 1, "", "root", {name: sha256(b"x")})
    (tmp_path / "target").mkdir()
    with pytest.raises(UserError, match="lies outside"):
        sources._unpack(archive, package, tmp_path / "target")
    assert not list(tmp_path.rglob("evil*"))


def test_an_archive_inside_an_archive(tmp_path: Path) -> None:
    inner = tarball({"ratings/a.txt": b"1", "ratings/b.txt": b"2", "ratings/c.txt": b"not asked for"})
    archive = tmp_path / "outer.tar.gz"
    archive.write_bytes(tarball({"x-1/data.tar.gz": inner}))
    package = Package("x", "1", False, 1, "", "ratings", {"a.txt": sha256(b"1"), "b.txt": sha256(b"2")},
                      inner="x-1/data.tar.gz")
    (tmp_path / "target").mkdir()
    sources._unpack(archive, package, tmp_path / "target")
    assert {path.name: path.read_bytes() for path in (tmp_path / "target").iterdir()} == {"a.txt": b"1", "b.txt": b"2"}


@pytest.mark.parametrize(("content", "says"), [
    (tarball({"root/a.txt": "/etc/passwd"}), "is a link or a folder"), (b"no archive", "no readable archive"),
    (tarball({"root/a.txt": b"1"})[:-30], "a.txt|archive"),
], ids=["link", "no archive", "cut short"])  # the bytes hold the time: as names they would differ between processes
def test_archives_that_are_not_what_they_should_be(tmp_path: Path, content: bytes, says: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    (tmp_path / "target").mkdir()
    with pytest.raises(UserError, match=says):
        sources._unpack(archive, Package("x", "1", False, 1, "", "root", {"a.txt": "0"}), tmp_path / "target")
    assert not list((tmp_path / "target").iterdir())


def test_an_interruption_leaves_nothing(without_pip: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def half(archive: Path, package: Package, target: Path) -> None:
        (target / "config.json").write_bytes(b"{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sources, "_unpack", half)
        with pytest.raises(KeyboardInterrupt):
            resolve("package:carried")
    assert remains(layout.SOURCES) == []
    assert Path(resolve("package:carried")).is_dir()


def test_remains_of_a_killed_process_are_removed(index: Path, without_pip: list[str]) -> None:
    killed = layout.SOURCES / ".carried.part-abc" / "unpacked"
    killed.mkdir(parents=True)
    (killed / "config.json").write_bytes(b"{")
    resolve("package:carried")
    assert remains(layout.SOURCES) == ["carried-1.0", "carried-1.0/config.json", "carried-1.0/sub",
                                       "carried-1.0/sub/vocab.txt"]


def test_two_at_once_fetch_once(without_pip: list[str]) -> None:
    threads = [threading.Thread(target=resolve, args=("package:carried",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert without_pip == ["carried"]


def test_what_is_pinned_is_well_formed() -> None:
    for package in sources.PACKAGES.values():
        for digest in (package.archive_sha256, *package.files.values()):
            assert len(digest) == 64
            assert int(digest, 16) >= 0
