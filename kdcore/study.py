"""Study folders: make one, find one, shrink one to a profile, and try a point of its grid.

A study is a folder with `params.yaml`, the pipeline (`dvc.yaml`, a link to the checkout's, of a general study to its
`general.dvc.yaml`), `data/` for the user's
own files, and a DVC project of its own, so that two studies never wait for each other's lock. All studies of a
checkout share its cache. A *profile* (`profiles/smoke.yaml`) is a set of changes to `params.yaml`; it runs in a
sibling folder `NAME.smoke`, made from both, so that a smoke run never touches the results of the real one.
"""

import io
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from kdcore import config, general_config, strict
from kdcore.errors import UserError, did_you_mean
from kdcore.layout import ROOT, Layout, searched_by

MADE = "# Made from {sources}; edit those, this file is written anew at every start.\n"


def find(folder: Path | str) -> Path:
    """The study in `folder`, as an absolute path; looked for as `locate` does.

    Raises:
        UserError: there is no `params.yaml`.
    """
    found = locate(folder)
    if not (found / "params.yaml").is_file():
        known = sorted(p.parent.relative_to(ROOT).as_posix() for p in ROOT.glob("studies/*/params.yaml")
                       if searched_by(p.parent.name) == p.parent.name)
        raise UserError(f"{folder} is no study: there is no {found / 'params.yaml'}; "
                        f"{did_you_mean(str(folder), [*known, '.'])}")
    return found


def locate(folder: Path | str) -> Path:
    """Where a study lies: from the current folder if it is there, else from the checkout.

    Deployments name their studies as `studies/glue-all`, wherever their worker was started.
    """
    here = Path(folder).absolute()
    return (here if (here / "params.yaml").is_file() else ROOT / folder).resolve()


def initialise(folder: Path, params: Mapping[str, Any] | Path, code: Path = ROOT, cache: Path | None = None,
               git: bool = True) -> Layout:
    """Make a study folder: settings, pipeline, `data/` and DVC project.

    Args:
        folder: where; may exist, but holds no `params.yaml` and nothing of DVC yet.
        params: settings, or a `params.yaml` to start from; its key `code` is set to fit the folder.
        code: the checkout whose pipeline the study runs.
        cache: where DVC keeps all versions of all outs; default is the checkout's.
        git: whether the folder is under version control; a folder that git ignores or does not know is not.

    Raises:
        UserError: the folder already is a study, or the settings do not fit.
    """
    if (folder / "params.yaml").exists():
        raise UserError(f"{folder} already is a study; delete its params.yaml or choose another folder")
    for name in ("dvc.yaml", "dvc.lock", ".dvc", ".dvcignore"):
        if os.path.lexists(folder / name):
            raise UserError(f"{folder} holds {name} already, so another DVC project lives there; choose another folder")
    content = strict.read_yaml(params) if isinstance(params, Path) else dict(params)
    return _write(folder, content, code, cache, git, header="")


def profiles(study: Path) -> dict[str, Path]:
    """The profiles of a study by name."""
    return {path.stem: path for path in sorted((study / "profiles").glob("*.yaml"))}


def materialise(study: Path, profile: str | None) -> Path:
    """The folder that runs `profile` of a study, made or brought up to date; without profile, the study itself.

    Mappings of the profile are merged into those of `params.yaml`, everything else replaces what is there.

    Raises:
        UserError: no such profile, or the merged settings do not fit.
    """
    if not profile:
        return study
    known = profiles(study)
    if profile not in known:
        hint = did_you_mean(profile, known) if known else f"{study / 'profiles'} holds none"
        raise UserError(f"{study.name} has no profile {profile!r}; {hint}")
    folder = _sibling(study, profile)
    content = strict.merge(strict.read_yaml(study / "params.yaml"), strict.read_yaml(known[profile]))
    code = (study / content.get("code", ".")).resolve()
    header = MADE.format(sources=f"{study.name}/params.yaml and {study.name}/profiles/{profile}.yaml")
    folder.mkdir(exist_ok=True)
    _link(folder / "data", study / "data")
    _write(folder, content, code, cache=_cache(study), git=False, header=header)
    return folder


def trial(study: Path, key: str, content: Mapping[str, Any]) -> Path:
    """The folder that runs a trial of a study's search, made or brought up to date; see `kdcore.search`.

    It lies beside the study, so that relative paths in the settings mean the same and DVC's run cache, which knows
    stages by the paths they read, serves both. What the study has done already is taken over from its `dvc.lock`.

    Raises:
        UserError: the settings do not fit.
    """
    folder = trial_folder(study, key)
    folder.mkdir(parents=True, exist_ok=True)
    code = (study / content.get("code", ".")).resolve()
    _link(folder / "data", study / "data")
    _write(folder, content, code, cache=_cache(study), git=False, header=MADE.format(
        sources=f"{study.name}/params.yaml and a point of its grid"), pipeline=study / "dvc.yaml")
    chosen = content["study"]
    items = {*chosen["datasets"], *chosen["methods"], *(f"{dataset}-{method}" for dataset in chosen["datasets"]
                                                        for method in chosen["methods"])}
    _take_over(study, folder, code, items)
    return folder


def trial_folder(study: Path, key: str) -> Path:
    """Where the trial of a key lies."""
    return _sibling(study, f"trial-{key}")


def _sibling(study: Path, name: str) -> Path:
    """The folder of a variation of a study: beside it, and under `studies` for the checkout itself."""
    root = ROOT.resolve()
    return root / "studies" / f"demo.{name}" if study == root else study.parent / f"{study.name}.{name}"


def _take_over(study: Path, folder: Path, code: Path, items: Collection[str]) -> None:
    """Begin a `dvc.lock` with the stages of these items of the study's, unless there is one: DVC restores from its
    cache what is the same. Paths of code are seen from the new folder."""
    lock = study / "dvc.lock"
    if (folder / "dvc.lock").exists() or not lock.is_file():
        return
    content = strict.read_yaml(lock)
    content["stages"] = {name: stage for name, stage in content.get("stages", {}).items()
                         if name.partition("@")[2] in items}
    for stage in content["stages"].values():
        for dep in stage.get("deps", []):
            path = Path(os.path.abspath(study / dep["path"]))
            if path.is_relative_to(code / "kdcore"):
                dep["path"] = os.path.relpath(path, folder)
    (folder / "dvc.lock").write_text(_dump(content), encoding="utf-8")


def _write(folder: Path, content: Mapping[str, Any], code: Path, cache: Path | None, git: bool, header: str,
           pipeline: Path | None = None) -> Layout:
    folder.mkdir(parents=True, exist_ok=True)
    content = dict(content) | {"code": os.path.relpath(code.resolve(), folder.resolve())}
    general = config.is_general(content)
    strict.parse(general_config.GeneralStudy if general else config.Study, content, str(folder / "params.yaml"))
    _write_if_new(folder / "params.yaml", header + _dump(content))
    _link(folder / "dvc.yaml", pipeline or code / ("general.dvc.yaml" if general else "dvc.yaml"))
    if not (folder / "data").exists():
        (folder / "data").mkdir()
        (folder / "data" / "README.md").write_text("Your own CSV, JSONL or Parquet files go here.\n", encoding="utf-8")
    _dvc_project(folder, cache or code / ".dvc" / "cache", git)
    return Layout(folder)


def _dvc_project(folder: Path, cache: Path, git: bool) -> None:
    """What `dvc init --subdir` writes, with the cache shared; without git it must not ask git."""
    (folder / ".dvc").mkdir(exist_ok=True)
    place = os.path.relpath(cache.resolve(), (folder / ".dvc").resolve())
    core = "[core]\n    analytics = false\n    check_update = false\n" + ("" if git else "    no_scm = true\n")
    _write_if_new(folder / ".dvc" / "config", f'{core}[cache]\n    dir = {place}\n    type = "reflink,hardlink"\n')
    _write_if_new(folder / ".dvc" / ".gitignore", "/config.local\n/tmp\n/cache\n")
    _write_if_new(folder / ".dvcignore", "__pycache__/\n")


def _cache(study: Path) -> Path | None:
    """The cache that a study uses, when its DVC project names one."""
    for settings in (study / ".dvc" / "config.local", study / ".dvc" / "config"):
        if settings.is_file():
            for line in settings.read_text(encoding="utf-8").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "dir":
                    return (study / ".dvc" / value.strip()).resolve()
    return None


def _link(link: Path, target: Path) -> None:
    """A relative symbolic link, which a moved checkout keeps."""
    place = os.path.relpath(target.resolve(), link.parent.resolve())
    if link.is_symlink() and os.readlink(link) == place:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(place)


def _dump(content: Mapping[str, Any]) -> str:
    text = io.StringIO()
    YAML(typ="rt").dump(dict(content), text)  # the safe dumper sorts keys
    return text.getvalue()


def _write_if_new(path: Path, text: str) -> None:
    """Write unless it already reads so: DVC and git look at modification times first."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
