"""What lineage is made of: hashes of folders, revisions."""

import subprocess
import sys
from pathlib import Path

from kdcore.lineage import hash_folder, revision

DVC = Path(sys.executable).with_name("dvc")


def test_folders_are_hashed_as_dvc_does(tmp_path: Path) -> None:
    (tmp_path / "out" / "b").mkdir(parents=True)
    for name in ("a", "b/z", "b.txt", "ü.txt"):
        (tmp_path / "out" / name).write_text(name)
    subprocess.run([str(DVC), "init", "--no-scm", "-q"], cwd=tmp_path, check=True)
    subprocess.run([str(DVC), "add", "-q", "out"], cwd=tmp_path, check=True)
    assert hash_folder(tmp_path / "out") in (tmp_path / "out.dvc").read_text()


def test_outside_git_there_is_no_revision(tmp_path: Path) -> None:
    assert str(revision(tmp_path)) == ""
