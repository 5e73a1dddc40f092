"""The stage `report`: what it says, that it stays the same, and that it says nothing it does not know."""

import html
import itertools
import json
import shutil
import zipfile
from dataclasses import replace

import pyarrow as pa
import pytest

from kdcore import config, latest_report
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
from tests.evaluation.synthetic import SENTIMENT, split
from tests.stages.reported import LATENCY, edit_trainings, measure, numbers, run, study

pytest_plugins = ("tests.stages.reported",)
pytestmark = pytest.mark.usefixtures("few_resamples")


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


def test_outs_are_the_same_bytes_every_time(layout):
    def outs():
        return {p.relative_to(layout.report): p.read_bytes() for p in layout.report.rglob("*") if p.is_file()}

    run(layout)
    first = outs()
    measure(layout, "evaluate@movies-finetune", {"seed-1": {"latency": LATENCY}})
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
    measure(layout, "distill@movies-rail_kd_l",
            {"seed-1": {"epoch_seconds": [9.0, 10.0], "mlflow_run": "0123456789abcdef"}})
    measure(layout, "evaluate@movies-rail_kd_l", {"seed-1": {"latency": LATENCY}})
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


def test_what_was_measured_of_other_models_is_left_out(layout):
    """As when DVC brings back students of earlier settings, whose measurements nothing brings back."""
    measure(layout, "distill@movies-rail_kd_l", {"seed-1": {"epoch_seconds": [9.0, 10.0], "mlflow_run": "0123456789a"}})
    measure(layout, "evaluate@movies-rail_kd_l", {"seed-1": {"latency": LATENCY}})
    edit_trainings(layout, "movies", "rail_kd_l", learning_rate=9.0)
    run(layout)
    here = (layout.measured / "report.md").read_text()
    assert "0123456789a" not in here
    assert "4.2 / 5.1" not in here


def test_the_report_with_measurements_is_shown_while_it_is_of_these_numbers(layout):
    run(layout)
    assert latest_report.folder(layout) == layout.measured
    (layout.report / "results.json").write_text("{}")  # DVC restored another report
    assert latest_report.folder(layout) == layout.report


@pytest.mark.parametrize("label", ["1*", "*2*", "_x_", "a_b", "[x](javascript:alert(1))", "![y](http://example.org/x.png)",
                                   "<b>", "c\\d", "`q`"])
def test_words_of_the_user_are_shown_as_they_are(label, tmp_path, capsys):
    labels = (label, "2*")
    splits = tuple(replace(about, labels=labels, note=about.note and label) for about in SPLITS)
    layout, _ = write_study(tmp_path, labels=labels, splits=splits)
    run(layout)
    page = html.unescape((layout.report / "report.html").read_text())
    assert f"classes {label}, 2*;" in page
    assert f"500 rows (report); {label}" in page
    assert 'href="javascript:' not in page
    assert 'src="http' not in page
    assert "\\*" not in capsys.readouterr().out


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


def test_a_paragraph_is_one_line(layout):
    """Prefect and MLflow show a break within a paragraph as one."""
    prose, code = [], False
    for line in run(layout).splitlines():
        code ^= line.startswith("```")
        prose.append("" if code or line.startswith(("#", "|", "-", "!", "```")) else line)
    assert not [pair for pair in itertools.pairwise(prose) if all(pair)]


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
