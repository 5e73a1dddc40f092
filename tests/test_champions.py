"""Who was champion when, and who comes back."""

import json

import pytest

from kdcore import catalogue, promotion, registry, tracking_store
from kdcore.champions import Reign, history, predecessor
from kdcore.errors import UserError
from tests import trained_study as toy
from tests.mlflow_store import Store

pytest_plugins = ("tests.mlflow_store",)
NAME = "kdflow-tiny-toy"


def reigns(*words: str) -> tuple[Reign, ...]:
    """`3` promoted, `<1` rolled back to."""
    return tuple(Reign(word.lstrip("<"), "now", "rolled back" if word.startswith("<") else "promoted")
                 for word in words)


@pytest.mark.parametrize(("words", "known", "wanted"), [
    ("1", "1", None),
    ("1 2", "1 2", "1"),
    ("1 2 3", "1 2 3", "2"),
    ("1 2 3 <2", "1 2 3", "1"),
    ("1 2 3 <2 <1", "1 2 3", None),
    ("1 2 <1 3", "1 2 3", "1"),
    ("1 2 1", "1 2", "2"),
    ("1 2 1 <2", "1 2", "1"),
    ("1 2 3", "1 3", "1"),
    ("", "1", None),
])
def test_the_champion_before_comes_back(words: str, known: str, wanted: str | None) -> None:
    """A version that was rolled back does not come back, nor does one that was deleted."""
    changes = words.split()
    champion = changes[-1].lstrip("<") if changes else "1"
    assert predecessor(reigns(*changes), champion, known.split()) == wanted


def champion() -> str:
    return str(tracking_store.connect().get_model_version_by_alias(NAME, "champion").version)


def test_a_promotion_is_taken_back_and_nothing_is_lost(store: Store) -> None:
    toy.write_study(store.layout)
    registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    with pytest.raises(UserError, match="had no champion before version 1 that still exists"):
        promotion.rollback(NAME)
    toy.write_study(store.layout, models={1: 21, 2: 22}, quality={"validation": 0.9, "elsewhere": 0.7})
    registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1)
    promotion.promote(NAME)
    assert promotion.rollback(NAME) == ("2", "1")
    assert champion() == "1"
    assert registry.register(toy.settings(), store.layout, "toy", "rail_kd_l", 1).aliases == (), "it does not challenge"
    client = tracking_store.connect()
    kept = history(client, NAME)
    assert [(reign.version, reign.how) for reign in kept] == [("1", "first"), ("2", "promoted"), ("1", "rolled back")]
    assert client.get_model_version(NAME, "2").tags["kdflow.rolled_back"] == kept[-1].since
    assert json.loads(client.get_registered_model(NAME).tags["kdflow.champion.0001"])["version"] == "1"
    with pytest.raises(UserError, match="had no champion before"):
        promotion.rollback(NAME)
    client.set_registered_model_alias(NAME, "champion", "2")  # by hand, in MLflow's page
    assert promotion.rollback(NAME) == ("2", "1")
    assert [(reign.version, reign.how) for reign in history(client, NAME)][3:] == [("2", "found"), ("1", "rolled back")]

    page = catalogue.page(catalogue.one(f"{NAME}/2"))
    for words in ("kdflow-tiny-toy version 2", "passed  better on validation: +10", "version 2 since", "(promoted)",
                  "| validation | selects and reports | accuracy | 0.9000 |", "**Trained on** 500 rows of `toy`",
                  "**Limits**", "dvc repro distill@toy-rail_kd_l", "Its method:** `rail_kd_l`"):
        assert words in page, words
    assert "\N{NO-BREAK SPACE}" not in page
    assert "never tried" in catalogue.page(catalogue.one(NAME))
    with pytest.raises(UserError, match="no registered model 'kdflow-tiny'; did you mean 'kdflow-tiny-toy'"):
        promotion.rollback("kdflow-tiny")
