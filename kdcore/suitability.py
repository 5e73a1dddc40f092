"""Whether a method can learn from a dataset's teacher, told before anything is trained."""

from dataclasses import replace

from kdcore import config, methods
from kdcore.data.prepared import Prepared
from kdcore.models.initialise import FROM_TEACHER, choose_layers
from kdcore.models.loading import dims, load_config
from kdcore.objective import Dims, Setting
from kdcore.teacher_folder import needs_of, refuse_beyond_logits, stand_in


def check(study: config.Study, prepared: Prepared, method: str) -> None:
    """Refuse a method that reads more than logits where the teacher has nothing else.

    Builds the method's objectives for the student that the settings will make and looks at what they read.

    Raises:
        UserError: it does, or its hyper-parameters do not fit the student.
    """
    info = prepared.info
    if not study.only_logits(info.name):
        return
    student = _student_dims(study.pair)
    training = study.student_training(info.name)
    setting = Setting(stand_in(student), student, info.classes, info.regression, prepared.labels(info.train),
                      training.batch_size, study.study.seeds[0])
    phases = methods.load(method).phases(methods.configure(method, study.method(method)), setting)
    members = 0 if study.datasets[info.name].data.teacher_files else len(study.pair.teacher.models)
    refuse_beyond_logits(method, needs_of(phases), info.name, members)


def _student_dims(pair: config.Pair) -> Dims:
    """The student's sizes, by configuration alone."""
    source = pair.teacher.models[0] if pair.student.source == FROM_TEACHER else pair.student
    sizes = dims(load_config(source.source, source.revision))
    return replace(sizes, layers=len(choose_layers(sizes.layers, pair.student, source.source)))
