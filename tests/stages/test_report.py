"""The stage `report`: what it says, that it stays the same, and that it says nothing it does not know."""

import itertools
import json
import shutil
import zipfile
from dataclasses import replace

import pyarrow as pa
import pytest

from kdcore import config
from kdcore.analysis.exhibits import Exhibit, Exhibits
from kdcore.data.assemble import _eval_rows
from kdcore.data.checks import Rows
from kdcore.data.parts import Part
from kdcore.data_config import Data
from kdcore.errors import UserError
from kdcore.lineage import hash_folder
from kdcore.stages import evaluate, report
from tests.analysis.evaluations import SPLITS, info_of, write, write_study
from tests.evaluation import synthetic
from tests.evaluation.synthetic import NLI, SENTIMENT, split

METHODS = ("finetune", "vanilla_kd", "rail_kd_l")


def study(datasets=("movies",), methods=METHODS):
    return synthetic.study(methods, (1, 2, 3), datasets)


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch):
    monkeypatch.setattr("kdcore.analysis.results.RESAMPLES", 300)


@pytest.fixture
def layout(tmp_path):
    return write_study(tmp_path)[0]


def run(layout, **selection):
    report.run(study(**selection), layout)
    return (layout.report / "report.md").read_text()


def numbers(layout):
    return json.loads((layout.report / "results.json").read_text())


def test_the_report_reads_on_its_own(layout):
    text = run(layout)
    for part in ("# Results: movies", "Does a small model", "3,000 training rows", "Teacher: ", "seeds 1, 2, 3",
                 "### In domain", "### Out of domain", "#### All 15 differences", "### Size", "### Notes",
                 "(curves/movies.png)", "dvc repro", "a part of the whole"):
        assert part in text
    assert "selected on `validation`; `test` had no part in the selection" in text
    assert "unweighted, of amazon, tweets" in text
    outside = text[text.index("### Out of domain"):text.index("#### All 15 differences")]
    assert "elected" not in outside, "rows of another domain have no part in any selection"
    assert "/tmp" not in text, "no path of this machine"


def test_what_training_rows_are_is_said(tmp_path):
    layout, _ = write_study(tmp_path, splits=(replace(SPLITS[0], note="with 90 variants of 30 rows"), *SPLITS[1:]))
    assert "Training rows: with 90 variants of 30 rows." in run(layout)


def test_every_table_of_the_report_is_well_formed(layout):
    lines = run(layout).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) > 20
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert before.count("|") == line.count("|")


def test_values_are_means_over_seeds_with_sample_deviation(layout):
    run(layout)
    found = numbers(layout)["datasets"]["movies"]["systems"]["rail_kd_l"]["metrics"]["test/accuracy"]
    assert len(found["values"]) == found["n"] == 3
    assert found["mean"] == pytest.approx(sum(found["values"]) / 3)
    assert found["sd"] == pytest.approx((sum((v - found["mean"]) ** 2 for v in found["values"]) / 2) ** 0.5)


def test_the_out_of_domain_mean_is_unweighted(layout):
    run(layout)
    values = numbers(layout)["datasets"]["movies"]["systems"]["finetune"]["metrics"]
    means = [(a + t) / 2 for a, t in zip(values["amazon/accuracy"]["values"], values["tweets/accuracy"]["values"],
                                         strict=True)]
    assert values["out-of-domain mean"]["values"] == pytest.approx(means)


def test_differences_are_found_where_they_are_and_not_elsewhere(layout):
    run(layout)
    found = {(d["method"], d["baseline"], d["on"]): d["verdict"]
             for d in numbers(layout)["datasets"]["movies"]["differences"]}
    assert found["rail_kd_l", "finetune", "test/accuracy"] == "better"
    assert found["rail_kd_l", "vanilla_kd", "out-of-domain mean"] == "better"
    assert found["vanilla_kd", "finetune", "test/accuracy"] == "not distinguishable"
    assert {(method, baseline) for method, baseline, _ in found} == {
        ("vanilla_kd", "finetune"), ("rail_kd_l", "finetune"), ("rail_kd_l", "vanilla_kd")}


def test_methods_by_names_of_their_own(layout, capsys):
    """The baselines are found by what they are, and the report says what each name stands for."""
    methods = {"finetune": ("alone", "finetune", {}), "vanilla_kd": ("warm", "vanilla_kd", {"temperature": 4}),
               "rail_kd_l": ("rail_kd_l", "rail_kd_l", {})}
    for folder, (name, file, options) in methods.items():
        path = layout.evaluation("movies", folder) / "context.json"
        content = json.loads(path.read_text())
        for run_ in content["runs"].values():
            run_["training"] |= {"method": {"name": file}} | (
                {"variant": {"name": name, "options": options}} if name != file else {})
        path.write_text(json.dumps(content))
        path.parent.rename(layout.evaluation("movies", name))
    text = run(layout, methods=[name for name, _, _ in methods.values()])
    assert "names of their own:\n\n- `alone` is `finetune`\n- `warm` is `vanilla_kd` with temperature 4\n\n" in text
    assert "alone is finetune." in capsys.readouterr().out
    assert {(found["method"], found["baseline"]) for found in numbers(layout)["datasets"]["movies"]["differences"]} == {
        ("warm", "alone"), ("rail_kd_l", "alone"), ("rail_kd_l", "warm")}


def test_the_selector_of_students_is_named(layout):
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for run_ in content["runs"].values():
        run_["training"]["selector"] = {"fingerprint": "0123456789abcdef", "study": "ksm-tiny", "dataset": "movies",
                                        "method": "ksm", "seed": 3, "teacher": "", "prepared": ""}
    path.write_text(json.dumps(content))
    told = "with the selector 0123456789abcdef, trained by ksm on movies with seed 3 in the study ksm-tiny; "
    assert run(layout).count(told) == 1


def test_repeated_random_selections_have_a_table(layout, capsys):
    assert "Repeated random selections" not in run(layout)
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for run_ in content["runs"].values():
        run_["training"] |= {"method": {"name": "knowledge_mix", "selection": "random_one", "knowledge": {"label": 1}}}
    path.write_text(json.dumps(content))
    text = run(layout)
    assert "### Repeated random selections\n\n|  | selection | on | best | worst | difference | n |" in text
    assert "| rail_kd_l | Random-One | validation acc |" in text
    assert "Repeated random selections: movies" in capsys.readouterr().out


def test_two_seeds_are_not_tested(tmp_path, capsys):
    layout, _ = write_study(tmp_path, seeds=2)
    text = run(layout)
    assert "not tested" in text
    assert "better" not in text.replace("do better", "")
    assert "Differences" not in capsys.readouterr().out


def test_outs_are_the_same_bytes_every_time(layout):
    def outs():
        return {p.relative_to(layout.report): p.read_bytes() for p in layout.report.rglob("*") if p.is_file()}

    run(layout)
    first = outs()
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / "evaluate@movies-finetune.json").write_text(json.dumps({"seed-1": {"latency": LATENCY}}))
    run(layout)
    assert outs() == first, "measurements must not leak into the report"
    assert {str(name) for name in first} == {"report.md", "report.html", "results.json", "scores.csv", "cost.png",
                                           "curves/movies.png"}


def analysed(layout, *absent):
    """One picture, as the stage `analyse` leaves it."""
    folder = layout.analysis("movies")
    folder.mkdir(parents=True)
    (folder / "maps.png").write_bytes(b"picture")
    (folder / "maps.csv").write_text("1\n")
    Exhibits("movies", (Exhibit("Cosines", "maps.png", "maps.csv", "Over 100 rows."),), absent).write(folder)
    return folder


def test_pictures_of_the_analyses_travel_with_their_data(layout):
    assert "Analyses" not in run(layout)
    analysed(layout, "Attention is not defined.")
    text = run(layout)
    for part in ("### Analyses", "![Cosines](analysis/movies/maps.png)", "Over 100 rows. Data: [maps.csv]",
                 "- Attention is not defined."):
        assert part in text
    assert (layout.report / "analysis/movies/maps.png").read_bytes() == b"picture"
    assert (layout.report / "analysis/movies/maps.csv").read_text() == "1\n"


def test_a_picture_that_is_gone_is_named(layout):
    (analysed(layout) / "maps.png").unlink()
    with pytest.raises(UserError, match=r"maps\.png is missing; run `kdflow analyse movies` again"):
        run(layout)


LATENCY = {"batch_1": {"p50_ms": 4.2, "p95_ms": 5.1}, "batch_32": {"p50_ms": 40.0, "p95_ms": 44.0},
           "peak_memory_bytes": 500 * 2**20, "peak_memory_of": "process", "device": "CPU x86_64", "threads": 2}


def test_the_page_is_the_report_and_what_this_machine_knows_lies_beside_it(layout):
    """One text, rendered: of outs alone in the report, with times, runs and hashes among the measurements."""
    text = run(layout)
    page = (layout.report / "report.html").read_text()
    for part in ("<h1", "Does a small model", "data:image/png;base64,",
                 "<summary>Where these numbers come from</summary>", "dvc repro evaluate@movies-rail_kd_l",
                 "dvc repro evaluate-teacher@movies"):
        assert part in page
    assert "latency" not in page.replace("Latency and training time are no part", "").replace(
        "latency, training time\n", "")
    assert f"`{hash_folder(layout.evaluation('movies', 'finetune'))[:12]}`" in text
    (layout.measured / "distill@movies-rail_kd_l.json").write_text(json.dumps(
        {"seed-1": {"epoch_seconds": [9.0, 10.0], "mlflow_run": "0123456789abcdef"}}))
    (layout.measured / "evaluate@movies-rail_kd_l.json").write_text(json.dumps({"seed-1": {"latency": LATENCY}}))
    (layout.study / "dvc.lock").write_text("stages: {distill@movies-rail_kd_l: {outs: [{path: "
                                           "artifacts/student/movies/rail_kd_l, md5: fedcba9876543210.dir}]}}\n")
    run(layout)
    here = (layout.measured / "report.md").read_text()
    assert "seed-1 `0123456789abcdef`" in here
    assert "`fedcba987654`" in here
    assert "4.2 / 5.1" in here
    assert "![Quality against cost](cost.png)" in here
    assert "(../report/curves/movies.png)" in here
    assert "4.2 / 5.1" in (layout.measured / "report.html").read_text()


def test_the_study_may_ask_its_own_question(layout):
    settings = study()
    asked = settings.study.model_copy(update={"question": "Do random layers help?"})
    report.run(settings.model_copy(update={"study": asked}), layout)
    text = (layout.report / "report.md").read_text()
    assert "# Results: movies\n\nDo random layers help?\n" in text
    assert "Does a small model" not in text


def test_published_scores_stand_beside_ours_with_their_source(layout):
    paper = config.Published(source="A. Author 2020, table 2", scores={"movies": {"test/accuracy": 91.2}})
    settings = study()
    named = settings.study.model_copy(update={"published": {"Paper": paper}})
    report.run(settings.model_copy(update={"study": named}), layout)
    text = (layout.report / "report.md").read_text()
    assert "| Paper, published | 91.2 |" in text
    assert "Sources: Paper: A. Author 2020, table 2." in text


def test_means_are_there_for_dvc_to_plot(layout):
    run(layout)
    heading, *rows = (layout.report / "scores.csv").read_text().splitlines()
    assert heading == "number,dataset,system,on,score"
    found = numbers(layout)["datasets"]["movies"]["systems"]["rail_kd_l"]["metrics"]["test/accuracy"]["mean"]
    assert f"movies test/accuracy: rail_kd_l,movies,rail_kd_l,test/accuracy,{100 * found:.6f}" in rows


def test_the_printed_tables_fit_and_join_what_was_measured(layout, capsys):
    layout.measured.mkdir(parents=True, exist_ok=True)
    for name, content in {"evaluate@movies-rail_kd_l": {"seed-1": {"latency": LATENCY}, "mlflow_run": "abc"},
                          "teacher@movies": {"teacher": {"epoch_seconds": [30.0, 20.0], "train_seconds": 50.0}},
                          "distill@movies-rail_kd_l": {
                              "seed-1": {"epoch_seconds": [9.0, 10.0, 11.0], "train_seconds": 30.0},
                              "seed-2": {"epoch_seconds": [15.0, 9.0, 10.0], "train_seconds": 34.0},
                              "seed-3": {"epoch_seconds": [15.0, 10.0, 90.0], "train_seconds": 115.0}}}.items():
        (layout.measured / f"{name}.json").write_text(json.dumps(content))
    run(layout)
    printed = capsys.readouterr().out
    assert max(map(len, printed[:printed.index("The whole report")].splitlines())) < 100
    cost = printed[printed.index("Cost: movies"):]
    line = next(line for line in cost.splitlines() if line.startswith("rail_kd_l"))
    assert "4.2 / 5.1" in line
    assert "40.0 / 44.0" in line
    assert line.split()[-2:] == ["0.68", "0.50"], "34 of 50 s a run; 10 of 20 s an epoch, the busy one left out"
    assert "not measured" in next(line for line in cost.splitlines() if line.startswith("finetune"))
    assert "CPU x86_64, 2 threads" in cost


def test_nothing_measured_is_said_and_no_error(layout, capsys):
    run(layout)
    cost = capsys.readouterr().out.partition("Cost: movies")[2]
    assert "ms, batch 1" not in cost
    assert "s/epoch" not in cost
    said = " ".join(cost.split())
    assert "Latency and memory were not measured here" in said
    assert "Training time was not measured here" in said


def test_subsets_and_small_splits_are_pointed_out(tmp_path, capsys):
    small = (*SPLITS[:1], split("validation", "select", 64, SENTIMENT, note="subset: 64 of the official 872 rows"))
    layout, _ = write_study(tmp_path, splits=small)
    text = run(layout)
    assert "subset: 64 of the official 872 rows" in text
    assert "**`validation` has only 64 rows**: an accuracy of 80 % there has a standard error of 5.0 points" in text
    printed = capsys.readouterr().out
    assert "movies: validation has only 64 rows" in printed
    assert "movies: validation: subset: 64 of the official 872 rows" in printed


@pytest.mark.parametrize(("role", "cut"), [("select", True), ("train", False)])
def test_cut_splits_are_pointed_out_as_preparation_notes_them(tmp_path, role, cut):
    """Of evaluation splits; a drawn part of the training rows is none."""
    rows = Rows(pa.table({"text": ["a"] * 400, "label": [0, 1] * 200}), hidden=False)
    part = Part("validation", role, rows, "somewhere", SENTIMENT, notes=("some note",))
    note = _eval_rows(part, Data(eval_rows=350)).info(128).note
    about = {"select": SPLITS[1], "train": SPLITS[0]}[role]
    splits = tuple(replace(other, note=note) if other is about else other for other in SPLITS[:2])
    layout, _ = write_study(tmp_path, splits=splits)
    assert ("random parts (`eval_rows`): 400 of `validation`.**" in run(layout)) == cut


@pytest.mark.parametrize(("teacher", "said"), [(0.9, "Always answering positive scores 52.0 on `validation`, the"),
                                               (0.5, "**The teacher is no better than a constant answer.** Always")])
def test_the_teacher_is_compared_with_a_constant_answer(layout, teacher, said):
    path = layout.evaluation("movies", "teacher") / "context.json"
    content = json.loads(path.read_text())
    content["runs"]["teacher"]["training"]["check"] = {
        "split": "validation", "teacher": teacher, "answer": "positive", "constant": 0.52}
    path.write_text(json.dumps(content))
    assert said in run(layout)


def test_selecting_and_reporting_on_the_same_rows_is_said(tmp_path):
    layout, _ = write_study(tmp_path, splits=SPLITS[:2])
    assert "reported on the same rows, as papers do with GLUE" in run(layout)


def edit_trainings(layout, dataset, system, **changes):
    """Change what the records of a system's trainings say."""
    path = layout.evaluation(dataset, system) / "context.json"
    content = json.loads(path.read_text())
    for found in content["runs"].values():
        training = found["training"]
        training |= {key: value for key, value in changes.items() if key != "keep"}
        if "keep" in changes:
            training["phases"][-1]["keep"] = changes["keep"]
    path.write_text(json.dumps(content))


def test_the_last_weights_are_not_said_to_be_selected(tmp_path):
    layout, _ = write_study(tmp_path, splits=SPLITS[:2])
    edit_trainings(layout, "movies", "rail_kd_l", keep="last")
    assert "flatters every method a little; of `rail_kd_l` the weights of the last step were kept" in run(layout)
    for method in ("teacher", "finetune", "vanilla_kd"):
        edit_trainings(layout, "movies", method, keep="last")
    text = run(layout)
    assert "No checkpoint was chosen, the weights of the last step were kept" in text
    assert "were selected" not in text


def test_settings_that_a_method_has_on_one_dataset_alone_are_said_there(tmp_path):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="books")
    for dataset, temperature in (("movies", 2.0), ("books", 4.0)):
        edit_trainings(layout, dataset, "vanilla_kd", method={"name": "vanilla_kd", "alpha": 0.5,
                                                              "temperature": temperature})
        edit_trainings(layout, dataset, "rail_kd_l", method={"name": "rail_kd_l", "alpha": 0.5})
    text = run(layout, datasets=("movies", "books"))
    movies, books = text[text.index("\n## movies"):].split("\n## books")
    assert "\n- `vanilla_kd`: temperature 2.0\n" in movies
    assert "\n- `vanilla_kd`: temperature 4.0\n" in books
    assert "- `rail_kd_l`: " not in text
    assert "differ between the datasets" not in run(layout, datasets=("movies",))


def test_a_start_that_each_seed_draws_is_told_once(layout):
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for run_name, found in content["runs"].items():
        found["training"]["init"] = f"layers 2 of it, new head (seed {run_name.removeprefix('seed-')})"
    path.write_text(json.dumps(content))
    assert "rail_kd_l: layers 2 of it, new head (seed of the run); " in run(layout)


def test_seeds_that_ran_fewer_phases_are_said(layout):
    path = layout.evaluation("movies", "rail_kd_l") / "context.json"
    content = json.loads(path.read_text())
    for count, found in zip((1, 3, 2), content["runs"].values(), strict=True):
        (phase,) = found["training"]["phases"]
        found["training"]["phases"] = [*(phase | {"name": f"episode-{n}"} for n in range(1, count)), phase]
    path.write_text(json.dumps(content))
    told = next(line for line in run(layout).splitlines() if line.startswith("rail_kd_l: "))
    assert "; episode-1, episode-2: epochs 2, " in told, "alike, so told once"
    assert told.endswith("; seeds ran 1 to 3 of these phases; seeds 1, 2, 3.")


def test_untested_differences_have_no_empty_columns(tmp_path):
    layout, _ = write_study(tmp_path, seeds=2, splits=SPLITS[:2])
    text = run(layout)
    assert "### Differences\n\n|  | on | difference | verdict |\n" in text, "few, so not folded"
    assert "Holm" not in text


def test_a_paragraph_is_one_line(layout):
    """Prefect and MLflow show a break within a paragraph as one."""
    prose, code = [], False
    for line in run(layout).splitlines():
        code ^= line.startswith("```")
        prose.append("" if code or line.startswith(("#", "|", "-", "!", "```")) else line)
    assert not [pair for pair in itertools.pairwise(prose) if all(pair)]


def test_numbers_stand_in_the_order_of_the_study(layout):
    run(layout)
    assert list(numbers(layout)["datasets"]["movies"]["systems"]) == ["teacher", *METHODS]


def test_degenerate_systems_and_warnings_are_marked(layout):
    shutil.rmtree(layout.evaluation("movies", "rail_kd_l"))
    write(layout, info_of("movies"), "rail_kd_l", {"seed-1": 0.8, "seed-2": 0.81}, warnings=("projections collapse",))
    path = layout.evaluation("movies", "rail_kd_l") / "metrics.json"
    content = json.loads(path.read_text())
    content["seed-1"]["amazon"]["degenerate"] = True
    path.write_text(json.dumps(content))
    text = run(layout)
    assert "rail_kd_l (!)" in text
    assert "**rail_kd_l (!) is degenerate** on amazon" in text
    assert "rail_kd_l (seed-1, seed-2): projections collapse" in text


def test_a_missing_method_is_said_and_the_rest_is_reported(layout):
    shutil.rmtree(layout.evaluation("movies", "vanilla_kd"))
    text = run(layout)
    assert "**vanilla_kd was not evaluated**" in text
    assert "rail_kd_l - finetune" in text


def test_several_datasets_get_an_overview(tmp_path, capsys):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="stsb", labels=None, metrics=("pearson", "spearman"), splits=(
        split("train", "train", 500, None), split("validation", "select", 300, None)))
    text = run(layout, datasets=("movies", "stsb"))
    assert "## All datasets" in text
    assert "| stsb validation Pearson+Spearman |" in text
    printed = capsys.readouterr().out
    assert max(map(len, printed[:printed.index("The whole report")].splitlines())) < 100


def test_the_out_of_domain_mean_over_datasets_is_unweighted_and_of_accuracies(tmp_path):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="sst2", splits=(*SPLITS[:2], split("imdb", "ood", 320, SENTIMENT)))
    write_study(tmp_path, name="rated", labels=None, metrics=("pearson",), splits=(
        split("train", "train", 500, None), split("validation", "select", 300, None), split("nyt", "ood", 300, None)))
    text = run(layout, datasets=("movies", "sst2", "rated"))
    part = text[text.index("### Out of domain, all datasets"):]
    heading, _, teacher = part.splitlines()[2:5]
    assert heading == "|  | amazon from movies | tweets from movies | imdb from sst2 | mean |"
    *values, mean = (float(cell) for cell in teacher.split("|")[2:-1])
    assert mean == pytest.approx(sum(values) / 3, abs=0.1)


def test_collapsed_classes_report_the_alternative_decision(tmp_path):
    splits = (split("train", "train", 500, NLI), split("validation_matched", "select", 300, NLI),
              split("scitail", "ood", 250, ("entailment", "neutral")))
    layout, _ = write_study(tmp_path, name="mnli", labels=NLI, splits=splits)
    assert "comparing summed probabilities instead gives teacher 50.0" in run(layout, datasets=("mnli",))


def test_variants_of_a_set_do_not_count_twice_in_the_mean(tmp_path):
    splits = (*SPLITS[:2], split("paws_wiki", "ood", 300, SENTIMENT), split("paws_qqp", "ood", 250, SENTIMENT),
              split("other", "ood", 250, SENTIMENT))
    layout, _ = write_study(tmp_path, splits=splits)
    run(layout)
    assert numbers(layout)["datasets"]["movies"]["out_of_domain_mean_of"] == ["paws_wiki", "other"]


class TestSubmission:
    """Zips over the datasets of a study."""

    def make(self, folder, files):
        layout, info = write_study(folder)
        shutil.rmtree(layout.evaluation("movies", "finetune"))
        write(layout, info, "finetune", {"seed-1": 0.7, "seed-2": 0.9}, files)
        return layout

    def test_of_the_best_seed_with_all_files(self, tmp_path, capsys):
        layout = self.make(tmp_path, {f"seed-{s}": {"test": "WNLI.tsv"} for s in (1, 2)})
        text = run(layout)
        with zipfile.ZipFile(layout.report / "submission" / "finetune.zip") as archive:
            assert len(archive.namelist()) == 11
            assert archive.read("WNLI.tsv").decode().startswith("index\tprediction\n0\t1\n")
        assert "WNLI.tsv from seed-2. **Not predicted, one label in every row: AX.tsv, CoLA.tsv" in text
        assert "GLUE submission: submission/finetune.zip" in capsys.readouterr().out
        assert [p.name for p in (layout.report / "submission").iterdir()] == ["finetune.zip"]

    def test_a_file_that_could_not_be_written_is_told(self, tmp_path):
        layout = self.make(tmp_path, {"seed-2": {"test": "WNLI.tsv not written: 20 of 146 rows"}})
        assert "finetune: movies/test: WNLI.tsv not written: 20 of 146 rows" in run(layout)
        assert not (layout.report / "submission").exists()


def test_after_the_real_evaluate_stage(tmp_path):
    layout = synthetic.write_study(tmp_path, ("finetune", "rail_kd_l"))
    settings = synthetic.study(("finetune", "rail_kd_l"))
    for method in ("teacher", "finetune", "rail_kd_l"):
        evaluate.run(settings, layout, "toy", method)
    report.run(settings, layout)
    assert "rail_kd_l - finetune" in (layout.report / "report.md").read_text()
    assert (layout.report / "curves" / "toy.png").stat().st_size > 10_000


# Mistakes.


def test_nothing_evaluated_names_the_way(tmp_path):
    layout, _ = write_study(tmp_path)
    with pytest.raises(UserError, match=r"nothing of rte was evaluated yet; run `dvc repro`"):
        run(layout, datasets=("rte",))


def test_a_damaged_file_names_itself_and_the_command(layout):
    (layout.evaluation("movies", "finetune") / "context.json").write_text('{"protocol": ')
    with pytest.raises(UserError, match=r"evaluation in .*finetune cannot be read .*kdflow evaluate movies finetune"):
        run(layout)


def test_a_missing_file_names_the_command(layout):
    (layout.evaluation("movies", "finetune") / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"metrics.json is missing; run `kdflow evaluate movies finetune` again"):
        run(layout)


def test_numbers_of_another_protocol_are_not_mixed(layout):
    path = layout.evaluation("movies", "finetune") / "context.json"
    path.write_text(path.read_text().replace("kdflow-metrics/1", "kdflow-metrics/0"))
    with pytest.raises(UserError, match="was scored by kdflow-metrics/0, this version computes kdflow-metrics/1"):
        run(layout)


def test_numbers_of_other_data_are_not_mixed(layout):
    shutil.rmtree(layout.evaluation("movies", "finetune"))
    other = (*SPLITS[:1], split("validation", "select", 399, SENTIMENT), *SPLITS[2:])
    write(layout, info_of("movies", splits=other), "finetune", {"seed-1": 0.8})
    with pytest.raises(UserError, match="teacher and finetune were evaluated on different preparations of movies"):
        run(layout)


def test_runs_that_do_not_agree_are_refused(layout):
    path = layout.evaluation("movies", "finetune") / "metrics.json"
    content = json.loads(path.read_text())
    del content["seed-3"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"name different runs; run `kdflow evaluate movies finetune` again"):
        run(layout)


def test_methods_without_a_common_seed_are_refused(layout):
    shutil.rmtree(layout.evaluation("movies", "finetune"))
    write(layout, info_of("movies"), "finetune", {"seed-7": 0.8})
    with pytest.raises(UserError, match="vanilla_kd and finetune have no seed in common on movies"):
        run(layout)


@pytest.mark.parametrize(("content", "said"), [("{", "is no JSON"), ("[1]", "holds list, expected a mapping")])
def test_damaged_measurements_name_the_file(layout, content, said):
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / "distill@movies-finetune.json").write_text(content)
    with pytest.raises(UserError, match=rf"distill@movies-finetune.json {said}"):
        run(layout)


def test_an_old_report_stays_when_a_new_one_fails(layout):
    run(layout)
    before = (layout.report / "report.md").read_bytes()
    (layout.evaluation("movies", "finetune") / "metrics.json").unlink()
    with pytest.raises(UserError, match="missing"):
        run(layout)
    assert (layout.report / "report.md").read_bytes() == before


def test_a_teacher_that_is_only_files_has_no_numbers_where_it_was_not_asked(layout, capsys):
    """Neither scores of splits that its files do not answer, nor a size or latency."""
    folder = layout.evaluation("movies", "teacher")
    metrics, context = (json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "context"))
    metrics["teacher"] = {"train": metrics["teacher"]["test"], "validation": metrics["teacher"]["validation"]}
    run_of = context["runs"]["teacher"]
    run_of["size"], run_of["training"]["phases"], run_of["training"]["history"] = {}, [], []
    run_of["training"]["init"] = "answers in data/teacher.csv (probabilities)"
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "context.json").write_text(json.dumps(context))
    text = run(layout)
    assert "Teacher: answers in data/teacher.csv (probabilities).\n" in text
    assert "| teacher | - | - | - | - |" in text, "its size"
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("teacher")]
    assert rows == [["teacher", rows[0][1], "-", "-", "-", "-"], ["teacher", "-", "-"]]
    assert set(numbers(layout)["datasets"]["movies"]["systems"]["teacher"]["metrics"]) == {"validation/accuracy"}


def test_several_datasets_where_one_teacher_is_only_files(tmp_path):
    layout, _ = write_study(tmp_path)
    write_study(tmp_path, name="reviews")
    path = layout.evaluation("reviews", "teacher") / "metrics.json"
    path.write_text(json.dumps({"teacher": {"train": {"accuracy": 0.9, "degenerate": False, "n": 3000}}}))
    text = run(layout, datasets=("movies", "reviews"))
    overview = next(line for line in text.splitlines() if line.startswith("| teacher |"))
    cells = [cell.strip() for cell in overview.strip("|").split("|")]
    assert cells[2:] == ["-", "-"], "not evaluated there, so there is no mean of datasets either"
    assert cells[1] != "-"


def test_members_of_an_average_have_curves_and_scores(layout, monkeypatch):
    folder = layout.evaluation("movies", "teacher")
    context = json.loads((folder / "context.json").read_text())
    training = context["runs"]["teacher"]["training"]
    one = dict(training)
    training |= {"members": [one, one], "history": [], "check": {
        "split": "validation", "teacher": 0.9, "constant": 0.5, "answer": "positive", "members": [0.88, 0.87]}}
    (folder / "context.json").write_text(json.dumps(context))
    drawn = []
    monkeypatch.setattr("kdcore.analysis.plots.draw", lambda panels, path: drawn.extend(panels))
    text = run(layout)
    assert len(drawn[0].curves["teacher"]) == 2
    assert "the teacher 90.0 (its members 88.0, 87.0)." in text


def test_steps_in_place_of_epochs_are_told(layout):
    """A training of so many steps has a number of epochs too, which it does not look at."""
    folder = layout.evaluation("movies", "rail_kd_l")
    context = json.loads((folder / "context.json").read_text())
    for found in context["runs"].values():
        (phase,) = found["training"]["phases"]
        found["training"]["phases"] = [phase | {"steps": 688}]
    (folder / "context.json").write_text(json.dumps(context))
    told = next(line for line in run(layout).splitlines() if line.startswith("rail_kd_l: "))
    assert "; steps 688, batch size " in told
    assert "epochs" not in told


def test_phases_of_a_method_are_told_and_drawn_one_after_another(layout, monkeypatch):
    """Others that were trained otherwise are told apart, lest a longer training pass for a better method."""
    folder = layout.evaluation("movies", "rail_kd_l")
    context = json.loads((folder / "context.json").read_text())
    for found in context["runs"].values():
        training = found["training"]
        (phase,) = training["phases"]
        training["phases"] = [phase | {"name": "layers", "epochs": 2, "learning_rate": 1e-3}, phase]
        last = training["history"][-1]
        layers = [{key: value for key, value in last.items() if key != "development"} | {
            "phase": "layers", "epoch": epoch} for epoch in (1.0, 2.0)]
        training["history"] = [*layers, last | {"phase": phase["name"], "epoch": 1.0}]
    (folder / "context.json").write_text(json.dumps(context))
    drawn = []
    monkeypatch.setattr("kdcore.analysis.plots.draw", lambda panels, path: drawn.extend(panels))
    text = run(layout)
    assert [list(curve.epochs) for curve in drawn[0].curves["rail_kd_l"]] == 3 * [[1, 2, 3]]
    assert drawn[0].curves["rail_kd_l"][0].scores[:2] == [None, None]
    assert "\nfinetune, vanilla_kd: " in text
    told = next(line for line in text.splitlines() if line.startswith("rail_kd_l: "))
    assert "; layers: epochs 2, " in told
    assert "learning rate 0.001" in told
    assert told.endswith("seeds 1, 2, 3.")
