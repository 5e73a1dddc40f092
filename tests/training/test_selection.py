"""Which weights a training returns (lessons A63, B3; no initial "best = 0")."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kdcore.data.batching import Examples
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import LOGITS
from kdcore.objective import Examine, Loss, Needs, Phase, Progress, TeacherOf
from kdcore.training.development import Development, held_back_rows
from kdcore.training.precision import Precision
from kdcore.training.record import Record
from tests.training.doubles import Stop, Watched, stop_at, watched
from tests.training.problem import lines, run, same_weights, tiny_student, tiny_teacher


class Marks:
    """Gives out scores in order and keeps the weights that each was given for."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = iter(scores)
        self.weights: list[dict[str, torch.Tensor]] = []

    def evaluate(self, student: PreTrainedModel) -> tuple[dict[str, Any], float]:
        self.weights.append({name: value.clone() for name, value in student.state_dict().items()})
        score = next(self.scores)
        return {"matthews": score}, score

    def chosen(self, student: PreTrainedModel) -> int:
        """Which of the marked weights these are."""
        state = student.state_dict()
        return next(n for n, kept in enumerate(self.weights) if all(torch.equal(kept[k], state[k]) for k in kept))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Marks]:
    """Replace what evaluations say."""
    def use(*scores: float) -> Marks:
        marks = Marks(scores)
        monkeypatch.setattr(Development, "evaluate", lambda self, student: marks.evaluate(student))
        return marks
    return use


@pytest.mark.parametrize(("scores", "best"), [
    ((0.5, 0.7, 0.6), 1), ((-0.5, -0.2, -0.3), 1), ((0.0, 0.0, 0.0), 0), ((-0.1, -0.2, -0.3), 0), ((0.1, 0.2, 0.3), 2)])
def test_best_is_the_first_highest(prepared: Prepared, folder: Path, mark: Any, scores: tuple[float, ...],
                                   best: int) -> None:
    marks = mark(*scores)
    result = run(prepared, folder, phases=watched(), epochs=3)
    assert marks.chosen(result.student) == best
    assert result.record["selected"] == {"phase": "toy", "epoch": best + 1.0, "step": 6 * (best + 1),
                                         "score": scores[best], "metrics": {"matthews": scores[best]}}


def test_keep_last(prepared: Prepared, folder: Path, mark: Any) -> None:
    marks = mark(0.9, 0.5, 0.1)
    result = run(prepared, folder, phases=watched(), epochs=3, keep="last", patience=1)
    assert marks.chosen(result.student) == 2
    assert result.record["selected"]["score"] == 0.1
    assert result.record["selected"]["epoch"] == 3.0


def test_patience(prepared: Prepared, folder: Path, mark: Any) -> None:
    marks = mark(0.5, 0.4, 0.6, 0.5, 0.5, 0.9)
    result = run(prepared, folder, phases=watched(), epochs=6, patience=2)
    assert len(marks.weights) == 5
    assert marks.chosen(result.student) == 2
    assert result.record["selected"]["epoch"] == 3.0


def test_part_of_an_epoch_is_evaluated(prepared: Prepared, folder: Path) -> None:
    record = run(prepared, folder, phases=watched(), epochs=0.5).record
    assert [(entry["epoch"], entry["step"]) for entry in record["history"]] == [(0.5, 3)]
    assert record["selected"]["epoch"] == 0.5


def test_phases_run_in_order(prepared: Prepared, folder: Path, mark: Any) -> None:
    """Each with its own settings; the best of the last one is returned, scores of earlier ones do not count."""
    marks = mark(0.9, 0.2, 0.3, 0.1)
    first, second = Watched(), Watched()
    phases = (Phase("unlabelled", Watched(), epochs=1, keep="last"), Phase("one", first, epochs=1),
              Phase("two", second, epochs=3, learning_rate=1e-4, schedule="constant"))
    result = run(prepared, folder, phases=phases)
    assert [entry["phase"] for entry in result.record["history"]] == ["unlabelled", "one", "two", "two", "two"]
    assert "development" not in result.record["history"][0]  # nothing is selected there, so nothing is evaluated
    assert marks.chosen(result.student) == 2
    assert result.record["selected"]["phase"] == "two"
    assert [(p["epochs"], p["learning_rate"], p["schedule"], p["keep"]) for p in result.record["phases"]] == [
        (1, 1e-3, "linear", "last"), (1, 1e-3, "linear", "best"), (3, 1e-4, "constant", "best")]
    assert first.begun == second.begun == 1
    assert second.seen[0].step == 0
    assert second.seen[0].total_steps == 18


def test_a_fresh_student_for_a_phase(prepared: Prepared, folder: Path) -> None:
    """The phase starts from the initial weights; what the objective learned stays."""
    class Looks(Watched):
        def before_steps(self, examine: Any) -> None:
            self.first = examine()

    objective = Looks()
    phases = (Phase("learn", objective, epochs=1), Phase("use", objective, epochs=1 / 6, fresh_student=True))
    bridge = objective.bridge.weight.clone()
    result = run(prepared, folder, phases=phases)
    lone = Looks()
    run(prepared, folder / "lone", phases=(Phase("lone", lone, epochs=1 / 6),))
    assert objective.first == lone.first
    assert not torch.equal(bridge, objective.bridge.weight)
    assert same_weights(result.student, tiny_student(prepared))  # the one step of the warm-up has rate 0


def test_after_step_is_told_of_each_step(prepared: Prepared, folder: Path) -> None:
    objective = Watched()
    run(prepared, folder, phases=(Phase("toy", objective),), accumulation=4, epochs=2)
    assert [p.step for p in objective.stepped] == list(range(12))
    assert [p.epoch for p in objective.stepped] == 6 * [0] + 6 * [1]
    assert [p.step for p in objective.seen] == [step for step in range(12) for _ in range(4)]
    assert {p.total_steps for p in objective.seen} == {12}
    assert objective.epochs == [Progress(0, 0, 12), Progress(1, 6, 12)]


def test_before_epoch_can_ask_the_teacher_for_any_examples(prepared: Prepared, folder: Path) -> None:
    """In the order asked for."""
    got: list[torch.Tensor] = []
    ids = torch.tensor([40, 3, 7])

    class Curious(Watched):
        def __init__(self) -> None:
            super().__init__()
            self.needs = Needs(self.needs.student, frozenset({LOGITS}))

        def before_epoch(self, progress: Progress, teacher: TeacherOf) -> None:
            got.append(teacher(ids, frozenset({LOGITS})).logits)

    run(prepared, folder, phases=(Phase("toy", Curious()),), epochs=1)
    batch = Examples(prepared, "train", teacher_inputs=True).__getitems__(ids.tolist())
    torch.testing.assert_close(got, [tiny_teacher(prepared).features(batch, frozenset({LOGITS})).logits])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_batches_that_belong_together_are_not_cut(prepared: Prepared, folder: Path, accumulation: int) -> None:
    class Coupled(Watched):
        couples_examples = True

    def train() -> None:
        run(prepared, folder, phases=(Phase("toy", Coupled()),), epochs=1, accumulation=accumulation)

    if accumulation == 1:
        train()
        return
    with pytest.raises(UserError, match=r"toy: this method compares .* cut into 2 pieces; set accumulation: 1"):
        train()


def test_dev_loss_is_that_of_the_selection_split(prepared: Prepared, folder: Path) -> None:
    objective = Watched()
    run(prepared, folder, phases=(Phase("toy", objective),), epochs=1)
    student = tiny_student(prepared)
    tokens = prepared.tokens("validation", "student")
    with torch.no_grad():
        logits = student(**tokens.pad(torch.arange(len(tokens)))).logits
    by_hand = torch.nn.functional.cross_entropy(logits, prepared.labels("validation")).item()
    assert [standing.loss for standing in objective.standings] == [pytest.approx(by_hand, rel=1e-5)]


def test_rows_that_are_held_back_are_always_the_same(prepared: Prepared) -> None:
    development = Development(prepared, Precision("fp32", "cpu"), 8)
    student = tiny_student(prepared)
    part = held_back_rows(prepared, 10)
    assert torch.equal(part, held_back_rows(prepared, 10))
    assert len(set(part.tolist())) == 10 < part.max()
    with torch.no_grad():
        logits = student.eval()(**prepared.tokens("train", "student").pad(part)).logits
    labels = prepared.labels("train")[part]
    standing = development.examine(student, 10)
    assert standing.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert standing.score == pytest.approx((logits.argmax(dim=1) == labels).float().mean().item())
    assert development.examine(student) != standing
    assert development.examine(student).score == development.evaluate(student)[1]


def test_a_quarter_of_the_labelled_rows_at_most_is_held_back(prepared: Prepared) -> None:
    assert len(held_back_rows(prepared, 1000)) == 22  # of 90
    splits = prepared.info.splits | {"train": replace(prepared.info.splits["train"], unlabelled=50)}
    part = held_back_rows(Prepared(prepared.folder, replace(prepared.info, splits=splits)), 1000)
    assert len(part) == 10 < part.max() < 40


class Rounds(Watched):
    """Says after each phase how often it was through with one; wants no more than two."""

    def __init__(self, interfere: Callable[[int, torch.Tensor], torch.Tensor] = lambda now, part: part) -> None:
        super().__init__(interfere)
        self.register_buffer("rounds", torch.tensor(0))

    @property
    def done(self) -> bool:
        return int(self.rounds) >= 2

    def after_steps(self, examine: Examine) -> dict[str, float]:
        self.rounds += 1
        return {"rounds": float(self.rounds), "dev": examine().loss}


def rounds(interfere: Callable[[int, torch.Tensor], torch.Tensor] = lambda now, part: part) -> tuple[Phase, ...]:
    """Four phases of one objective, and one of another."""
    torch.manual_seed(7)
    several, last = Rounds(), Watched(interfere)
    return (*(Phase(f"round-{number}", several, epochs=1, keep="last", fresh_student=True) for number in range(4)),
            Phase("last", last, epochs=1, fresh_student=True))


def test_an_objective_leaves_its_further_phases_out(prepared: Prepared, folder: Path) -> None:
    result = run(prepared, folder, phases=rounds())
    assert [phase["name"] for phase in result.record["phases"]] == ["round-0", "round-1", "last"]
    assert [(entry["phase"], entry["diagnostics"].get("rounds")) for entry in result.record["history"]] == [
        ("round-0", 1), ("round-1", 2), ("last", None)]
    assert [line["epoch/rounds"] for line in lines(folder) if "epoch/rounds" in line] == [1, 2]
    assert [line["step"] for line in lines(folder)][-1] == 18


@pytest.mark.usefixtures("saves_always")
def test_they_stay_left_out_after_a_resume(prepared: Prepared, tmp_path: Path) -> None:
    straight = run(prepared, tmp_path / "a", phases=rounds())
    for step in (0, 3):  # with the checkpoint of the last round's end, and with one of the last phase
        with pytest.raises(Stop):
            run(prepared, tmp_path / "b", phases=rounds(stop_at(step)))
    resumed = run(prepared, tmp_path / "b", phases=rounds())
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record


def test_a_step_that_teaches_nothing_is_not_taken(prepared: Prepared, folder: Path) -> None:
    """Neither momentum nor decay moves a weight; step, schedule and objective go on."""
    weights: list[torch.Tensor] = []

    class Silent(Watched):
        def forward(self, *seen: Any) -> Loss:
            loss = super().forward(*seen)
            return Loss(loss.parts, dict.fromkeys(loss.parts, float(seen[-1].step != 3)))

        def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
            weights.append(self.bridge.weight.detach().clone())
            return super().after_step(progress, examine)

    objective = Silent()
    result = run(prepared, folder, phases=(Phase("toy", objective),), epochs=1, weight_decay=0.1, schedule="constant",
                 warmup_share=0.0)
    assert [progress.step for progress in objective.stepped] == list(range(6))
    assert [torch.equal(one, other) for one, other in pairwise(weights)] == [False, False, True, False, False]
    assert result.record["skipped_steps"] == 0


def test_same_seed_same_bytes(prepared: Prepared, tmp_path: Path) -> None:
    one, two = (run(prepared, tmp_path / name, "rail_kd_c", epochs=1) for name in "ab")
    assert same_weights(one.student, two.student)
    assert one.record == two.record


def test_record_survives_json() -> None:
    record = Record(history=[{"loss": 0.1 + 0.2}], skipped=2)
    record.open["loss"] = (1 / 3, 7)
    record.consider("p", 1.0, 6, -0.25, {"matthews": -0.25})
    assert Record.from_json(record.to_json()) == record
