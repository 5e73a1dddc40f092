"""The flow without a server of ours: what it runs, what it says, how it ends."""

import ast
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from flows import distill
from kdcore.errors import UserError
from kdcore.layout import ROOT, Layout
from kdcore.stages import report
from tasks import flow, plan
from tasks.chain import Outcome
from tasks.processes import with_environment
from tasks.stage import OWNER
from tests.flows.checkout import Checkout
from tests.tasks.test_stage import wait_for


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "kdflow")


def test_nothing_to_do_is_said_without_starting_anything(done, capsys):
    assert distill.main(["--study", str(done.folder)]) == 0
    assert "nothing to do: 19 of 19 stages are current" in capsys.readouterr().out
    assert not done.starts()


def test_what_a_run_of_a_part_left_stale_does_not_make_it_fail(tmp_path, monkeypatch, capsys):
    def refuse(study, layout):
        raise UserError("teacher and pkd were evaluated on different preparations of rte; run `dvc repro`")

    place = Layout(tmp_path)
    place.report.mkdir(parents=True)
    (place.report / "results.json").write_text("{}")
    place.params.write_text((ROOT / "params.yaml").read_text(encoding="utf-8"))
    monkeypatch.setattr(report, "show_tables", refuse)
    distill._conclude(tmp_path, None)
    assert "No tables: teacher and pkd were evaluated on different" in capsys.readouterr().out


def test_the_second_flow_on_a_study_ends_with_75(toy, capsys):
    code = ("import sys, time, pathlib; from tasks.owner import claim\n"
            "with claim(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)")
    other = subprocess.Popen([sys.executable, "-c", code, str(toy.folder)], stdout=subprocess.PIPE)
    assert other.stdout.readline()
    try:
        assert distill.main(["--study", str(toy.folder)]) == 75
    finally:
        other.kill()
        other.wait()
    assert f"distill: another flow runs study toy: PID {other.pid} on" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--study", "studies/glue-al"], "studies/glue-al is no study: .* did you mean 'studies/glue-all'"),
    (["--study", "{toy}", "--profile", "smoke"], "toy has no profile 'smoke'; .* holds none"),
    (["--study", "{toy}", "--datasets", "c"], "dataset 'c' is not in study.datasets of params.yaml; known: a, b"),
    (["--study", "{toy}", "--methods", "rail_kd_x"], "method 'rail_kd_x' is not in study.methods"),
])
def test_mistakes_are_one_line_and_exit_code_2(toy, capsys, arguments, message):
    assert distill.main([argument.replace("{toy}", str(toy.folder)) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)


def test_parallel_must_be_positive():
    with pytest.raises(UserError, match="parallel = 0: expected 1 or more"):
        flow.at_a_time(0)


def test_open_stages_belong_to_their_dataset_only():
    todo = plan.Plan(("a", "ab"), ("m",), {"prepare@a": frozenset(), "prepare@ab": frozenset(), "distill@a-m":
                     frozenset({"prepare@a"}), "distill@ab-m": frozenset({"prepare@ab"}), "report": frozenset()},
                     {"distill@a-m": "x", "distill@ab-m": "x", "report": "y"}, {}, frozenset(), ())
    assert distill.open_stages(todo, Outcome(done={"distill@ab-m": {}}), "a") == ["distill@a-m"]
    assert distill.open_stages(todo, Outcome(done={"distill@ab-m": {}}), "ab") == []


def test_registering_waits_for_no_analysis():
    todo = plan.Plan(("a",), ("m",), {"evaluate@a-m": frozenset(), "analyse@a": frozenset(), "report": frozenset()},
                     {"analyse@a": "x", "report": "y"}, {}, frozenset(), ())
    assert distill.open_stages(todo, Outcome(), "a") == []


def test_a_failed_stage_lets_the_rest_finish_and_is_named_with_what_it_blocked(toy, checkout):
    toy.behave(seconds=0.3, fail=("distill@a-finetune",))
    code, said = checkout.run("flows.distill", "--study", str(toy.folder), "--parallel", "8")
    assert code == 1
    last = [line for line in said.splitlines() if line.startswith("distill: ")][-1]
    assert last.startswith("distill: distill@a-finetune failed: distill@a-finetune was told to fail; log: ")
    assert "; distill@a-finetune blocks " in last
    behind = last.partition("; distill@a-finetune blocks ")[2].partition(";")[0].split(", ")
    assert set(behind) == {"evaluate@a-finetune", "analyse@a", "report"}
    assert last.endswith("15 stages finished")
    assert "18 of 19 stages ended; left: " in said
    assert "Traceback" not in said
    assert "database is locked" not in said
    assert set(plan.make(toy.folder).stale) == {"distill@a-finetune", "evaluate@a-finetune", "analyse@a", "report"}
    assert all(count == 1 for count in toy.starts().values())


@pytest.mark.slow
def test_the_other_door_finds_nothing_to_do(toy, checkout):
    code, said = checkout.run("flows.distill", "--study", str(toy.folder), "--parallel", "2")
    assert code == 0, said
    assert toy.dvc("status").stdout == "Data and pipelines are up to date.\n"
    assert "Running stage" not in toy.dvc("repro").stdout
    assert all(count == 1 for count in toy.starts().values())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_flow_that_is_stopped_takes_its_stages_with_it_and_the_next_goes_on(toy, checkout, how):
    toy.behave(seconds=60)
    flow = checkout.start("flows.distill", "--study", str(toy.folder), "--parallel", "2", start_new_session=True)
    wait_for(lambda: len(toy.starts()) == 2, seconds=60)
    owner = (toy.folder / ".kdflow/flow").read_text().split('"')[3]
    os.killpg(flow.pid, how)  # as a terminal does: to every process of its job
    code = flow.wait(timeout=30)
    if how != signal.SIGKILL:
        assert code == 128 + how
        assert not with_environment(OWNER, owner)
    toy.behave()
    next_code, said = checkout.run("flows.distill", "--study", str(toy.folder), "--parallel", "2")
    assert next_code == 0, said
    assert not with_environment(OWNER, owner)
    if how == signal.SIGKILL:
        assert f"closed the run of a flow that was killed (PID {owner.partition(':')[0]})" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_as_many_stages_run_at_a_time_as_are_asked_for(tmp_path, checkout):
    """Three of four that could begin wait for each other; had a fourth begun beside them, its time would show it."""
    from tests.toy import Toy

    toy = Toy(tmp_path / "toy", tuple("abcd"), ("finetune",))
    toy.behave(seconds=600)
    flow = checkout.start("flows.distill", "--study", str(toy.folder), "--parallel", "3")
    try:
        wait_for(lambda: len(toy.starts()) == 3, seconds=200)
        time.sleep(3)
        toy.go_on()
        said = flow.communicate(timeout=300)[0]
    finally:
        flow.terminate()  # ends its stages and its server, too
        flow.wait()
    assert flow.returncode == 0, said
    assert toy.most_at_once() == 3
    assert all(count == 1 for count in toy.starts().values())


def test_no_task_keeps_results_or_caches():
    """Only dvc.lock decides what is done."""
    found = 0
    for file in [*ROOT.glob("tasks/*.py"), *ROOT.glob("flows/*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("task", "flow"):
                continue
            found += 1
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("persist_result") == "False", f"{file.name}: {ast.unparse(node)}"
            if node.func.id == "task":
                assert given.get("cache_policy") == "NO_CACHE", f"{file.name}: {ast.unparse(node)}"
            assert not {"cache_key_fn", "cache_expiration", "result_storage"} & set(given)
    assert found >= 3


def test_nothing_calls_dvc_commit():
    """It records whatever is on disk, whoever made it."""
    files = [f for part in ("kdcore", "tasks", "flows") for f in (ROOT / part).rglob("*.py")]
    files += [ROOT / "dvc.yaml", ROOT / "prefect.yaml", *ROOT.glob("Makefile"), *ROOT.glob("scripts/*")]
    for file in files:
        text = file.read_text()
        assert "repo.commit" not in text, file
        assert "dvc commit" not in text.replace("Never `dvc commit`", ""), file
        for node in ast.walk(ast.parse(text)) if file.suffix == ".py" else []:
            if isinstance(node, ast.List | ast.Tuple):
                words = {element.value for element in node.elts if isinstance(element, ast.Constant)}
                assert not {"dvc", "commit"} <= words, f"{file}: {ast.unparse(node)}"


def test_every_task_stops_its_child_rather_than_trusting_prefects_limit():
    """`timeout_seconds` does not end a submitted synchronous task."""
    for file in ROOT.glob("tasks/*.py"):
        assert "timeout_seconds=" not in file.read_text().replace("startup_timeout_seconds", ""), file
