"""Stage `features`: run the teacher once over the training split and store what methods read of it."""

import json

from kdcore import config
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.store_building import build, describe
from kdcore.teacher import Teacher, manifest
from kdcore.training.precision import device, resolve


def run(study: config.Study, layout: Layout, dataset: str) -> None:
    """Write the store of a dataset, saying its size first; an interrupted run goes on where it stopped.

    Raises:
        UserError: nothing prepared or no teacher yet, the disk is too small, or features overflow the stored type.
    """
    settings = study.features
    prepared = Prepared.load(layout.prepared(dataset))
    folder = layout.teacher(dataset)
    if not folder.is_dir():
        raise UserError(f"no teacher in {folder}; run `kdflow teacher {dataset}` first")
    where = device()
    precision = resolve(settings.precision, where)
    teacher = Teacher(folder, prepared.info.labels, where, precision)
    plan = manifest(prepared, folder, settings, precision.name)
    print(f"teacher features of {dataset}: {describe(plan)}", flush=True)
    keys = frozenset(plan.keys)
    took = build(layout.features(dataset), layout.scratch / f"features-{dataset}", plan,
                 prepared.tokens(prepared.info.train, "teacher"), lambda inputs: teacher.compute(inputs, keys),
                 settings.batch_size, where, f"features {dataset}")
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / f"features@{dataset}.json").write_text(
        json.dumps(took | {"device": where.type, "precision": precision.name}, indent=2, sort_keys=True) + "\n",
        encoding="utf-8")
