"""The declarations of the built-in datasets, among themselves and against the real files."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from kdcore.data.prepared import PreparedInfo, SplitInfo
from kdcore.data.specs import SPECS, Spec, partners
from kdcore.errors import UserError
from kdcore.evaluation import metrics
from kdcore.evaluation.ood import collapse


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_declarations_hold_together(spec: Spec) -> None:
    roles = [split.role for split in spec.splits]
    assert roles.count("train") == roles.count("select") == 1
    assert roles[0] == "train"
    assert all(callable(getattr(metrics, name)) for name in spec.metrics)
    assert (spec.labels is None) == (spec.score_range is not None)
    names = [*(split.name for split in spec.splits), *(partner.name for partner in spec.ood)]
    assert len(set(names)) == len(names)
    for partner in spec.ood:
        assert (partner.labels is None) == (spec.labels is None)
        if spec.labels is not None:
            # Every class has a counterpart, and every class of the partner can be predicted.
            info = SplitInfo(partner.name, "ood", 1, "", partner.labels, partner.label_map)
            assert len(collapse(spec.labels, info)) == len(spec.labels)


def test_metrics_select_as_glue_does() -> None:
    assert {name: spec.metrics for name, spec in SPECS.items()} == {
        "cola": ("matthews",), "sst2": ("accuracy",), "mrpc": ("f1", "accuracy"), "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"), "mnli": ("accuracy",), "qnli": ("accuracy",), "rte": ("accuracy",),
        "wnli": ("accuracy",), "movies": ("accuracy",), "movies_rating": ("pearson", "spearman")}


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if not spec.ratings])
def test_class_orders_and_columns_are_those_of_the_real_sets(shared: Any, name: str) -> None:
    import json

    spec = SPECS[name]
    schema = pq.read_schema(next((shared / "data" / "glue" / name).glob("train-*.parquet")))
    assert {spec.text, spec.label, "idx"} <= set(schema.names)
    assert spec.text_pair is None or spec.text_pair in schema.names
    if spec.labels is not None:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        assert tuple(features[spec.label]["names"]) == spec.labels


def test_partners_by_default_and_by_name() -> None:
    assert [partner.name for partner in partners(SPECS["qqp"], None)] == ["paws_wiki"]
    assert [partner.name for partner in partners(SPECS["qqp"], ("paws_qqp",))] == ["paws_qqp"]
    assert partners(SPECS["movies"], ()) == ()
    with pytest.raises(UserError, match="'imdb' twice"):
        partners(SPECS["sst2"], ("imdb", "imdb"))


def test_what_is_written_is_read_again() -> None:
    splits = {"train": SplitInfo("train", "train", 3, "x", ("a", "b"), note="é"),
              "far": SplitInfo("far", "ood", 2, "y", ("A",), {"a": "A", "b": "A"}, max_length=8),
              "dev": SplitInfo("dev", "select", 1, "x", ("a", "b"))}
    info = PreparedInfo("mine", ("a", "b"), None, ("accuracy",), False, 16, splits, {"teacher": "f", "student": "f"},
                        ("careful",))
    again = PreparedInfo.from_json(info.to_json())
    assert again == info
    assert list(again.splits) == ["train", "far", "dev"]
    assert (again.train, again.select, again.with_role("ood", "select")) == ("train", "dev", ("far", "dev"))
    with pytest.raises(ValueError, match="unknown roles"):
        PreparedInfo.from_json(info.to_json().replace('"ood"', '"out"'))
