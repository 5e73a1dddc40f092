"""Registered models: named columns, probabilities by class, lineage, aliases, gates."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kdcore import candidate, catalogue, model_card, promotion, registry, tracking_store
from kdcore.errors import UserError
from kdcore.lineage import hash_folder, read_lock
from kdcore.stages import register as stage
from tests import trained_study as toy
from tests.mlflow_store import Store
from tests.tiny import tiny_texts

pytest_plugins = ("tests.mlflow_store",)
NAME = "kdflow-tiny-toy"
DVC = Path(sys.executable).with_name("dvc")


def register(store: Store, seed: int = 1, method: str = "rail_kd_l") -> registry.Registered:
    return registry.register(toy.settings(), store.layout, "toy", method, seed)


def load(store: Store, uri: str) -> "mlflow.pyfunc.PyFuncModel":
    with registry._fluent():
        return mlflow.pyfunc.load_model(uri)


def direct(folder: Path, *texts: list[str]) -> torch.Tensor:
    """Probabilities by transformers alone, one example at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for row in zip(*texts, strict=True):
        inputs = tokenizer(*row, return_tensors="pt", truncation=True, max_length=32)
        with torch.no_grad():
            rows.append(torch.softmax(model(**inputs).logits[0].double(), dim=0))
    return torch.stack(rows)


def test_a_registered_pair_model_says_all_that_one_needs(store: Store) -> None:
    toy.write_study(store.layout)
    commit = toy.under_git(store.study)
    registered = register(store)
    assert registered == registry.Registered(NAME, "1", ("champion",), True)
    assert registered.uri == f"models:/{NAME}@champion"
    client = tracking_store.connect()
    version = client.get_model_version_by_alias(NAME, "champion")
    student = store.layout.student("toy", "rail_kd_l")
    expected = {"kdflow.study": "tiny", "kdflow.dataset": "toy", "kdflow.method": "rail_kd_l", "kdflow.seed": "1",
                "kdflow.method_file": "rail_kd_l",
                "kdflow.revision": commit, "kdflow.stage": "distill@toy-rail_kd_l",
                "kdflow.checkpoint": hash_folder(student / "seed-1"), "dvc.student": hash_folder(student),
                "dvc.prepared": hash_folder(store.layout.prepared("toy")), "dvc.teacher": "feed.dir",
                "metric.validation.accuracy": "0.8", "metric.elsewhere.accuracy": "0.7"}
    assert expected.items() <= version.tags.items()
    assert int(version.tags["kdflow.parameters"]) == sum(
        p.numel() for p in AutoModelForSequenceClassification.from_pretrained(student / "seed-1").parameters())
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["validation.accuracy"] == 0.8
    assert run.data.metrics["latency.batch_1.p50_ms"] == 3.2
    assert run.data.params["method.width"] == "8"
    assert run.data.params["training.epochs"] == "5.0", "the dataset's own setting"
    assert run.inputs.dataset_inputs[0].dataset.digest + ".dir" == hash_folder(store.layout.prepared("toy"))
    with registry._fluent():
        info = mlflow.models.get_model_info(registered.uri)
    assert info.signature.inputs.input_names() == ["text", "text_pair"]
    assert info.signature.outputs.input_names() == ["label", "probability:not_entailment", "probability:entailment"]
    assert "+" not in "".join(registry.requirements())
    page = client.get_registered_model(NAME).description
    assert f"mlflow models serve -m models:/{NAME}@champion" in page
    assert "`text` and `text_pair`" in page
    assert version.description.splitlines()[0] == (
        "rail_kd_l, seed 1: validation accuracy 0.800, elsewhere accuracy 0.700")
    (line,) = [line for line in version.description.splitlines() if line.startswith("| elsewhere")]
    row = [cell.strip() for cell in line.strip("|").split("|")]
    assert row[:4] == ["elsewhere", "out of domain; first 200 rows", "accuracy", "0.7000"]
    assert row[5:] == ["0.7000 ± 0.0000 (n = 2)", "0.9000"]
    assert f"git checkout {commit}" in version.description
    assert "dvc repro distill@toy-rail_kd_l" in version.description


def test_a_card_that_is_too_long_says_where_the_whole_one_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DESCRIPTION", 300)
    toy.write_study(store.layout)
    version = register(store).version
    text = tracking_store.connect().get_model_version(NAME, version).description
    assert len(text) == 300
    assert text.endswith("The whole card: `evaluation/model_card.md` among the artifacts of the run.")


def test_latency_of_other_students_is_not_told(store: Store) -> None:
    """As when DVC brought back students of earlier settings."""
    toy.write_study(store.layout)
    record = store.layout.student("toy", "rail_kd_l") / "seed-1" / "training.json"
    record.write_text('{"learning_rate": 1}')
    toy.lock(store.layout)
    version = register(store).version
    assert "latency not measured" in tracking_store.connect().get_model_version(NAME, version).description


def test_a_teacher_that_is_no_single_model_is_told(store: Store) -> None:
    toy.write_study(store.layout)
    (store.layout.student("toy", "rail_kd_l") / "seed-1" / "training.json").write_text(
        '{"taught_by": "the average of the logits of 2 teachers: a, seed 1; b, seed 2"}')
    toy.lock(store.layout)
    registered = register(store)
    version = tracking_store.connect().get_model_version(registered.name, registered.version)
    assert version.tags["kdflow.teacher"] == "the average of the logits of 2 teachers: a, seed 1; b, seed 2"
    assert "**Its teacher:** the average of the logits of 2 teachers: a, seed 1; b, seed 2." in version.description


def test_a_method_by_a_name_of_its_own_says_what_it_is(store: Store) -> None:
    study = toy.settings().model_copy(update={"methods": {"wide": {"method": "rail_kd_l", "width": 8}}})
    toy.write_study(store.layout, method="wide")
    registered = registry.register(study, store.layout, "toy", "wide", 1)
    client = tracking_store.connect()
    version = client.get_model_version(registered.name, registered.version)
    assert {"kdflow.method": "wide", "kdflow.method_file": "rail_kd_l"}.items() <= version.tags.items()
    assert "**Its method:** `wide` is `rail_kd_l` with width 8." in version.description
    params = client.get_run(version.run_id).data.params
    assert (params["method.name"], params["method.width"]) == ("rail_kd_l", "8")
    assert "**Its method:** `wide`." in model_card.of_version(replace(
        candidate.gather(study, store.layout, "toy", "wide", 1), variant=None))


def test_where_the_first_weights_came_from_is_told(store: Store) -> None:
    toy.write_study(store.layout)
    general = {"study": "general-tiny", "student": "small", "assistants": ["middle"], "method": "minilm",
               "teacher": "0123456789abcdef", "corpus": "fedcba9876543210"}
    (store.layout.student("toy", "rail_kd_l") / "seed-1" / "training.json").write_text(
        json.dumps({"origin": {"weights": "aaaabbbbccccdddd", "general": general}}))
    toy.lock(store.layout)
    registered = register(store)
    version = tracking_store.connect().get_model_version(registered.name, registered.version)
    assert version.tags["kdflow.first_weights"] == "aaaabbbbccccdddd"
    assert {name: version.tags[f"kdflow.general.{name}"] for name in general} == general | {"assistants": "middle"}
    page = version.description.replace("\N{NO-BREAK SPACE}", "")
    assert ("**It started as** the general student `small` of the study `general-tiny`, by minilm by way of middle."
            in page)
    for row in ("| first weights | `aaaabbbbccccdddd` |", "| general teacher | `0123456789abcdef` |",
                "| general corpus | `fedcba9876543210` |"):
        assert row in page


def test_the_selector_that_weighed_a_students_knowledge_is_told(store: Store) -> None:
    toy.write_study(store.layout)
    lineage = {"fingerprint": "0123456789abcdef", "study": "ksm-tiny", "dataset": "toy", "method": "ksm_soft",
               "seed": 3, "teacher": "aaaabbbbccccdddd", "prepared": "ddddccccbbbbaaaa"}
    (store.layout.student("toy", "rail_kd_l") / "seed-1" / "training.json").write_text(
        json.dumps({"selector": lineage}))
    toy.lock(store.layout)
    registered = register(store)
    version = tracking_store.connect().get_model_version(registered.name, registered.version)
    assert version.tags["kdflow.selector"] == lineage.pop("fingerprint")
    assert {name: version.tags[f"kdflow.selector.{name}"] for name in lineage} == lineage | {"seed": "3"}
    page = version.description.replace("\N{NO-BREAK SPACE}", "")
    assert ("**What it learned was weighed by** the selector that `ksm_soft` trained on `toy` with seed 3 in the study "
            "`ksm-tiny`." in page)
    assert "| selector | `0123456789abcdef` |" in page


def test_first_weights_that_nobody_distilled_in_general_have_a_fingerprint(store: Store) -> None:
    toy.write_study(store.layout)
    (store.layout.student("toy", "rail_kd_l") / "seed-1" / "training.json").write_text(
        '{"origin": {"weights": "aaaabbbbccccdddd"}}')
    toy.lock(store.layout)
    registered = register(store)
    version = tracking_store.connect().get_model_version(registered.name, registered.version)
    assert version.tags["kdflow.first_weights"] == "aaaabbbbccccdddd"
    assert not [name for name in version.tags if name.startswith("kdflow.general")]
    assert "It started as" not in version.description


def test_the_loaded_model_gives_the_probabilities_of_the_raw_logits(store: Store) -> None:
    toy.write_study(store.layout)
    model = load(store, register(store).uri)
    texts, pairs = tiny_texts(40, seed=1), tiny_texts(40, seed=2)
    answer = model.predict(pd.DataFrame({"text_pair": pairs, "text": texts}))
    wanted = direct(store.layout.student("toy", "rail_kd_l") / "seed-1", texts, pairs)
    for place, label in enumerate(toy.LABELS):
        assert torch.tensor(answer[f"probability:{label}"].to_list()).sub(wanted[:, place]).abs().max() < 1e-6
    assert answer["label"].to_list() == [toy.LABELS[i] for i in wanted.argmax(dim=1)]
    swapped = model.predict(pd.DataFrame({"text": pairs, "text_pair": texts}))
    assert (swapped["probability:entailment"] - answer["probability:entailment"]).abs().max() > 1e-3


def test_a_pair_model_refuses_half_a_pair(store: Store) -> None:
    toy.write_study(store.layout)
    model = load(store, register(store).uri)
    with pytest.raises(mlflow.MlflowException, match=r"missing inputs .'text_pair'"):
        model.predict(pd.DataFrame({"text": ["a film"]}))
    with pytest.raises(mlflow.MlflowException, match=r"`text_pair` of row 1 is (NoneType|float), expected text"):
        model.predict(pd.DataFrame({"text": ["a film", "a plot"], "text_pair": ["good", None]}))


def test_a_model_of_single_texts_takes_one_column(store: Store) -> None:
    """RoBERTa: a second kind of token would be an index error."""
    toy.write_study(store.layout, pair=False, labels=("bad", "so so", "good"), family="roberta")
    registered = register(store)
    model = load(store, registered.uri)
    assert model.metadata.signature.inputs.input_names() == ["text"]
    texts = [*tiny_texts(5), "the film " * 100]
    answer = model.predict(pd.DataFrame({"text": texts}))
    wanted = direct(store.layout.student("toy", "rail_kd_l") / "seed-1", texts)
    found = torch.tensor(answer[[f"probability:{name}" for name in ("bad", "so so", "good")]].to_numpy())
    assert (found - wanted).abs().max() < 1e-6


def test_a_regression_gives_a_score(store: Store) -> None:
    toy.write_study(store.layout, pair=False, labels=None)
    answer = load(store, register(store).uri).predict(pd.DataFrame({"text": ["a good film", "a bad film"]}))
    assert answer.columns.to_list() == ["score"]
    assert len(answer) == 2
    assert "from 0 to 5" in tracking_store.connect().get_registered_model(NAME).description


@pytest.mark.parametrize("given", [None, "sqlite:///of-the-owner.db"])
def test_registering_leaves_no_address_behind_for_servers(store: Store, monkeypatch: pytest.MonkeyPatch,
                                                          given: str | None) -> None:
    """MLflow puts its registry into the environment, which `mlflow models serve` would inherit."""
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    if given:
        monkeypatch.setenv("MLFLOW_REGISTRY_URI", given)
    toy.write_study(store.layout)
    register(store)
    assert os.environ.get("MLFLOW_REGISTRY_URI") == given
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert mlflow.get_registry_uri() == (given or mlflow.get_tracking_uri())


@pytest.mark.slow
def test_the_served_code_needs_nothing_of_ours(store: Store, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Copied out of the store, into a process that cannot import kdcore."""
    toy.write_study(store.layout)
    registered = register(store)
    place = tmp_path_factory.mktemp("elsewhere")
    with registry._fluent():
        mlflow.artifacts.download_artifacts(registered.uri, dst_path=str(place))
    shutil.rmtree(store.study)
    code = ("import sys; sys.modules['kdcore'] = None\nimport mlflow, pandas as pd\n"
            "print(mlflow.pyfunc.load_model('.').predict(pd.DataFrame({'text': ['a'], 'text_pair': ['b']})).columns)")
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert "probability:entailment" in done.stdout, done.stderr


def test_the_same_bytes_are_registered_once(store: Store) -> None:
    toy.write_study(store.layout)
    first = register(store)
    toy.write_study(store.layout, quality={"validation": 0.75, "elsewhere": 0.7})
    again = register(store)
    assert (again.version, again.new) == (first.version, False)
    client = tracking_store.connect()
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 1
    assert client.get_model_version(NAME, "1").tags["metric.validation.accuracy"] == "0.75", "newer scores are taken"


@pytest.mark.slow
def test_registrations_at_once_make_one_version(store: Store) -> None:
    toy.write_study(store.layout)
    code = ("from pathlib import Path\nfrom kdcore.layout import Layout\nfrom kdcore import registry\n"
            "from tests import trained_study as toy\n"
            "print(registry.register(toy.settings(), Layout(Path('.').resolve()), 'toy', 'rail_kd_l', 1).version)")
    processes = [store.process(code) for _ in range(3)]
    results = [process.communicate(timeout=120) for process in processes]
    assert [out.strip().splitlines()[-1:] for out, _ in results] == [["1"]] * 3, results
    assert [entry.aliases for entry in catalogue.entries(NAME)] == [("champion",)]


def test_later_versions_are_challengers(store: Store) -> None:
    toy.write_study(store.layout, models={1: 11, 2: 12, 3: 13})
    assert register(store, 1).aliases == ("champion",)
    assert register(store, 2).aliases == ("challenger",)
    assert register(store, 3).aliases == ("challenger",)
    assert register(store, 2).aliases == (), "an older version does not take the alias back"
    assert register(store, 1).aliases == ("champion",)


def test_the_list_shows_aliases_scores_and_lineage(store: Store) -> None:
    """A search for versions alone returns no aliases."""
    toy.write_study(store.layout)
    commit = toy.under_git(store.study)
    (store.study / "params.yaml").write_text("changed: since\n")
    register(store, 1)
    register(store, 2)
    found = catalogue.entries()
    assert [(entry.version, entry.aliases) for entry in found] == [("2", ("challenger",)), ("1", ("champion",))]
    console = Console(width=200, record=True)
    console.print(catalogue.table(found))
    text = console.export_text()
    for word in (NAME, "champion", "challenger", "rail_kd_l", "validation accuracy 0.820", "elsewhere accuracy 0.700",
                 f"{commit[:8]}-dirty", found[0].checkpoint[:8]):
        assert word in text, word
    assert json.loads(catalogue.as_json(found))[1]["aliases"] == ["champion"]
    assert catalogue.one(NAME).version == "1"
    assert catalogue.one(f"models:/{NAME}@challenger").version == "2"
    assert catalogue.one(f"{NAME}/2").version == "2"
    with pytest.raises(UserError, match="no alias 'champoin'; did you mean 'champion'"):
        catalogue.one(f"{NAME}@champoin")
    with pytest.raises(UserError, match="no registered model 'kdflow-tiny-toi'; did you mean 'kdflow-tiny-toy'"):
        catalogue.one("kdflow-tiny-toi")


def test_an_empty_registry_is_told(store: Store) -> None:
    assert catalogue.entries() == []
    with pytest.raises(UserError, match="nothing is registered yet"):
        catalogue.one("anything")


def test_the_best_student_has_the_best_mean_then_the_best_seed(store: Store) -> None:
    toy.write_study(store.layout, method="rail_kd_l", quality={"validation": 0.8, "elsewhere": 0.2})
    with pytest.raises(UserError, match="finetune on toy has no scores of seed 1, 2"):
        candidate.best(toy.settings(), store.layout, "toy")
    toy.write_study(store.layout, method="finetune", quality={"validation": 0.7, "elsewhere": 0.9})
    method, seed, reason = candidate.best(toy.settings(), store.layout, "toy")
    assert (method, seed) == ("rail_kd_l", 2)
    assert "accuracy over 2 seeds on validation (0.8100), seed 2 is its best (0.8200)" in reason


REFUSALS = {
    "unknown dataset": "dataset 'tyo' is not declared in params.yaml; did you mean 'toy'",
    "unknown method": "holds no student; did you mean 'rail_kd_l'",
    "unknown seed": "has no student of seed 7; known: 1, 2",
    "never evaluated": "dvc.lock does not know artifacts/evaluation/toy/rail_kd_l",
    "changed by hand": "student/toy/rail_kd_l is not what dvc.lock records",
    "scores changed by hand": "evaluation/toy/rail_kd_l is not what dvc.lock records",
    "scores of an earlier student": "belongs to an earlier student; run `dvc repro evaluate@toy-rail_kd_l`",
    "other classes": "calls its classes no, yes, the dataset not_entailment, entailment",
    "damaged lock": "dvc.lock is damaged .* restore it",
    "not under DVC": "dvc.lock does not know artifacts/student/toy/rail_kd_l",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_traced_is_refused_in_one_line(store: Store, case: str) -> None:
    toy.write_study(store.layout)
    dataset, method, seed = "toy", "rail_kd_l", 1
    student, evaluation = store.layout.student("toy", "rail_kd_l"), store.layout.evaluation("toy", "rail_kd_l")
    lock = store.study / "dvc.lock"
    match case:
        case "unknown dataset":
            dataset = "tyo"
        case "unknown method":
            method = "rail_kd"
        case "unknown seed":
            seed = 7
        case "never evaluated":
            toy.write_lock(store.layout, {name: recorded for name, recorded in read_lock(store.study).items()
                                          if name != "evaluate@toy-rail_kd_l"})
        case "changed by hand":
            (student / "seed-1" / "model.safetensors").write_bytes(b"better")
        case "scores changed by hand":
            path = evaluation / "metrics.json"
            path.write_text(path.read_text().replace("0.8,", "0.99,"))
        case "scores of an earlier student":
            (student / "seed-1" / "training.json").write_text('{"again": 1}')
            stages = read_lock(store.study)
            stages["distill@toy-rail_kd_l"]["outs"][0]["md5"] = hash_folder(student)
            toy.write_lock(store.layout, stages)
        case "other classes":
            path = student / "seed-1" / "config.json"
            path.write_text(path.read_text().replace("not_entailment", "no").replace("entailment", "yes"))
        case "damaged lock":
            lock.write_text("")
        case "not under DVC":
            lock.unlink()
    with pytest.raises(UserError, match=REFUSALS[case]) as error:
        registry.register(toy.settings(), store.layout, dataset, method, seed)
    assert "\n" not in str(error.value)
    assert store.runs() == []


def test_files_that_are_gone_are_told_in_a_line(store: Store) -> None:
    toy.write_study(store.layout)
    register(store, 1)
    register(store, 2)
    shutil.rmtree(store.root / "mlartifacts")
    with pytest.raises(UserError, match=rf"the files of {NAME} version 2 cannot be fetched .* register the student"):
        promotion.promote(NAME)
    with pytest.raises(UserError, match=rf"the files of {NAME} version 1 cannot be fetched"):
        registry.download(NAME, "1", store.root / "out")


def test_models_on_later_pages_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tracking_store.connect()
    for name in ("kdflow-a", "kdflow-b", "other", "kdflow-c"):
        client.create_registered_model(name)
    monkeypatch.setattr(catalogue, "PAGE", 2)
    assert catalogue.names(client) == ["kdflow-a", "kdflow-b", "kdflow-c"]
    with pytest.raises(UserError, match="kdflow-a has no alias 'champion'; it has no versions"):
        catalogue.one("kdflow-a")


def test_the_stage_registers_the_best_and_promotes_when_asked(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("finetune", "rail_kd_l"):
        toy.write_study(store.layout, method=method, models={1: 11 + len(method), 2: 31 + len(method)})
    registered = stage.run(toy.settings(), store.layout, "toy")
    assert (registered.version, registered.aliases) == ("1", ("champion",))
    out = capsys.readouterr().out
    assert "finetune has the best mean accuracy over 2 seeds on validation" in out
    assert f"{NAME} version 1 registered, models:/{NAME}@champion" in out
    with pytest.raises(UserError, match="version 2 does not become champion: better on validation refused"):
        stage.run(toy.settings(), store.layout, "toy", "rail_kd_l", 1, promote=True)
    with pytest.raises(UserError, match="give both, or neither"):
        stage.run(toy.settings(), store.layout, "toy", "rail_kd_l")


def test_a_failed_registration_leaves_no_version_and_no_running_run(
        store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.write_study(store.layout)

    def fail(**_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(mlflow.pyfunc, "log_model", fail)
        with pytest.raises(OSError, match="disk full"):
            register(store)
    assert [run.info.status for run in store.runs()] == ["FAILED"]
    assert catalogue.entries() == []
