"""The student that is to be exported: one of the study, or a registered one that came from it."""

from dataclasses import dataclass
from pathlib import Path

from kdcore import catalogue, config, model_card, registry
from kdcore.candidate import best, gather
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.lineage import hash_folder
from kdcore.tracking_store import study_name


@dataclass(frozen=True)
class Source:
    """A finished student, checked to be what it says.

    name      under which its export is kept
    folder    the student, a plain transformers model; absolute, as sources of models are
    prepared  the data that it was trained on
    lineage   what leads back to git, DVC and the registry
    card      its model card, Markdown
    """

    name: str
    folder: Path
    prepared: Prepared
    lineage: dict[str, str]
    card: str


def of_study(study: config.Study, layout: Layout, dataset: str, method: str | None, seed: int | None) -> Source:
    """The student of a method and seed; without a seed the method's best, without a method the dataset's best.

    Raises:
        UserError: what `kdcore.candidate.gather` refuses.
    """
    if method is None or seed is None:
        method, seed, reason = best(study, layout, dataset, (method,) if method else None)
        print(reason)
    found = gather(study, layout, dataset, method, seed)
    lineage = {"study": found.study, "dataset": dataset, "method": method, "seed": str(seed),
               "checkpoint": found.checkpoint, "revision": str(found.code)}
    return Source(f"{dataset}/{method}/seed-{seed}", found.folder.absolute(), Prepared.load(layout.prepared(dataset)),
                  lineage | {f"dvc.{kind}": value for kind, value in found.hashes.items()},
                  model_card.of_version(found))


def of_registry(reference: str, layout: Layout, place: Path) -> Source:
    """A registered version, fetched into `place`; the study must be the one that it came from.

    Raises:
        UserError: no such version, another study, other bytes than were registered, or the study's prepared data are
            not those that the version was trained on.
    """
    entry = catalogue.one(reference)
    here = study_name(layout.study)
    if entry.study != here:
        raise UserError(f"{entry.name} came from the study {entry.study!r}, not {here!r}, and is checked on its data; "
                        f"add `--study {'.' if entry.study == 'demo' else f'studies/{entry.study}'}`")
    prepared = Prepared.load(layout.prepared(entry.dataset))
    wanted = entry.hashes.get("prepared", "")
    if wanted and hash_folder(prepared.folder) != wanted:
        raise UserError(f"{prepared.folder} is not what {entry.name} version {entry.version} was trained on "
                        f"({wanted}); `kdflow show {entry.name}/{entry.version}` says how to get that back")
    folder = registry.download(entry.name, entry.version, place)
    if hash_folder(folder) != entry.checkpoint:
        raise UserError(f"the registry's files of {entry.name} version {entry.version} are not those that were "
                        f"registered ({entry.checkpoint}); delete the version in MLflow and register the student again")
    lineage = {"model": entry.name, "version": entry.version, "study": entry.study, "dataset": entry.dataset,
               "method": entry.method, "seed": entry.seed, "checkpoint": entry.checkpoint, "revision": entry.revision}
    return Source(f"{entry.name}/{entry.version}", folder, prepared,
                  lineage | {f"dvc.{kind}": value for kind, value in entry.hashes.items()}, entry.description)
