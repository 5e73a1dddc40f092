"""Stage `teacher` of a general study: the teacher's files as an out, so that DVC knows which bytes taught.

A hub id may mean other weights tomorrow. Nothing is trained, and the files stay as they are.
"""

import os
import shutil

from kdcore import general_config, scratch
from kdcore.layout import Layout
from kdcore.models.files import copy_model, weights_fingerprint
from kdcore.models.loading import dims, load_encoder, load_tokenizer


def run(study: general_config.GeneralStudy, layout: Layout) -> None:
    """Copy configuration, weights and tokenizer of the teacher.

    Raises:
        UserError: the source does not exist, or is no encoder that is known here.
        BusyError: another process is at it.
    """
    source, revision = study.teacher.source, study.teacher.revision
    folder = layout.scratch / "teacher"
    with scratch.claim(folder):
        shutil.rmtree(folder / "copy", ignore_errors=True)
        copy_model(source, revision, folder / "copy")
        copied = str((folder / "copy").absolute())
        config = load_encoder(copied).config  # all of it is there and fits
        load_tokenizer(copied)
        target = layout.general_teacher
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(folder / "copy", target)
        shutil.rmtree(folder)
    size = dims(config)
    print(f"teacher: {source}, {config.model_type}, {size.layers} layers of width {size.width}, {size.heads} heads; "
          f"weights {weights_fingerprint(target)}")
