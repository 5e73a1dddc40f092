"""What a student of a general study will be and read, told by configurations alone, before anything is trained."""

from pathlib import Path

import torch
from transformers import PretrainedConfig

from kdcore import general
from kdcore.errors import UserError
from kdcore.features import FeatureKey
from kdcore.general_config import TEACHER, GeneralStudy, Shape
from kdcore.models import reading
from kdcore.models.general import student_config
from kdcore.models.loading import check_length, dims, load_config, load_masked_lm
from kdcore.objective import Phase, Setting


def phases_of(study: GeneralStudy, name: str, teacher: PretrainedConfig, rows: int,
              longest: int) -> tuple[PretrainedConfig, tuple[Phase, ...]]:
    """The configuration of a student and the phases of its method with new objectives.

    Args:
        teacher: the configuration of the teacher or assistant.
        rows, longest: of the corpus, how many it has and tokens of the longest.

    Raises:
        UserError: sizes, layers or hyper-parameters do not fit, or a model does not have what the method reads.
    """
    student, settings = study.student(name), study.student_training(name)
    config = student_config(student.model, teacher, f"students.{name}.model")
    wanted = general.configure(student.method, study.options(name))
    setting = Setting(dims(teacher), dims(config), classes=0, regression=False,
                      labels=torch.tensor(-1).expand(rows), batch_size=settings.batch_size, seed=settings.seed)
    with general.naming(student.method):
        phases = general.load(student.method).phases(wanted, setting)
        for phase in phases:
            reading.check(config, phase.objective.needs.student, longest)
            reading.check(teacher, phase.objective.needs.teacher, longest)
    return config, phases


def student_needs(phases: tuple[Phase, ...]) -> frozenset[FeatureKey]:
    """All features of the student that any phase reads."""
    return frozenset().union(*(phase.objective.needs.student for phase in phases))


def teacher_needs(phases: tuple[Phase, ...]) -> frozenset[FeatureKey]:
    """All features of the teacher that any phase reads."""
    return frozenset().union(*(phase.objective.needs.teacher for phase in phases))


def has_language_model(needs: frozenset[FeatureKey]) -> bool:
    """True when a model needs its masked-language-model head for these features."""
    return any(key.kind in ("mlm_logits", "masked_logits") for key in needs)


def missing_assistant(method: str, teacher: PretrainedConfig, student: PretrainedConfig) -> str | None:
    """What MiniLM's rule (section 3.3) recommends where it does: a student of at most half the teacher's layers and at
    most half its width learns better from an assistant with all the layers and the student's width."""
    above, below = dims(teacher), dims(student)
    if method != "minilm" or 2 * below.layers > above.layers or 2 * below.width > above.width:
        return None
    return (f"{below.layers} layers of width {below.width} are at most half of the teacher's {above.layers} x "
            f"{above.width} in both, where MiniLM puts an assistant between them; add a student with `model: {{width: "
            f"{below.width}}}` of that teacher and name it as this one's `teacher`")


def frozen_at_random(shape: Shape, phases: tuple[Phase, ...]) -> str | None:
    """What to do where a phase freezes embeddings that are not the teacher's."""
    freezes = any(phase.layer_rates is not None and phase.layer_rates[0] == 0 for phase in phases)
    if not freezes or shape.embeddings or shape.layers is not None:
        return None
    return ("its method freezes the embeddings while layers learn, but they are random; say `model: {embeddings: "
            "true}` to take the teacher's, or `freeze_embeddings: false`")


def check(study: GeneralStudy, teacher: Path) -> list[str]:
    """Refuse the first student that the teacher, or the assistant between them, cannot serve.

    Args:
        teacher: the folder of the study's teacher.

    Returns:
        Warnings of what is possible but not advisable.

    Raises:
        UserError: as `phases_of`, or rows are longer than the teacher takes, or a method reads a language-model head
            that nobody gave the teacher.
    """
    source = str(teacher.absolute())
    check_length(load_config(source), study.corpus.max_length, f"the teacher {study.teacher.source}",
                 "corpus.max_length")
    configs = {TEACHER: load_config(source)}
    heads: dict[str, bool] = {}
    warnings = []
    for name in dict.fromkeys(link for student in study.students for link in study.chain(student)):
        student = study.student(name)
        above = configs[student.teacher]
        configs[name], phases = phases_of(study, name, above, 1, study.corpus.max_length)
        heads[name] = has_language_model(student_needs(phases))
        if has_language_model(teacher_needs(phases)):
            if student.teacher == TEACHER:
                load_masked_lm(source)
            elif not heads[student.teacher]:
                raise UserError(f"students.{name}: {student.method} reads the masked-language-model head of its "
                                f"teacher {student.teacher}, whose method {study.student(student.teacher).method} "
                                f"trains none; let it have another teacher, or train that one by `mlm` or `mlm_kd`")
        for advice in (missing_assistant(student.method, above, configs[name]),
                       frozen_at_random(student.model, phases)):
            if advice:
                warnings.append(f"students.{name}: {advice}")
    return warnings
