"""Where a student's first weights came from: any folder's fingerprint, and what a general student tells of itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kdcore.errors import UserError
from kdcore.models.files import weights_fingerprint
from kdcore.origin import of_source
from tests.tiny import save_tiny

RECORD = {"study": "general-tiny", "student": "small", "assistants": ["middle"], "seed": 0, "history": [],
          "method": {"name": "minilm", "value_relation": True}, "teacher": "0123456789abcdef",
          "corpus": {"rows": 10, "tokens": 99, "fingerprint": "fedcba9876543210"}}
"""As `kdflow pretrain` writes it, in short."""
GENERAL = {"study": "general-tiny", "student": "small", "assistants": ["middle"], "method": "minilm",
           "teacher": "0123456789abcdef", "corpus": "fedcba9876543210"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model")


def with_record(folder: Path, record: Any) -> Path:
    (folder / "training.json").write_text(record if isinstance(record, str) else json.dumps(record))
    return folder


def test_a_general_student_tells_how_it_was_distilled(folder: Path) -> None:
    own = weights_fingerprint(folder)
    assert of_source(str(with_record(folder, RECORD)), own) == {"weights": own, "general": GENERAL}
    assert of_source(str(folder), None) == of_source(str(folder), own)


def test_equal_wherever_the_folder_lies(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(with_record(folder, RECORD), tmp_path / "elsewhere")
    assert of_source(str(tmp_path / "elsewhere"), None) == of_source(str(folder), None)


def test_other_weights_have_a_fingerprint_alone(folder: Path) -> None:
    assert of_source(str(folder), None) == {"weights": weights_fingerprint(folder)}
    with_record(folder, {"dataset": "movies", "method": {"name": "finetune"}, "teacher": "0" * 16})
    assert of_source(str(folder), None) == {"weights": weights_fingerprint(folder)}


def test_other_weights_than_the_revision_says(folder: Path) -> None:
    with pytest.raises(UserError, match="but its revision says 0000000000000000; set `revision: "):
        of_source(str(folder), "0" * 16)


@pytest.mark.parametrize("record", ["{", "7", json.dumps({"corpus": {}}),
                                    json.dumps({**RECORD, "method": "minilm"})])
def test_a_damaged_record_is_named(folder: Path, record: str) -> None:
    with pytest.raises(UserError, match=r"training\.json is not the record of a training") as caught:
        of_source(str(with_record(folder, record)), None)
    assert "\n" not in str(caught.value)
