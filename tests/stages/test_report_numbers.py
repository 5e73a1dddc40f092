"""The stage `report`: means, deviations and differences in its tables."""


import pytest

from tests.analysis.evaluations import SPLITS, write_study
from tests.evaluation.synthetic import NLI, SENTIMENT, split
from tests.stages.reported import LATENCY, METHODS, measure, numbers, run

pytest_plugins = ("tests.stages.reported",)
pytestmark = pytest.mark.usefixtures("few_resamples")


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


def test_two_seeds_are_not_tested(tmp_path, capsys):
    layout, _ = write_study(tmp_path, seeds=2)
    text = run(layout)
    assert "not tested" in text
    assert "better" not in text.replace("do better", "")
    assert "Differences" not in capsys.readouterr().out


def test_means_are_there_for_dvc_to_plot(layout):
    run(layout)
    heading, *rows = (layout.report / "scores.csv").read_text().splitlines()
    assert heading == "number,dataset,system,on,score"
    found = numbers(layout)["datasets"]["movies"]["systems"]["rail_kd_l"]["metrics"]["test/accuracy"]["mean"]
    assert f"movies test/accuracy: rail_kd_l,movies,rail_kd_l,test/accuracy,{100 * found:.6f}" in rows


def test_the_printed_tables_fit_and_join_what_was_measured(layout, capsys):
    for name, content in {"evaluate@movies-rail_kd_l": {"seed-1": {"latency": LATENCY}},
                          "teacher@movies": {"teacher": {"epoch_seconds": [30.0, 20.0], "train_seconds": 50.0}},
                          "distill@movies-rail_kd_l": {
                              "seed-1": {"epoch_seconds": [9.0, 10.0, 11.0], "train_seconds": 30.0},
                              "seed-2": {"epoch_seconds": [15.0, 9.0, 10.0], "train_seconds": 34.0},
                              "seed-3": {"epoch_seconds": [15.0, 10.0, 90.0], "train_seconds": 115.0}}}.items():
        measure(layout, name, content)
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


def test_untested_differences_have_no_empty_columns(tmp_path):
    layout, _ = write_study(tmp_path, seeds=2, splits=SPLITS[:2])
    text = run(layout)
    assert "### Differences\n\n|  | on | difference | verdict |\n" in text, "few, so not folded"
    assert "Holm" not in text


def test_numbers_stand_in_the_order_of_the_study(layout):
    run(layout)
    assert list(numbers(layout)["datasets"]["movies"]["systems"]) == ["teacher", *METHODS]


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
