"""TinyBERT, its task-specific distillation: first the layers of the fine-tuned teacher, then its outputs.

Jiao et al., Findings of EMNLP 2020, "TinyBERT: Distilling BERT for Natural Language Understanding", section 3.1,
equations 6 to 10, section 3.2 and appendix: the phase `intermediate` minimises the distance of token states and
attention scores, see `kdcore/intermediate.py`; `prediction` then the cross-entropy with the teacher's softened outputs
at temperature t = 1. Labels are not used. The paper starts from a student of general distillation (`tinybert` of a
general study) and trains on augmented data.

Deviations from the paper: the KL divergence in place of the soft cross-entropy, which differs by the teacher's
entropy, a constant, and is multiplied by t^2. One map for embeddings and all layers, as in the released code, where the
formulas have two without bias: `projection: embeddings_apart`. Regression, which the paper does not treat, takes the
squared difference to the teacher's output. Pairs of layers of one's own are an extension.
Released code (huawei-noah/Pretrained-Language-Model) takes means over the padded batch, and the cross-entropy over
classes too; its teacher is in training mode, with dropout; regression ignores the teacher (`regression_target: gold`).
Both models need the same number of heads and the same tokenizer.
"""

from typing import Literal

from pydantic import Field

from kdcore.features import LOGITS, Features
from kdcore.intermediate import Intermediate, IntermediateConfig
from kdcore.losses import kd_loss, label_loss
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(IntermediateConfig):
    """Defaults are the paper's for middling datasets, meant for augmented data: both phases count its epochs.

    Epochs of `intermediate` by dataset: CoLA 50; MRPC, RTE and STS-B 20; SST-2 and QNLI 10; MNLI and QQP 5.
    """

    intermediate_epochs: float | None = Field(default=20.0, gt=0)
    """None is the study's, here and below."""
    intermediate_learning_rate: float | None = Field(default=5e-5, gt=0)
    """Constant after the warm-up."""
    prediction_epochs: float | None = Field(default=3.0, gt=0)
    prediction_learning_rate: float | None = Field(default=3e-5, gt=0)
    """The paper's grid is 1e-5, 2e-5, 3e-5."""
    temperature: float = Field(default=1.0, gt=0)
    regression_target: Literal["teacher", "gold"] = "teacher"
    """`gold` learns scores from the labels, as the released code does; only regression reads this."""


class Prediction(Objective):
    """KD loss; with `gold` the label loss of a regression in its place."""

    def __init__(self, config: Config, regression: bool) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = regression
        self.gold = regression and config.regression_target == "gold"
        self.needs = Needs(student=frozenset({LOGITS}), teacher=frozenset() if self.gold else frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        if self.gold:
            return Loss({"label": label_loss(student.logits, batch.labels, self.regression)}, {"label": 1.0})
        return Loss({"kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression)}, {"kd": 1.0})


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """`intermediate` and `prediction`; raises UserError when depths, widths or head counts do not fit together."""
    return (
        Phase("intermediate", Intermediate(config, setting), epochs=config.intermediate_epochs,
              learning_rate=config.intermediate_learning_rate, schedule="constant", keep="last"),
        Phase("prediction", Prediction(config, setting.regression), epochs=config.prediction_epochs,
              learning_rate=config.prediction_learning_rate),
    )
