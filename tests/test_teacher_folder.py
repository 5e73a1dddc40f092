"""Averages by hand, folders told apart, and methods that a teacher without layers cannot serve."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from kdcore import config, methods, strict
from kdcore.data.answers import Aligned, Source, write
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.losses import kd_loss
from kdcore.objective import Dims, Setting
from kdcore.suitability import check
from kdcore.teacher_folder import (
    Average,
    average,
    equal_or_given,
    fingerprint,
    gives_only_logits,
    models,
    needs_of,
    refuse_beyond_logits,
)
from tests.stages.small_study import small_study
from tests.tiny import save_tiny

LOGITS_OF_TWO = torch.tensor([[[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]], [[0.0, 4.0, 1.0], [-3.0, 1.0, 2.0]]]).double()
"""Two teachers, two examples, three classes."""


def test_mean_of_logits_by_hand() -> None:
    mean = Average("logits", (0.5, 0.5))(LOGITS_OF_TWO, regression=False)
    assert mean.tolist() == [[1.0, 2.0, 0.0], [-1.25, 0.75, 1.0]]


def test_weights_by_hand() -> None:
    assert equal_or_given((1.0, 3.0), 2) == (0.25, 0.75)
    assert equal_or_given((), 4) == (0.25,) * 4
    mean = Average("logits", (0.25, 0.75))(LOGITS_OF_TWO, regression=False)
    assert mean[0].tolist() == [0.5, 3.0, 0.5]


def test_mean_of_probabilities_by_hand() -> None:
    """The softmax of the result is the mean distribution, at temperature 1."""
    two = torch.tensor([[[math.log(0.9), math.log(0.1)]], [[math.log(0.2) + 7, math.log(0.8) + 7]]]).double()
    result = Average("probabilities", (0.5, 0.5))(two, regression=False)
    assert result.exp()[0].tolist() == pytest.approx([0.55, 0.45])
    weighted = Average("probabilities", (0.2, 0.8))(two, regression=False)
    assert weighted.softmax(dim=1)[0].tolist() == pytest.approx([0.34, 0.66])


def test_at_another_temperature_it_is_not_the_mean_of_softened_distributions() -> None:
    """As the documentation says; the difference is visible where teachers disagree."""
    result = Average("probabilities", (0.5, 0.5))(LOGITS_OF_TWO, regression=False)
    softened = (LOGITS_OF_TWO / 4).softmax(dim=-1).mean(dim=0)
    assert ((result / 4).softmax(dim=-1) - softened).abs().max() > 0.05
    torch.testing.assert_close(result.softmax(dim=-1), LOGITS_OF_TWO.softmax(dim=-1).mean(dim=0))


def test_certain_teachers_that_disagree_stay_finite() -> None:
    extreme = torch.tensor([[[300.0, -300.0]], [[-300.0, 300.0]]])
    result = Average("probabilities", (0.5, 0.5))(extreme, regression=False)
    torch.testing.assert_close(result, torch.full((1, 2), math.log(0.5)))


def test_scores_are_averaged_as_they_are() -> None:
    scores = torch.tensor([[[1.0], [4.0]], [[3.0], [0.0]]])
    for of in ("logits", "probabilities"):
        assert Average(of, (0.25, 0.75))(scores, regression=True).tolist() == [[2.5], [1.0]]


def test_a_student_of_the_mean_learns_from_it_as_vanilla_kd_says() -> None:
    """KL to the mean distribution at T = 1, whatever the shift of the stored logits."""
    student = torch.tensor([[0.3, -0.2, 0.1], [1.0, 0.0, 0.0]]).double()
    mean = LOGITS_OF_TWO.softmax(dim=-1).mean(dim=0)
    expected = (mean * (mean.log() - student.log_softmax(dim=-1))).sum(dim=-1)
    stored = Average("probabilities", (0.5, 0.5))(LOGITS_OF_TWO, regression=False)
    torch.testing.assert_close(kd_loss(student, stored, 1.0, False), expected)


def two_members(folder: Path, weights: tuple[float, ...] = (0.5, 0.5), seeds: tuple[int, int] = (1, 2)) -> Path:
    """An average of two tiny models."""
    for place, seed in enumerate(seeds, start=1):
        save_tiny(folder / f"member-{place}", seed=seed)
    Average("logits", weights).save(folder)
    return folder


def answered(folder: Path, value: float = 1.0) -> Path:
    """A teacher that is only files."""
    folder.mkdir(parents=True)
    logits = torch.tensor([[value, 0.0]]).numpy()
    write(folder / "answers", {"train": Aligned(Source("data/t.csv", "0" * 64, "logits"), logits)}, ("no", "yes"))
    return folder


def test_folders_are_told_apart(tmp_path: Path) -> None:
    one, two, files = save_tiny(tmp_path / "one"), two_members(tmp_path / "two"), answered(tmp_path / "files")
    assert models(one) == (one,)
    assert models(two) == (two / "member-1", two / "member-2")
    assert models(files) == ()
    assert [gives_only_logits(folder) for folder in (one, two, files)] == [False, True, True]
    assert average(two) == Average("logits", (0.5, 0.5))
    assert average(one) is average(files) is None


def test_the_fingerprint_follows_members_weights_and_answers(tmp_path: Path) -> None:
    """Lesson A50: whatever decides the outputs."""
    found = [fingerprint(folder) for folder in (
        two_members(tmp_path / "a"), two_members(tmp_path / "b", weights=(0.25, 0.75)),
        two_members(tmp_path / "c", seeds=(1, 3)), two_members(tmp_path / "d", seeds=(2, 1)),
        answered(tmp_path / "e"), answered(tmp_path / "f", 2.0), save_tiny(tmp_path / "g"))]
    assert len(set(found)) == len(found)
    assert {len(value) for value in found} == {16}
    shutil.copytree(tmp_path / "a", tmp_path / "elsewhere" / "a")
    assert fingerprint(tmp_path / "elsewhere" / "a") == found[0]


@pytest.mark.parametrize("content", ["", "[]", '{"of": "logits"}'])
def test_a_damaged_average_names_the_command(tmp_path: Path, content: str) -> None:
    (two_members(tmp_path / "toy") / "average.json").write_text(content)
    with pytest.raises(UserError, match=r"average.json is damaged .* run `kdflow teacher toy` again"):
        models(tmp_path / "toy")


@pytest.mark.parametrize(("members", "who"), [(2, "the average of 2 models"), (0, "only files")])
def test_what_is_beyond_logits_is_refused_by_name(members: int, who: str) -> None:
    refuse_beyond_logits("vanilla_kd", frozenset({LOGITS}), "mrpc", members)
    refuse_beyond_logits("finetune", frozenset(), "mrpc", members)
    with pytest.raises(UserError) as caught:
        refuse_beyond_logits("my_kd", frozenset({LOGITS, FeatureKey("mean", 3)}), "mrpc", members)
    for part in ("method my_kd reads `mean`", f"the teacher of mrpc is {who}", "vanilla_kd"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[config.Study, Prepared]:
    """A study of one teacher with six layers, prepared."""
    study, layout = small_study(tmp_path_factory.mktemp("study"), layers=6)
    return study, Prepared.load(layout.prepared("toy"))


@pytest.mark.parametrize("method", methods.names())
@pytest.mark.parametrize("kind", ["average", "files"])
def test_every_method_is_looked_at_before_anything_is_trained(kind: str, method: str,
                                                              ready: tuple[config.Study, Prepared]) -> None:
    one, prepared = ready
    check(one, prepared, method)
    setting = Setting(Dims(6, 32, 4, 100), Dims(3, 32, 4, 100), 2, False, prepared.labels("train"), 16, seed=1)
    needs = needs_of(methods.load(method).phases(methods.configure(method, {}), setting))
    if needs <= {LOGITS}:
        check(_with(one, kind), prepared, method)
        return
    with pytest.raises(UserError, match=f"^method {method} reads `") as caught:
        check(_with(one, kind), prepared, method)
    assert ("the average of 2 models" if kind == "average" else "is only files") in str(caught.value)


def _with(study: config.Study, kind: str) -> config.Study:
    """The study with two teachers, or with files."""
    content = json.loads(study.model_dump_json())
    source = content["pair"]["teacher"]["source"]
    content["pair"]["student"] |= {"source": source, "layers": "even", "depth": 3}
    if kind == "average":
        content["pair"]["teacher"] |= {"seeds": [1, 2]}
    else:
        content["pair"]["teacher"] |= {"source": "files"}
        content["datasets"]["toy"]["data"] |= {"teacher_files": {"train": "data/t.csv"}}
    return strict.parse(config.Study, content, "params.yaml")


def test_a_list_of_layers_does_not_hide_the_reason(ready: tuple[config.Study, Prepared]) -> None:
    """Layers 8 and 12 of a teacher that has none: the files are the mistake to tell."""
    one, prepared = ready
    study = _with(one, "files").model_copy(update={"methods": {"pkd": {"mapping": [[1, 8], [2, 12]]}}})
    with pytest.raises(UserError, match=r"method pkd reads `cls`.*is only files"):
        check(study, prepared, "pkd")
