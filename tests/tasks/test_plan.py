"""What is stale, what is only missing, what a kill damaged; DVC has the last word."""

import json
import os
import shutil
import subprocess

import pytest

from kdcore.errors import BusyError, UserError
from kdcore.lineage import read_lock
from tasks import plan


def names(found: plan.Plan) -> set[str]:
    return set(found.stale)


def test_a_fresh_study_is_stale_in_an_order_that_respects_needs(toy):
    found = plan.make(toy.folder)
    order = list(found.stale)
    assert len(order) == 19
    assert (found.stale["prepare@a"], found.stale["teacher@a"]) == ("not run yet", "after prepare@a")
    for stage, needs in found.needs.items():
        assert all(order.index(need) < order.index(stage) for need in needs)
    assert found.needs["distill@a-finetune"] == {"features@a"}
    assert found.needs["analyse@a"] == {"distill@a-finetune", "distill@a-vanilla_kd"}
    assert len(found.needs["report"]) == 8


def test_after_dvc_repro_nothing_is_stale(done):
    found = plan.make(done.folder)
    assert (found.stale, found.notes) == ({}, ())


def test_a_parameter_makes_its_stages_stale_and_what_comes_after(done):
    done.params["methods"]["finetune"] = {"x": 1}
    done.write()
    found = plan.make(done.folder)
    assert names(found) == {"distill@a-finetune", "distill@b-finetune", "evaluate@a-finetune", "evaluate@b-finetune",
                            "analyse@a", "analyse@b", "report"}
    assert found.stale["distill@a-finetune"] == "methods.finetune"
    assert found.stale["evaluate@a-finetune"] == "after distill@a-finetune"


def test_deleted_outs_come_back_without_running_anything(done):
    shutil.rmtree(done.folder / "artifacts/student/a")
    shutil.rmtree(done.folder / "artifacts/teacher/b")
    found = plan.make(done.folder)
    assert found.stale == {}
    assert found.notes == ("restored from the cache: teacher@b, distill@a-finetune, distill@a-vanilla_kd",)
    assert (done.folder / "artifacts/student/a/finetune/out.txt").is_file()
    assert not done.starts()


def test_deleted_outs_that_the_cache_lost_are_stale(done):
    shutil.rmtree(done.folder / "artifacts/student/a/finetune")
    md5 = read_lock(done.folder)["distill@a-finetune"]["outs"][0]["md5"]
    (done.folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    found = plan.make(done.folder)
    assert {"distill@a-finetune", "evaluate@a-finetune", "analyse@a", "report"} == names(found)


def test_selection_takes_only_its_stages_and_says_what_it_leaves_out(toy):
    found = plan.make(toy.folder, datasets=["a"], methods=["finetune"])
    assert names(found) == {"prepare@a", "teacher@a", "features@a", "evaluate-teacher@a", "distill@a-finetune",
                            "evaluate@a-finetune"}
    assert found.left_out == {"analyse@a": "needs distill@a-vanilla_kd, not selected",
                              "report": "needs analyse@a and 5 more, not selected"}
    assert "distill@b-finetune" in found.stays_stale


def test_a_selector_is_trained_where_the_study_asks(done):
    done.params["selectors"] = {"a": {"method": "finetune", "seed": 3}}
    done.write()
    found = plan.make(done.folder)
    assert names(found) == {"selector@a", "distill@a-finetune", "distill@a-vanilla_kd", "evaluate@a-finetune",
                            "evaluate@a-vanilla_kd", "analyse@a", "report"}
    assert found.needs["selector@a"] == {"features@a"}
    assert found.needs["distill@a-finetune"] == {"features@a", "selector@a"}
    assert found.needs["distill@b-finetune"] == {"features@b"}
    assert names(plan.make(done.folder, datasets=["b"])) == set()
    assert done.dvc("repro", "distill@a-finetune").returncode == 0
    assert "selector@a" in (done.folder / "artifacts/student/a/finetune/out.txt").read_text()


def test_selection_of_what_is_not_there_is_refused_with_near_names(toy):
    with pytest.raises(UserError, match=r"method 'finetun' is not in study.methods .* did you mean 'finetune'"):
        plan.make(toy.folder, methods=["finetun"])
    with pytest.raises(UserError, match=r"dataset 'z' is not in study.datasets of params.yaml; known: a, b"):
        plan.make(toy.folder, datasets=["z"])
    with pytest.raises(UserError, match="selection of methods is empty"):
        plan.make(toy.folder, methods=[])


def test_force_takes_the_selected_stages(done):
    found = plan.make(done.folder, datasets=["a"], force=True)
    assert found.stale["distill@a-finetune"] == "forced"
    assert not [stage for stage in found.stale if stage.endswith("@b")]
    assert "report" in found.stale


@pytest.mark.parametrize("content", [b"", b"schema: '2.0'\nstages:\n  prepare@a:\n    cm", b"\xff\xfe", b"[1]\n"])
def test_a_damaged_lock_file_is_deleted(done, content):
    (done.folder / "dvc.lock").write_bytes(content)
    found = plan.make(done.folder)
    assert "dvc.lock was damaged" in found.notes[0]
    assert len(found.stale) == 19


def test_without_its_lock_file_everything_comes_back_from_the_run_cache(done):
    (done.folder / "dvc.lock").write_bytes(b"")
    plan.make(done.folder)
    assert done.dvc("repro").returncode == 0
    assert not done.starts()


def test_a_damaged_lock_file_under_git_is_taken_from_the_last_commit(done):
    for command in (["init", "-q"], ["add", "dvc.lock"],
                    ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "lock"]):
        subprocess.run(["git", *command], cwd=done.folder, check=True)
    (done.folder / "dvc.lock").write_bytes(b"")
    found = plan.make(done.folder)
    assert "took the committed one" in found.notes[0]
    assert found.stale == {}


def test_a_damaged_list_of_files_in_use_is_deleted(small):
    plan.make(small.folder)
    (small.folder / ".dvc/tmp/rwlock").write_text('{"write": {"/x": {"pi')
    assert "rwlock was damaged" in plan.make(small.folder).notes[0]


def test_a_dvc_command_of_somebody_else_is_named(done):
    used = str(done.folder / "artifacts/prepared/a")
    (done.folder / ".dvc/tmp/rwlock").write_text(
        json.dumps({"write": {used: {"pid": os.getppid(), "cmd": "dvc repro"}}, "read": {}}))
    with pytest.raises(BusyError, match=rf"a DVC command works on toy \(PID {os.getppid()}\): dvc repro"):
        plan.make(done.folder)


def test_what_dvc_refuses_is_one_line(small):
    (small.folder / "dvc.yaml").write_text("stages: [")
    with pytest.raises(UserError, match="DVC refuses study small: ") as error:
        plan.make(small.folder)
    assert "\n" not in str(error.value)


def test_width_counts_all_stages_of_a_kind(toy):
    found = plan.make(toy.folder, datasets=["a"])
    assert found.width("teacher@a") == 2
    assert found.width("distill@a-finetune") == 4
    assert found.width("report") == 1
