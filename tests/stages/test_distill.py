"""The distill stage: students that need nothing of ours, finished seeds that stay finished (A11, A23, A25, A86)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kdcore import config, methods, scratch, strict, tracking_store
from kdcore.data.prepared import Prepared
from kdcore.errors import BusyError, UserError
from kdcore.evaluation.predict import predict
from kdcore.features import FeatureKey
from kdcore.layout import Layout
from kdcore.lineage import hash_folder
from kdcore.models.files import weights_fingerprint
from kdcore.models.loading import load_tokenizer, tokenizer_fingerprint
from kdcore.objective import Dims
from kdcore.pair_config import StudentModel
from kdcore.stages import analyse, distill, evaluate, features, prepare, teacher
from tests.data.studies import DATA, make
from tests.import_graph import ROOT, closure, has_code
from tests.mlflow_store import Store
from tests.pipelines import NO_DEPENDENCY
from tests.stages.small_study import small_study, with_teacher
from tests.test_origin import GENERAL, RECORD
from tests.tiny import save_tiny

pytest_plugins = ("tests.mlflow_store",)

Ready = tuple[config.Study, Layout]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """A study with teacher and features; students of three layers, since some methods relate intermediate ones."""
    study, layout = small_study(tmp_path_factory.mktemp("study"), layers=6)
    with_teacher(study, layout)
    return study, layout


@pytest.fixture
def fresh(ready: Ready) -> Ready:
    """The same without students and scratch."""
    study, layout = ready
    for folder in (layout.student("toy", "rail_kd_l").parent, layout.scratch):
        shutil.rmtree(folder, ignore_errors=True)
    return study, layout


@pytest.mark.parametrize("method", methods.names())
def test_every_method(method: str, fresh: Ready) -> None:
    study, layout = fresh
    distill.run(study, layout, "toy", method)
    for seed in (1, 2):
        folder = layout.student("toy", method) / f"seed-{seed}"
        assert {path.name for path in folder.iterdir()} == {
            "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json"}
        record = json.loads((folder / "training.json").read_text())
        assert record["seed"] == seed
        assert record["method"]["name"] == method
        assert record["init"] == "layers 2, 4, 6 of the fine-tuned teacher (6 layers), its head"
        assert len(record["history"]) == 2 * len(record["phases"])
        assert record["teacher"]
    assert not (layout.scratch / f"distill-toy-{method}").exists()
    measured = json.loads((layout.measured / f"distill@toy-{method}.json").read_text())
    assert set(measured) == {"seed-1", "seed-2"}
    assert measured["seed-1"]["examples_per_second"] > 0
    assert measured["seed-1"]["train_seconds_by_teachers"] > 0
    assert measured["seed-1"]["peak_rss_bytes"] > 10**8


def test_an_exported_student_stands_alone(fresh: Ready) -> None:
    study, layout = fresh
    distill.run(study, layout, "toy", "rail_kd_c")
    folder = layout.student("toy", "rail_kd_c") / "seed-2"
    student = AutoModelForSequenceClassification.from_pretrained(folder)
    assert not any("projection" in name or "teacher" in name for name in student.state_dict())
    own = sum(p.numel() * p.element_size() for p in student.parameters())
    assert own < (folder / "model.safetensors").stat().st_size < own + 20_000
    prepared = Prepared.load(layout.prepared("toy"))
    record = json.loads((folder / "training.json").read_text())
    answers = predict(student, prepared, "validation", 16).argmax(dim=1)
    accuracy = (answers == prepared.labels("validation")).float().mean().item()
    assert accuracy == pytest.approx(record["selected"]["score"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = prepared.table("validation").column("text").to_pylist()
    with torch.no_grad():
        logits = student(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    torch.testing.assert_close(logits, predict(student, prepared, "validation", 16), rtol=0, atol=1e-5)


def test_same_seed_same_bytes_anywhere(fresh: Ready, tmp_path: Path) -> None:
    """Not a path, a time or a run's name is in what is published."""
    study, layout = fresh
    distill.run(study, layout, "toy", "rail_kd_l")
    elsewhere = Layout(tmp_path / "another" / "place")
    for name in ("prepared", "teacher", "knowledge"):
        shutil.copytree(layout.study / "artifacts" / name, elsewhere.study / "artifacts" / name)
    time.sleep(1.1)  # another second on the clock
    distill.run(study, elsewhere, "toy", "rail_kd_l")
    assert hash_folder(layout.student("toy", "rail_kd_l")) == hash_folder(elsewhere.student("toy", "rail_kd_l"))
    for path in elsewhere.student("toy", "rail_kd_l").rglob("*.json"):
        for word in (str(layout.study), str(tmp_path), "/tmp", str(Path.home()), "local_files_only"):
            assert word not in path.read_text(), path


def test_seeds_differ(fresh: Ready) -> None:
    study, layout = fresh
    distill.run(study, layout, "toy", "finetune")
    one, two = ((layout.student("toy", "finetune") / f"seed-{n}" / "model.safetensors").read_bytes() for n in (1, 2))
    assert one != two


def test_a_finished_seed_is_not_trained_again(fresh: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies in the second seed; the next one trains only that, also when DVC removed the out (A86)."""
    study, layout = fresh
    trained: list[int] = []
    train = distill.train

    def dies_in_two(*args, **more):  # type: ignore[no-untyped-def]
        trained.append(args[4])
        if trained == [1, 2]:
            raise KeyboardInterrupt
        return train(*args, **more)

    monkeypatch.setattr(distill, "train", dies_in_two)
    with pytest.raises(KeyboardInterrupt):
        distill.run(study, layout, "toy", "rail_kd_l")
    assert not layout.student("toy", "rail_kd_l").exists()
    distill.run(study, layout, "toy", "rail_kd_l")
    assert trained == [1, 2, 2]
    assert sorted(path.name for path in layout.student("toy", "rail_kd_l").iterdir()) == ["seed-1", "seed-2"]


def test_every_stage_writes_its_own_out_alone(tmp_path: Path) -> None:
    """Nothing is written beside or into what a stage reads: DVC would call the folder modified (C49)."""
    study, layout = small_study(tmp_path, seeds=(1,), analysis={})
    outs = layout.teacher("toy"), layout.features("toy"), layout.student("toy", "rail_kd_l")
    evaluations = layout.evaluation("toy", "rail_kd_l"), layout.evaluation("toy", "teacher")
    stages: list[tuple[Callable[..., None], tuple[str, ...], Path]] = [
        (teacher.run, ("toy",), outs[0]), (features.run, ("toy",), outs[1]),
        (distill.run, ("toy", "rail_kd_l"), outs[2]), (evaluate.run, ("toy", "rail_kd_l"), evaluations[0]),
        (evaluate.run, ("toy", "teacher"), evaluations[1]), (analyse.run, ("toy",), layout.analysis("toy"))]
    for stage, arguments, out in stages:
        before = _files(tmp_path)
        stage(study, layout, *arguments)
        after = _files(tmp_path)
        assert after.items() >= before.items(), out
        new = after.keys() - before.keys()
        assert {path for path in new if not path.is_relative_to(layout.measured)} == _files(out).keys() != set()


def _files(folder: Path) -> dict[Path, bytes]:
    """All files but scratch and logs."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".kdflow" not in path.parts}


def test_mlflow_has_a_run_per_seed_with_our_settings_alone(ready: Ready, store: Store,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would log there as well, settings that nobody chose among them (C44)."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_store.uri())
    study, layout = ready
    shutil.copytree(layout.study / "artifacts", store.study / "artifacts")
    study = study.model_copy(update={"study": study.study.model_copy(update={"seeds": (1,)})})
    distill.run(study, store.layout, "toy", "finetune")
    (run,) = store.runs()
    assert run.info.run_name == "distill toy finetune seed 1"
    assert {name.partition(".")[0] for name in run.data.params} == {"training", "precision", "method", "student"}


def _changed(study: config.Study, **training: object) -> config.Study:
    students = study.training.student.model_copy(update=training)
    return study.model_copy(update={"training": study.training.model_copy(update={"student": students})})


def test_identity_holds_everything_that_counts(ready: Ready) -> None:
    study, layout = ready
    same = distill.Work(study, layout, "toy", "rail_kd_l").identity(1)
    assert same == distill.Work(study, layout, "toy", "rail_kd_l").identity(1)
    other_width = study.model_copy(update={"methods": study.methods | {"rail_kd_l": {"width": 64}}})
    depth = study.pair.student.model_copy(update={"depth": 1})
    others = [distill.Work(study, layout, "toy", "rail_kd_l").identity(2),
              distill.Work(study, layout, "toy", "rail_kd_c").identity(1),
              distill.Work(other_width, layout, "toy", "rail_kd_l").identity(1),
              distill.Work(_changed(study, learning_rate=2e-3), layout, "toy", "rail_kd_l").identity(1),
              distill.Work(_changed(study, precision="bf16"), layout, "toy", "rail_kd_l").identity(1),
              distill.Work(study.model_copy(update={"pair": study.pair.model_copy(update={"student": depth})}), layout,
                           "toy", "rail_kd_l").identity(1)]
    assert same not in others
    assert len({json.dumps(other, sort_keys=True) for other in others}) == len(others)


KEYS = """
import json, sys
from pathlib import Path
from kdcore import config, scratch, strict
from kdcore.layout import Layout
from kdcore.stages import distill
study = strict.parse(config.Study, json.loads(sys.argv[1]), "params.yaml")
works = {name: distill.Work(study, Layout(Path(sys.argv[2])), "toy", name) for name in study.methods}
print(json.dumps({name: scratch.key("seed-1", work.identity(1)) for name, work in works.items()}))
"""


@pytest.mark.slow
def test_the_identity_is_the_same_in_every_process(ready: Ready) -> None:
    """Whatever order its sets have: another process would not find the work (A88)."""
    study, layout = ready
    found = [json.loads(subprocess.run(
        [sys.executable, "-c", KEYS, study.model_dump_json(), str(layout.study)], cwd=ROOT, capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}, check=True, text=True).stdout)
        for seed in "12"]
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(methods.names())


def test_identity_follows_teacher_and_data(tmp_path: Path) -> None:
    study, layout = small_study(tmp_path)
    with_teacher(study, layout)
    before = distill.Work(study, layout, "toy", "finetune").identity(1)
    weights = layout.teacher("toy") / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = distill.Work(study, layout, "toy", "finetune").identity(1)
    assert changed["teacher"] != before["teacher"]
    about = layout.prepared("toy") / "dataset.json"
    about.write_text(about.read_text().replace('"warnings": []', '"warnings": ["another"]'))
    told = distill.Work(study, layout, "toy", "finetune").identity(1)["prepared"]
    with (layout.prepared("toy") / "train.parquet").open("ab") as file:
        file.write(b"0")
    read = distill.Work(study, layout, "toy", "finetune").identity(1)["prepared"]
    assert len({before["prepared"], told, read}) == 3


def with_general_student(folder: Path, layout: Layout, study: config.Study) -> config.Study:
    """The study with students that start from two layers of a general student in `folder`, named by its fingerprint."""
    save_tiny(folder, layers=4, labels=("no", "yes"), seed=8)
    (folder / "training.json").write_text(json.dumps(RECORD))
    student = StudentModel(source=str(folder), revision=weights_fingerprint(folder), layers="even", depth=2)
    return study.model_copy(update={"pair": study.pair.model_copy(update={"student": student})})


def test_a_student_that_starts_as_a_general_one_says_so(tmp_path: Path) -> None:
    study, layout = small_study(tmp_path)
    with_teacher(study, layout)
    study = with_general_student(tmp_path / "general", layout, study)
    distill.run(study, layout, "toy", "vanilla_kd")
    record = json.loads((layout.student("toy", "vanilla_kd") / "seed-1" / "training.json").read_text())
    assert record["origin"] == {"weights": weights_fingerprint(tmp_path / "general"), "general": GENERAL}
    assert record["init"] == f"layers 2, 4 of {tmp_path / 'general'} (4 layers), new head (seed 1)"


@pytest.mark.parametrize("teaches", ["model", "files"])
def test_a_random_student_has_the_tokenizer_of_its_own_source(teaches: str, tmp_path: Path) -> None:
    """That of the sizes it takes, which cut the texts it learned from; the teacher's is another one, or none."""
    bert, roberta = save_tiny(tmp_path / "bert"), save_tiny(tmp_path / "roberta", "roberta")
    answers = "\n".join(json.dumps({"id": row, "probabilities": {"neg": 0.2, "pos": 0.8}}) for row in range(4))
    data = DATA | ({"teacher_files": {"train": "data/teacher.jsonl"}} if teaches == "files" else {})
    folder = make(tmp_path / "study", "files" if teaches == "files" else bert, data,
                  files={"data/teacher.jsonl": answers},
                  pair={"student": {"source": str(roberta), "layers": "random", "depth": 1}})
    content = json.loads(config.load(folder / "params.yaml").model_dump_json())
    content |= {"gate": {"allow_weak": True}, "methods": {"vanilla_kd": {}}}
    content["study"]["methods"] = ["vanilla_kd"]
    study, layout = strict.parse(config.Study, content, "params.yaml"), Layout(folder)
    prepare.run(study, layout, "mine")
    for stage in (teacher, features):
        stage.run(study, layout, "mine")
    distill.run(study, layout, "mine", "vanilla_kd")
    exported = load_tokenizer(str(layout.student("mine", "vanilla_kd") / "seed-1"))
    assert tokenizer_fingerprint(exported) == Prepared.load(layout.prepared("mine")).info.tokenizers["student"]


def test_another_general_student_is_never_resumed_into(tmp_path: Path) -> None:
    """Neither unnoticed nor, with a revision, at all."""
    study, layout = small_study(tmp_path)
    with_teacher(study, layout)
    named = with_general_student(tmp_path / "general", layout, study)
    student = named.pair.student.model_copy(update={"revision": None})
    free = named.model_copy(update={"pair": named.pair.model_copy(update={"student": student})})
    before = distill.Work(free, layout, "toy", "vanilla_kd").identity(1)
    save_tiny(tmp_path / "general", layers=4, labels=("no", "yes"), seed=9)
    assert distill.Work(free, layout, "toy", "vanilla_kd").identity(1) != before
    with pytest.raises(UserError, match="its revision says"):
        distill.run(named, layout, "toy", "vanilla_kd")
    assert distill.Work(study, layout, "toy", "vanilla_kd").identity(1)["origin"] == {}


@pytest.mark.parametrize(("stage", "known"), [
    ("distill", distill.CODE), ("features", features.CODE), ("teacher", teacher.CODE)])
def test_code_of_the_identity_is_all_that_the_stage_imports(stage: str, known: tuple[str, ...]) -> None:
    """But for files that decide nothing of the model; of the methods the one in use is added by name."""
    package = ROOT / "kdcore"
    free = frozenset(ROOT / name for name in NO_DEPENDENCY) | {
        package / name for name in ("config.py", "method_config.py", "pair_config.py", "strict.py", "scratch.py",
                                    "sources.py", "data/prepared.py", "methods/__init__.py")}
    needed = {file.relative_to(package).as_posix() for file in closure(package / f"stages/{stage}.py", stop_at=free)
              if has_code(file) and file not in free}
    assert not {name for name in needed if not any(f"{name}/".startswith(f"{part}/") for part in known)}


def test_two_processes_do_not_train_the_same(fresh: Ready) -> None:
    study, layout = fresh
    folder = layout.scratch / "distill-toy-finetune"
    folder.mkdir(parents=True)
    code = ("import sys, time; from pathlib import Path; from kdcore import scratch\n"
            "with scratch.claim(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BusyError, match=f"process {other.pid} is at the same work"):
            distill.run(study, layout, "toy", "finetune")
        other.kill()
    distill.run(study, layout, "toy", "finetune")


@pytest.mark.parametrize(("missing", "remedy"), [
    ("prepared", "kdflow prepare toy"), ("teacher", "kdflow teacher toy"), ("features", "kdflow features toy")])
def test_missing_inputs_name_their_stage(missing: str, remedy: str, ready: Ready, tmp_path: Path) -> None:
    study, layout = ready
    broken = Layout(tmp_path)
    shutil.copytree(layout.study / "artifacts", tmp_path / "artifacts")
    shutil.rmtree(getattr(broken, missing)("toy"))
    with pytest.raises(UserError, match=remedy):
        distill.run(study, broken, "toy", "rail_kd_l")


def test_a_method_without_teacher_needs_no_features(ready: Ready, tmp_path: Path) -> None:
    study, layout = ready
    shutil.copytree(layout.study / "artifacts", tmp_path / "artifacts")
    shutil.rmtree(Layout(tmp_path).features("toy"))
    distill.run(study, Layout(tmp_path), "toy", "finetune")


def test_one_method_under_several_names(fresh: Ready) -> None:
    """Equal settings, yet students, records, logs and cached work of their own."""
    study, layout = fresh
    study = study.model_copy(update={"methods": {
        "vanilla_kd": {}, "again": {"method": "vanilla_kd"}, "warm": {"method": "vanilla_kd", "temperature": 4.0}}})
    works = [distill.Work(study, layout, "toy", name) for name in study.methods]
    assert len({scratch.key("seed-1", work.identity(1)) for work in works}) == 3
    assert len({work.identity(1)["code"] for work in works}) == 1
    found = {}
    for name in study.methods:
        distill.run(study, layout, "toy", name)
        folder = layout.student("toy", name) / "seed-1"
        found[name] = (folder / "model.safetensors").read_bytes(), json.loads((folder / "training.json").read_text())
        assert (layout.measured / f"distill@toy-{name}.json").is_file()
        assert (layout.logs / f"distill@toy-{name}-seed-1.jsonl").is_file()
    assert found["vanilla_kd"][0] == found["again"][0] != found["warm"][0]
    records = {name: record for name, (_, record) in found.items()}
    assert {record["method"]["name"] for record in records.values()} == {"vanilla_kd"}
    assert "variant" not in records["vanilla_kd"]
    assert records["again"]["variant"] == {"name": "again", "options": {}}
    assert records["warm"]["variant"] == {"name": "warm", "options": {"temperature": 4.0}}


@pytest.mark.parametrize(("method", "warnings"), [("pkd", 1), ("vanilla_kd", 0), ("rail_kd_l", 0), ("finetune", 0)])
def test_a_kind_that_is_not_stored_is_said_with_its_price(method: str, warnings: int, ready: Ready,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """PKD reads `cls`; the store holds `logits` and `mean`."""
    work = distill.Work(*ready, "toy", method)
    work.teacher(work.phases(Dims(3, 32, 4, 100), seed=1), f"toy {method} seed 1")
    assert capsys.readouterr().err == warnings * (
        "warning: toy pkd seed 1: the teacher runs for every batch of every epoch, as the features store lacks cls; "
        "with `features.kinds: [logits, mean, cls]` it runs once\n")


@pytest.mark.parametrize(("method", "layers", "message"), [
    ("rail_kd_l", 1, "methods.rail_kd_l: a student of 1 layer has no intermediate layer"),
    ("fsp", 1, "methods.fsp relates two layers to each other, but the student has one")])
def test_what_does_not_fit_names_the_method_once(method: str, layers: int, message: str, ready: Ready) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        distill.Work(*ready, "toy", method).phases(Dims(layers, 32, 4, 100), seed=1)
    assert str(caught.value).count("methods.") == 1


@pytest.mark.parametrize(
    ("needs", "stored", "missing"),
    [(("logits", "cls-01"), ("logits", "mean"), ("cls",)), (("logits", "cls-01"), ("logits", "cls"), ()),
     (("logits", "cls-01", "mean-02"), ("logits",), ("cls", "mean")), (("logits",), ("mean",), ("logits",)),
     (("cls-01", "hidden-01"), ("logits",), ()), (("cls-01", "mean-00"), ("logits", "mean"), ())],
    ids=str,
)
def test_what_is_worth_storing(needs: tuple[str, ...], stored: tuple[str, ...], missing: tuple[str, ...]) -> None:
    """Nothing where the teacher has to run anyway."""
    assert distill.worth_storing(frozenset(map(FeatureKey.parse, needs)), stored) == missing


CHILD = """
import json, sys
from pathlib import Path
from kdcore import config, strict
from kdcore.layout import Layout
from kdcore.stages import distill, teacher
from kdcore.training import trainer
trainer.SAVE_SECONDS, trainer.SAVING_SHARE = 0.0, 1e9
study = strict.parse(config.Study, json.loads(sys.argv[1]), "params.yaml")
try:
    distill.run(study, Layout(Path(sys.argv[2])), "toy", "rail_kd_l")
except KeyboardInterrupt:
    sys.exit(130)  # as the command line does
"""


def _start(study: config.Study, layout: Layout) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, study.model_dump_json(), str(layout.study)], cwd=ROOT,
                            stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def _wait_for_step(layout: Layout, seed: int, step: int) -> None:
    journal = layout.logs / f"distill@toy-rail_kd_l-seed-{seed}.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if journal.exists() and len(journal.read_text().splitlines()) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"seed {seed} never came to step {step}")


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[(1, 3)], [(1, 8), (2, 5)], [(2, 1), (2, 14)]])
def test_killed_and_run_again(kills: list[tuple[int, int]], ready: Ready, tmp_path: Path) -> None:
    """`kill -9` anywhere, any number of times: the bytes are those of an undisturbed run (fp32 on a CPU)."""
    study, layout = ready
    study = _changed(study, epochs=4.0)
    one, other = Layout(tmp_path / "one"), Layout(tmp_path / "other")
    for each in (one, other):
        shutil.copytree(layout.study / "artifacts", each.study / "artifacts")
    distill.run(study, one, "toy", "rail_kd_l")
    for seed, step in kills:
        with _start(study, other) as process:
            _wait_for_step(other, seed, step)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    with _start(study, other) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "resumes after step" in said
    assert hash_folder(one.student("toy", "rail_kd_l")) == hash_folder(other.student("toy", "rail_kd_l"))
    journals = [sorted(layout.logs.glob("distill@*.jsonl")) for layout in (one, other)]
    assert [path.read_text() for path in journals[0]] == [path.read_text() for path in journals[1]]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_end_saves_first(number: signal.Signals, code: int, ready: Ready, tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C finish the step and write a checkpoint, however long ago the last one was."""
    study, layout = ready
    study, mine = _changed(study, epochs=400.0), Layout(tmp_path)
    shutil.copytree(layout.study / "artifacts", mine.study / "artifacts")
    script = CHILD.replace("0.0, 1e9", "1e9, 1e9")
    with subprocess.Popen([sys.executable, "-c", script, study.model_dump_json(), str(mine.study)], cwd=ROOT,
                          stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        _wait_for_step(mine, 1, 2)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert len(list(mine.scratch.glob("distill-toy-rail_kd_l/seed-1-*/checkpoints/checkpoint-*"))) == 1
