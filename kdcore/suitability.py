"""Whether methods can learn from a dataset's teacher, told by configurations alone, before anything is trained."""

from transformers import PretrainedConfig

from kdcore import config, methods
from kdcore.data.prepared import Prepared
from kdcore.models import reading
from kdcore.models.initialise import FROM_TEACHER, student_config
from kdcore.models.loading import dims, load_config
from kdcore.objective import Setting
from kdcore.teacher import refuse_unaligned_tokens
from kdcore.teacher_folder import WithoutLayers, needs_of, refuse_beyond_logits


def check(study: config.Study, prepared: Prepared, *names: str) -> None:
    """Refuse the first of these methods that the pair of models cannot serve on this dataset.

    Builds the methods' objectives for the sizes that teacher and student will have, and looks at what they read.

    Raises:
        UserError: hyper-parameters do not fit the models, or a method reads what one of them does not have, or
            compares tokens that do not correspond.
    """
    info = prepared.info
    members = () if study.datasets[info.name].data.teacher_files else study.pair.teacher.models
    student = _student(study.pair)
    teacher = load_config(members[0].source, members[0].revision) if len(members) == 1 else None
    labels = prepared.labels(info.train)
    for name in names:
        sizes = dims(teacher) if teacher else WithoutLayers(dims(student), name, info.name, len(members))
        setting = Setting(sizes, dims(student), info.classes, info.regression, labels,
                          study.student_training(info.name).batch_size, study.study.seeds[0])
        entry = study.method(name)
        wanted = methods.of_entry(entry)
        with methods.naming(name, entry.file):
            phases = methods.load(entry.file).phases(wanted, setting)
            needs = needs_of(phases)
            if teacher is None:
                refuse_beyond_logits(name, needs, info.name, len(members))
            else:
                refuse_unaligned_tokens(prepared, needs)
                reading.check(teacher, needs, info.max_length)
            for phase in phases:
                reading.check(student, phase.objective.needs.student, info.max_length)


def _student(pair: config.Pair) -> PretrainedConfig:
    """The configuration that the student will have; its source's weights are not read."""
    source = pair.teacher.models[0] if pair.student.source == FROM_TEACHER else pair.student
    return student_config(pair.student, load_config(source.source, source.revision), source.source)
