"""Averages by hand, folders told apart, and what a teacher without layers tells methods."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from kdcore.data.answers import Aligned, Source, write
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey
from kdcore.losses import kd_loss
from kdcore.objective import Dims
from kdcore.teacher_folder import (
    Average,
    WithoutLayers,
    average,
    equal_or_given,
    fingerprint,
    gives_only_logits,
    models,
    refuse_beyond_logits,
)
from tests.test_losses import VALUE, vectors
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


def test_golden_mean_of_three_teachers_and_what_a_student_learns_of_it(golden: Path) -> None:
    data = vectors(golden, "16_extras")
    mean = Average("logits", equal_or_given((), 3))(data["in.teacher_logits"], regression=False)
    torch.testing.assert_close(mean, data["out.avg_teacher_logits"], **VALUE)
    loss = kd_loss(data["in.student_logits"], mean, 2.0, False).mean()
    torch.testing.assert_close(loss, data["out.kd_avg_T2"], **VALUE)


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
    for part in ("methods.my_kd reads `mean` of the teacher, but", f"the teacher of mrpc is {who}"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_teacher_without_layers_has_no_number_of_them() -> None:
    """No number at all: whatever stood in its place would be a reason to refuse that is none."""
    sizes = WithoutLayers(Dims(3, 32, 4, 100), "my_kd", "mrpc", 2)
    assert (sizes.width, sizes.heads, sizes.vocabulary) == (32, 4, 100)
    with pytest.raises(UserError, match=r"^methods.my_kd reads layers of the teacher, but .* the average of 2 models"):
        _ = sizes.layers
