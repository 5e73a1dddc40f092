"""Where a student's starting weights came from: which weights, and of a general student how it was distilled."""

import json
from typing import Any

from kdcore.errors import UserError
from kdcore.export import RECORD
from kdcore.models.files import MODEL_FILES, local_folder, weights_fingerprint


def of_source(source: str, revision: str | None) -> dict[str, Any]:
    """For the record of a student that starts from a source of its own.

    Returns:
        `weights`, their fingerprint; and `general` where they are a general student's, which tells so in the
        `training.json` beside them: names of its `study`, of the `student` and of its `method`, `assistants` between it
        and its teacher, and the fingerprints `teacher`, of the weights that taught it, and `corpus`.

    Raises:
        UserError: no such source, other weights than `revision` says, or the record is damaged.
    """
    folder = local_folder(source, revision, MODEL_FILES)
    told: dict[str, Any] = {"weights": weights_fingerprint(folder)}
    path = folder / RECORD
    if not path.is_file():
        return told
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if "corpus" not in record:  # of a student of some dataset
            return told
        own = {key: record[key] for key in ("study", "student", "assistants", "teacher")}
        return told | {"general": own | {"method": record["method"]["name"], "corpus": record["corpus"]["fingerprint"]}}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the record of a training ({error!r}); bring the folder back to what it was, or "
                        "remove the file: nobody then knows where these weights came from") from None
