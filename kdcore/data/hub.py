"""Data from the hub, or from a local folder in the hub's layout: one code path, `datasets.load_dataset`.

A local folder is converted into a cache that lives only as long as the call: the library's own cache would serve
the old rows after a file of the folder was replaced. Nothing is ever written next to the raw data.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

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
    bars = datasets.are_progress_bars_disabled()
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
    cause = " ".join(" ".join([*getattr(innermost, "__notes__", []), str(innermost)]).split())
    cause = cause or type(innermost).__name__
    what = f"{source}{f' ({config})' if config else ''}"
    if is_local:
        missing = _missing_files(Path(place), config)
        cause = f"no file matches {', '.join(missing)}" if missing else cause
        return (f"cannot read {what} from {place}: {cause}; expected the hub's layout: Parquet, CSV or JSONL files and "
                f"a README.md whose `configs:` name them (another configuration: FOLDER#config in {VARIABLE})")
    help_text = f"; {help_text}" if help_text else ""
    return (f"cannot load {what} from the hub: {cause}{help_text}; check the network, or say where a copy in the hub's "
            f"layout lies: {VARIABLE}={source}=FOLDER")


def _missing_files(folder: Path, config: str | None) -> list[str]:
    """Patterns of the configuration in README.md that match nothing; the library does not name them."""
    from huggingface_hub import DatasetCard

    readme = folder / "README.md"
    if not readme.is_file():
        return []
    entries = [entry for entry in DatasetCard.load(readme).data.get("configs") or []
               if config is None or entry.get("config_name") == config]
    patterns = [split["path"] for entry in entries for split in entry.get("data_files", [])
                if isinstance(split, dict) and isinstance(split.get("path"), str)]
    return [pattern for pattern in patterns if not any(folder.glob(pattern))]
