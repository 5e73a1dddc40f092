"""Scratch folders: found again for the same work only, published at once."""

import json
import os
from pathlib import Path

import pytest

from kdcore import scratch
from kdcore.errors import BusyError

WORK = {"seed": 1, "training": {"epochs": 2.0}, "teacher": "abc"}


def test_key_is_of_all_the_content() -> None:
    assert scratch.key("seed-1", WORK) == scratch.key("seed-1", json.loads(json.dumps(WORK)))
    assert scratch.key("seed-1", WORK) == scratch.key("seed-1", dict(reversed(WORK.items())))
    for other in (WORK | {"seed": 2}, WORK | {"training": {"epochs": 2.5}}, WORK | {"teacher": "abd"}):
        assert scratch.key("seed-1", other) != scratch.key("seed-1", WORK)


def test_hash_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    (tmp_path / "y.py").write_text("2")
    both = [tmp_path / "a", tmp_path / "y.py"]
    before = scratch.hash_files(both, tmp_path)
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("compiled")
    assert scratch.hash_files(reversed(both), tmp_path) == before
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "z.py")
    renamed = scratch.hash_files(both, tmp_path)
    assert renamed != before
    (tmp_path / "y.py").write_text("3")
    assert scratch.hash_files(both, tmp_path) != renamed


def test_once(tmp_path: Path) -> None:
    def make(out: Path) -> None:
        assert not out.exists()
        out.mkdir()
        (out / "x").write_text("done")

    def dies(out: Path) -> None:
        out.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scratch.once(tmp_path, dies)
    assert (scratch.once(tmp_path, make) / "x").read_text() == "done"
    scratch.once(tmp_path, lambda out: pytest.fail("made twice"))


def test_claim_excludes_and_lets_go(tmp_path: Path) -> None:
    with scratch.claim(tmp_path / "work"):
        with pytest.raises(BusyError, match=f"process {os.getpid()} is at the same work"), \
                scratch.claim(tmp_path / "work"):
            pass
        with scratch.claim(tmp_path / "other"):
            pass
    with scratch.claim(tmp_path / "work"):
        pass
    assert BusyError.exit_code == 75


def test_publish_replaces_all_at_once(tmp_path: Path) -> None:
    target = tmp_path / "artifacts" / "student"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    (target / "stale").mkdir(parents=True)
    (tmp_path / "staging" / "left over").mkdir(parents=True)
    scratch.publish({"seed-1": tmp_path / "one", "seed-2": tmp_path / "two"}, target, tmp_path / "staging")
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*")) == [
        "seed-1", "seed-1/x", "seed-2", "seed-2/x"]
    assert (tmp_path / "one" / "x").exists()  # until the caller removes it
    scratch.publish({".": tmp_path / "one"}, target, tmp_path / "staging")
    assert [path.name for path in target.iterdir()] == ["x"]


def test_publish_copies_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: str) -> None:
        raise OSError("no links here")

    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x").write_text("one")
    monkeypatch.setattr(os, "link", refuse)
    scratch.publish({".": tmp_path / "one"}, tmp_path / "target", tmp_path / "staging")
    assert (tmp_path / "target" / "x").read_text() == "one"
