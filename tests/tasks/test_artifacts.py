"""What the flow run's page is given."""

import json

import pytest

from kdcore import layout
from tasks import artifacts, runs
from tasks.artifacts import artifact_key, publish, result_rows, stage_rows
from tasks.chain import Outcome


def test_the_table_has_a_row_per_stage():
    outcome = Outcome({"a": {"outcome": "ran", "seconds": 1.5}}, {"b": "b failed: x"}, {"c": "b"}, {"d": "needs e"})
    assert [(row["stage"], row["outcome"]) for row in stage_rows(outcome)] == [
        ("a", "ran"), ("b", "failed"), ("c", "blocked by b"), ("d", "needs e")]


def test_every_number_of_every_dataset_has_a_row_and_every_system_a_column():
    def system(**numbers):
        return {"metrics": {name: {"mean": mean, "sd": sd} for name, (mean, sd) in numbers.items()}}

    rte = {"teacher": system(acc=(0.5, None)), "kd": system(acc=(0.25, 0.01))}
    stsb = {"kd": system(pearson=(0.9, None))}
    rows = result_rows({"datasets": {"rte": {"systems": rte}, "stsb": {"systems": stsb}}})
    assert rows == [{"dataset": "rte", "number": "acc", "teacher": "50.0", "kd": "25.0 ± 1.0"},
                    {"dataset": "stsb", "number": "pearson", "teacher": "", "kd": "90.0"}]


def test_a_flow_that_writes_no_report_says_why(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda **about: given.update(about))
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda **about: None)
    publish(tmp_path, "tiny", Outcome(left_out={"report": "needs analyse@cola and 59 more, not selected"}), [], None)
    assert "**No new report:** it needs analyse@cola and 59 more, not selected." in given["markdown"]


@pytest.mark.parametrize(("outcome", "why"), [
    (Outcome(blocked={"report": "distill@rte-pkd"}), "it is blocked by distill@rte-pkd"),
    (Outcome(failed={"report": "report failed: x"}), "its stage failed")])
def test_a_report_of_an_earlier_run_is_named_so(tmp_path, monkeypatch, outcome, why):
    given = {}
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda **about: given.update(about))
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda **about: given.update({about["key"]: about}))
    folder = layout.Layout(tmp_path).report
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# Old")
    (folder / "results.json").write_text(json.dumps(
        {"datasets": {"rte": {"systems": {"kd": {"metrics": {"acc": {"mean": 0.5, "sd": None}}}}}}}))
    publish(tmp_path, "tiny", outcome, [], None)
    assert f"**No new report:** {why}. What follows is of an earlier run.\n\n# Old" in given["markdown"]
    assert given["tiny-numbers"]["description"].startswith("Numbers of tiny, of an earlier run:")


def test_the_message_names_the_first_failure_first():
    outcome = Outcome({"a": {"outcome": "ran", "seconds": 1}}, {"b": "b failed: x", "f": "f failed: y"}, {"c": "b"})
    assert outcome.message == "b failed: x; b blocks c; also failed: f; 1 stages finished"
    many = Outcome({}, {"b": "b failed: x"}, {str(n): "b" for n in range(40)})
    assert many.message == "b failed: x; b blocks 0, 1, 2, 3, 4, 5, 6, 7 and 32 more; 0 stages finished"
    assert Outcome({"a": {"outcome": "restored"}}).message == \
        "1 stages brought up to date, 0 of them by running their command"


def test_keys_are_as_prefect_wants_them():
    assert artifact_key("glue-all.smoke") == "glue-all-smoke"
    assert artifact_key("Ä") == "study"


def test_a_tracker_that_is_gone_costs_the_links_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(layout, "ROOT", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert runs.mlflow_links("tiny", "some-run") == []
    assert "MLflow at http://127.0.0.1:9 does not answer" in caplog.text
