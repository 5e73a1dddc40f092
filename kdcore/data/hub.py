"""Data from the hub, or from a local folder in the hub's layout: one code path, `datasets.load_dataset`.

A local folder is converted into a cache that lives only as long as the call: the library's own cache would serve
the old rows after a file of the folder was replaced. Nothing is ever written next to the raw data.
"""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kdcore.data.raw import Raw
from kdcore.errors import UserError
from kdcore.sources import VARIABLE, locate


def read(source: str, config: str | None, revision: str | None, help_text: str = "") -> Mapping[str, Raw]:
    """Read every split of one configuration.

    Returns:
        Split name -> its rows, in memory.

    Raises:
        UserError: the source is not there or offline, has no such configuration, or a file of it is damaged.
    """
    import datasets
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    location = locate(source, revision)
    config = location.config or config
    bars, verbosity = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    # What goes wrong is said once, below.
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="kdflow-datasets-") as cache:
            if location.is_local:
                datasets.disable_progress_bars()
                loaded = datasets.load_dataset(location.place, config, cache_dir=cache, keep_in_memory=True)
            else:
                loaded = datasets.load_dataset(location.place, config, revision=revision)
            return {split: _raw(f"{source} {config or ''} {split}".replace("  ", " "), rows)
                    for split, rows in loaded.items()}
    except (OSError, ValueError, RuntimeError, HTTPError, HfHubHTTPError, datasets.exceptions.DatasetsError) as error:
        raise UserError(_reason(source, config, location.place, location.is_local, error, help_text)) from error
    finally:
        datasets.logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()


def _raw(where: str, rows: "datasets.Dataset") -> Raw:  # type: ignore[name-defined]
    import datasets

    names = {column: tuple(feature.names) for column, feature in rows.features.items()
             if isinstance(feature, datasets.ClassLabel)}
    # A copy: the library maps files that vanish with its cache.
    return Raw(where, pa.table(rows.with_format("arrow")[:]), names)


def _reason(source: str, config: str | None, place: str, is_local: bool, error: Exception, help_text: str) -> str:
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    cause = " ".join(str(innermost).split()) or type(innermost).__name__
    what = f"{source}{f' ({config})' if config else ''}"
    if is_local:
        cause = _culprit(Path(place), config) or cause
        return (f"cannot read {what} from {place}: {cause}; expected the hub's layout: Parquet, CSV or JSONL files and "
                f"a README.md whose `configs:` name them (another configuration: FOLDER#config in {VARIABLE})")
    help_text = f"; {help_text}" if help_text else ""
    return (f"cannot load {what} from the hub: {cause}{help_text}; check the network, or say where a copy in the hub's "
            f"layout lies: {VARIABLE}={source}=FOLDER")


def _culprit(folder: Path, config: str | None) -> str | None:
    """The file of a configuration in README.md that is missing or no Parquet; the library's errors do not name it."""
    from huggingface_hub import DatasetCard

    readme = folder / "README.md"
    if not readme.is_file():
        return None
    entries = [entry for entry in DatasetCard.load(readme).data.get("configs") or []
               if config is None or entry.get("config_name") == config]
    for split in (split for entry in entries for split in entry.get("data_files", []) if isinstance(split, dict)):
        paths = sorted(folder.glob(str(split.get("path"))))
        if not paths:
            return f"no file matches {split.get('path')}"
        for path in paths:
            try:
                if path.suffix == ".parquet":
                    pq.read_schema(path)
            except (pa.ArrowInvalid, OSError) as error:
                return f"{path.relative_to(folder)} is damaged ({error})"
    return None
