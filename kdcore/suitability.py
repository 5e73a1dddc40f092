"""Whether methods can learn from a dataset's teacher, told by configurations alone, before anything is trained."""

from dataclasses import replace
from pathlib import Path

from transformers import PretrainedConfig

from kdcore import config, methods
from kdcore.data.prepared import Prepared
from kdcore.method_config import SelectorSource
from kdcore.models import reading
from kdcore.models.initialise import FROM_TEACHER, student_config
from kdcore.models.loading import dims, load_config
from kdcore.objective import ReadySelector, Setting
from kdcore.pair_config import Pair
from kdcore.selector_folder import OF_THIS_STUDY, find
from kdcore.teacher import refuse_unaligned_tokens
from kdcore.teacher_folder import WithoutLayers, needs_of, refuse_beyond_logits


def check(study: config.Study, prepared: Prepared, *names: str) -> None:
    """Refuse the first of these methods that the pair of models, or the selector that the study trains or names, cannot
    serve on this dataset.

    Builds the methods' objectives for the sizes that teacher and student will have, and looks at what they read.

    Raises:
        UserError: hyper-parameters do not fit the models or the selector, or a method reads what one of the models does
            not have, or compares tokens that do not correspond.
    """
    info = prepared.info
    members = () if study.datasets[info.name].data.teacher_files else study.pair.teacher.models
    student = _student(study.pair)
    teacher = load_config(members[0].source, members[0].revision) if len(members) == 1 else None
    labels = prepared.labels(info.train)
    trained = (study.selectors[info.name].method,) if info.name in study.selectors else ()
    for name in dict.fromkeys((*trained, *names)):
        sizes = dims(teacher) if teacher else WithoutLayers(dims(student), name, info.name, len(members))
        entry = study.method(name, info.name)
        wanted = methods.of_entry(entry)
        with methods.naming(name, entry.file):
            setting = Setting(sizes, dims(student), info.classes, info.regression, labels,
                              study.student_training(info.name, name).batch_size, study.study.seeds[0])
            if name in trained:
                methods.trains_selectors(entry, f"selectors.{info.name}.method")
            if wanted.ready_selector is not None:
                setting = replace(setting, selector=_promised(wanted.ready_selector, study, info.name, setting))
            phases = methods.load(entry.file).phases(wanted, setting)
            needs = needs_of(phases)
            if teacher is None:
                refuse_beyond_logits(name, needs, info.name, len(members))
            else:
                refuse_unaligned_tokens(prepared, needs)
                reading.check(teacher, needs, info.max_length)
            for phase in phases:
                reading.check(student, phase.objective.needs.student, info.max_length)


def _promised(source: SelectorSource, study: config.Study, dataset: str, setting: Setting) -> ReadySelector:
    """The selector that a method wants; in place of the study's own, which is trained later, what it begins as."""
    if source.source != OF_THIS_STUDY:
        return find(source, Path(), dataset).selector
    entry = study.method(study.selector(dataset).method, dataset)
    learning = methods.trains_selectors(entry, f"selectors.{dataset}.method").learning(methods.of_entry(entry), setting)
    return ReadySelector(f"the selector of {dataset}, by methods.{entry.name},", learning.made_for,
                         learning.best.state_dict())


def _student(pair: Pair) -> PretrainedConfig:
    """The configuration that the student will have; its source's weights are not read."""
    source = pair.teacher.models[0] if pair.student.source == FROM_TEACHER else pair.student
    return student_config(pair.student, load_config(source.source, source.revision), source.source)
