"""Stage `features`: run the teacher once over the training split and store what methods read of it."""

import json
import shutil

from kdcore import config, scratch
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.store_building import build, describe
from kdcore.teacher import Teacher, manifest
from kdcore.training.precision import device, resolve

CODE = ("models", "features.py", "store.py", "store_building.py", "teacher.py", "training/precision.py")
"""What decides the numbers."""


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Write the store of a dataset, saying its size first; an interrupted run goes on where it stopped.

    Raises:
        UserError: nothing prepared or no teacher yet, the disk is too small, or features overflow the stored type.
        BusyError: another process writes the same store.
    """
    settings = study.features
    prepared = Prepared.load(layout.prepared(dataset))
    model = layout.teacher(dataset)
    if not model.is_dir():
        raise UserError(f"no teacher in {model}; run `kdflow teacher {dataset}` first")
    where = device()
    precision = resolve(settings.precision, where)
    teacher = Teacher(model, prepared.info.labels, where, precision)
    plan = manifest(prepared, model, settings, precision.name)
    print(f"teacher features of {dataset}: {describe(plan)}", flush=True)
    keys = frozenset(plan.keys)
    folder = layout.scratch / f"features-{dataset}"
    with scratch.claim(folder):
        place = folder / scratch.key("store", {
            "manifest": plan.to_json(), "batch_size": settings.batch_size, "code": scratch.hash_code(*CODE),
            "libraries": scratch.library_versions()})
        took = build(layout.features(dataset), place, plan, prepared.tokens(prepared.info.train, "teacher"),
                     lambda inputs: teacher.compute(inputs, keys), settings.batch_size, where, f"features {dataset}")
        shutil.rmtree(folder)  # with what other settings left unfinished
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / f"features@{dataset}.json").write_text(
        json.dumps(took | {"device": where.type, "precision": precision.name}, indent=2, sort_keys=True) + "\n",
        encoding="utf-8")
