"""Champion and challenger: which gate refuses what, and who is champion then."""

from dataclasses import replace

import pyarrow as pa
import pytest

from kdcore import catalogue, promotion, registry, tracking_store
from kdcore.errors import UserError
from tests import trained_study as toy
from tests.mlflow_store import Store

pytest_plugins = ("tests.mlflow_store",)
NAME = "kdflow-tiny-toy"


def champion() -> str:
    return str(tracking_store.connect().get_model_version_by_alias(NAME, "champion").version)


def test_a_challenger_that_passes_the_gates_becomes_champion(store: Store) -> None:
    toy.write_study(store.layout)
    registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    toy.write_study(store.layout, models={1: 21, 2: 22}, quality={"validation": 0.9, "elsewhere": 0.7})
    registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    version, gates = promotion.promote(NAME)
    assert version == "2"
    assert all(gate.passed for gate in gates), gates
    assert champion() == "2"
    assert {entry.version: entry.aliases for entry in catalogue.entries()} == {"2": ("champion",), "1": ()}
    assert "passed  better on validation: +10" in tracking_store.connect().get_model_version(NAME, "2").tags[
        "kdflow.gates"]
    with pytest.raises(UserError, match=r"version 2 of .* already is the champion"):
        promotion.promote(NAME, "2")
    with pytest.raises(UserError, match="has no challenger"):
        promotion.promote(NAME)
    with pytest.raises(UserError, match="has no version 9; known: 1, 2"):
        promotion.promote(NAME, "9")
    with pytest.raises(UserError, match="no registered model 'kdflow-tiny'; did you mean 'kdflow-tiny-toy'"):
        promotion.promote("kdflow-tiny")
    _, gates = promotion.promote(NAME, "1")
    assert champion() == "2", "the old one is worse"
    assert not all(gate.passed for gate in gates)


def evidence(quality: dict[str, float] | None = None, latency: bool = True,
             labels: tuple[str, ...] | None = toy.LABELS) -> promotion.Evidence:
    about = toy.info(True, labels)
    tables = {split: toy.answers(about, split, share) for split, share in (quality or toy.GOOD).items()}
    return promotion.Evidence(about, tables, {"batch_1": {"p50_ms": 3.0}} if latency else None)


def renamed(predictions: pa.Table) -> pa.Table:
    """The predictions as if somebody had replaced a text and left its label as it was."""
    texts = predictions["text_hash"].to_pylist()
    return predictions.set_column(1, "text_hash", pa.array(["another text", *texts[1:]]))


def refused(challenger: promotion.Evidence, old: promotion.Evidence) -> dict[str, str]:
    return {gate.name: gate.reason for gate in promotion.gates(challenger, old) if not gate.passed}


@pytest.mark.parametrize(("gate", "quality", "latency"), [
    ("", {"validation": 0.9, "elsewhere": 0.7}, True),
    ("better on validation", {"validation": 0.805, "elsewhere": 0.9}, True),
    ("not worse on elsewhere", {"validation": 0.95, "elsewhere": 0.5}, True),
    ("latency", {"validation": 0.95, "elsewhere": 0.7}, False),
    ("not worse on elsewhere", {"validation": 0.95}, True),
])
def test_each_gate_refuses_alone(gate: str, quality: dict[str, float], latency: bool) -> None:
    assert list(refused(evidence(quality, latency), evidence())) == ([gate] if gate else [])


def test_a_difference_within_noise_out_of_domain_is_not_worse() -> None:
    assert refused(evidence({"validation": 0.95, "elsewhere": 0.69}), evidence()) == {}


def test_a_split_that_chose_nothing_decides_in_domain() -> None:
    def with_test(share: float) -> promotion.Evidence:
        own = evidence({"validation": 0.95 if share < 0.8 else 0.8, "elsewhere": 0.7})
        splits = own.info.splits | {"test": replace(own.info.splits["validation"], role="report")}
        return replace(own, info=replace(own.info, splits=splits),
                       predictions=own.predictions | {"test": toy.answers(own.info, "validation", share)})

    assert refused(with_test(0.95), with_test(0.8)) == {}
    assert list(refused(with_test(0.7), with_test(0.8))) == ["better on test"]
    assert refused(evidence({"validation": 0.95, "elsewhere": 0.7}), with_test(0.8)) == {
        "better on test": "the challenger has no predictions of test"}


def test_regressions_are_compared_by_their_metric() -> None:
    gates = promotion.gates(evidence({"validation": 0.95, "elsewhere": 0.7}, labels=None), evidence(labels=None))
    assert all(gate.passed for gate in gates), gates
    assert [gate.reason.rpartition(" ")[2] for gate in gates[2:]] == ["pearson", "pearson"]


def test_other_labels_or_other_rows_cannot_be_compared() -> None:
    own = evidence()
    turned = replace(own, info=toy.renamed(own.info, toy.LABELS[::-1]))
    assert refused(turned, own) == {
        "labels": "entailment, not_entailment instead of the champion's not_entailment, entailment"}
    fewer = replace(own, predictions={split: table.slice(10) for split, table in own.predictions.items()})
    assert "other rows (190 against 200)" in refused(fewer, own)["better on validation"]
    assert refused(replace(own, predictions={}), own)["better on validation"] == (
        "the challenger has no predictions of validation")
    swapped = replace(own, predictions=own.predictions | {"validation": renamed(own.predictions["validation"])})
    assert "other rows" in refused(swapped, own)["better on validation"], "the same labels under other texts"


def test_versions_without_hashes_of_their_texts_are_compared_by_labels() -> None:
    own, better = evidence(), evidence({"validation": 0.95, "elsewhere": 0.7})
    older = replace(own, predictions={split: table.drop_columns("text_hash")
                                      for split, table in own.predictions.items()})
    assert refused(better, older) == {}


def test_the_difference_told_is_that_on_all_examples() -> None:
    gate = next(gate for gate in promotion.gates(evidence({"validation": 0.9, "elsewhere": 0.7}), evidence())
                if gate.name == "better on validation")
    assert gate.reason.startswith("+10.00 points")
