"""Where the files of a model lie, which of them count, and what tells them from others."""

import hashlib
import re
import shutil
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from kdcore import sources
from kdcore.errors import UserError

_FINGERPRINT = re.compile("[0-9a-f]{16}")
TOKENIZER_FILES = ["config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "*.model"]
MODEL_FILES = [*TOKENIZER_FILES, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]


def local_folder(source: str, revision: str | None, files: list[str]) -> Path:
    """Where the files of a source lie; hub files are fetched into the hub's cache first, with its progress bars.

    The revision of a local folder is its `weights_fingerprint`, which is checked. Where a folder stands in for a hub id
    the revision may be one of the hub, which says nothing of the folder.
    """
    location = sources.locate(source)
    if location.is_local:
        folder = Path(location.place)
        if revision is not None and (_FINGERPRINT.fullmatch(revision) or not sources.HUB_ID.fullmatch(source)):
            _check_fingerprint(folder, source, revision)
        return folder
    try:
        return Path(snapshot_download(location.place, revision=revision, allow_patterns=files))
    except HFValidationError:
        raise UserError(f"{source} is neither a folder nor a model id of the form owner/name") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UserError(f"{source} cannot be fetched from the hub ({first_line(error)}); check the name and the "
                        "network, or name a local folder") from None


def _check_fingerprint(folder: Path, source: str, revision: str) -> None:
    found = weights_fingerprint(folder)
    if found != revision:
        raise UserError(f"{source} holds the weights {found}, but its revision says {revision}; set "
                        f"`revision: {found}` if these weights are meant, else bring the folder back to what it was")


def copy_model(source: str, revision: str | None, target: Path) -> None:
    """Copy configuration, weights and tokenizer of a source into a new folder; nothing else that lies there."""
    folder = local_folder(source, revision, MODEL_FILES)
    check_weights(folder, source)
    target.mkdir(parents=True)
    for path in sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)}):
        shutil.copyfile(path, target / path.name)


def source_fingerprint(source: str, revision: str | None = None) -> str:
    """`weights_fingerprint` of a source, which is fetched first where it is no local folder."""
    return weights_fingerprint(local_folder(source, revision, MODEL_FILES))


def weights_fingerprint(folder: Path) -> str:
    """Sixteen hex digits of the configuration and weights of a local model folder.

    Raises:
        UserError: the folder holds no config.json or no safetensors.
    """
    check_weights(folder, str(folder))
    digest = hashlib.sha256()
    for path in (config_file(folder, str(folder)), *sorted(folder.glob("*.safetensors"))):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def config_file(folder: Path, source: str) -> Path:
    """The configuration in a model folder; raises UserError where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{source} holds no config.json; expected a transformers model folder")
    return path


def check_weights(folder: Path, source: str) -> None:
    """Refuse a model folder without safetensors."""
    if (folder / "model.safetensors").is_file() or (folder / "model.safetensors.index.json").is_file():
        return
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled:
        raise UserError(f"{source} has its weights in {pickled[0]} only; unpickling runs code, so only safetensors are "
                        "read: save the model again with save_pretrained")
    raise UserError(f"{source} holds no model.safetensors; expected a transformers model folder with weights")


def first_line(error: BaseException) -> str:
    """What an error of a library says, without the rest."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
