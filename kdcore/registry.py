"""Students as registered models of MLflow: who they are, where they came from, how to use them.

A version is keyed by the hash of its checkpoint: registering the same bytes again changes nothing. The first version
of a model is its `champion`, later ones are `challenger` until the gates of `kdcore.promotion` let them pass.
"""

import importlib.metadata
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdcore import champions, config, model_card, tracking_store
from kdcore.candidate import Candidate, best, gather
from kdcore.champions import CHAMPION
from kdcore.data.prepared import INFO_FILE
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.tracking import flatten

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.tracking import MlflowClient

CHALLENGER = "challenger"
CHECKPOINT = "kdflow.checkpoint"
REQUIREMENTS = ("mlflow", "torch", "transformers", "safetensors")
DESCRIPTION = 5000
"""Characters that MLflow's databases keep of one."""
CUT = "\n\n... The whole card: `evaluation/model_card.md` among the artifacts of the run."
SERVED_CODE = Path(__file__).with_name("serving.py")


@dataclass(frozen=True)
class Registered:
    """A version of a registered model. `new` is false when these bytes had been registered before."""

    name: str
    version: str
    aliases: tuple[str, ...]
    new: bool

    @property
    def uri(self) -> str:
        """How MLflow finds it: by alias where it has one."""
        return f"models:/{self.name}@{self.aliases[0]}" if self.aliases else f"models:/{self.name}/{self.version}"


def model_name(study: str, dataset: str) -> str:
    """The registered name for a dataset of a study."""
    return f"kdflow-{study}-{dataset}"


def register(study: config.Study, layout: Layout, dataset: str, method: str, seed: int) -> Registered:
    """Register one student; the same bytes give the same version, with scores and description brought up to date.

    Raises:
        UserError: what `kdcore.candidate.gather` refuses.
    """
    candidate = gather(study, layout, dataset, method, seed)
    name = model_name(candidate.study, dataset)
    client = tracking_store.connect()
    with tracking_store.lock("registry"), _fluent():
        version = find(client, name, candidate.checkpoint)
        new = version is None
        if version is None:
            run, model = _log(client, candidate)
            _ensure_model(client, name, candidate)
            version = str(client.create_model_version(name, f"models:/{model}", run_id=run, model_id=model,
                                                      tags=_tags(candidate)).version)
        else:
            for key, value in _tags(candidate).items():
                client.set_model_version_tag(name, version, key, value)
        card = model_card.of_version(candidate)
        if len(card) > DESCRIPTION:
            card = f"{card[:DESCRIPTION - len(CUT)]}{CUT}"
        client.update_model_version(name, version, card)
        _alias(client, name, version)
        return Registered(name, version, aliases(client, name).get(version, ()), new)


def register_best(study: config.Study, layout: Layout, dataset: str) -> tuple[Registered, str]:
    """Register the best student of a dataset; also returns why it is the best."""
    method, seed, reason = best(study, layout, dataset)
    return register(study, layout, dataset, method, seed), reason


def download(name: str, version: str, folder: Path) -> Path:
    """Fetch a registered student into `folder`; returns its own folder, a plain transformers model.

    Raises:
        UserError: the version is there, but its files are not.
    """
    import mlflow

    with _fluent(), fetching(name, version):
        place = Path(mlflow.artifacts.download_artifacts(f"models:/{name}/{version}", dst_path=str(folder)))
        (student,) = (place / "artifacts").iterdir()
        return student


@contextmanager
def fetching(name: str, version: str) -> Iterator[None]:
    """Fetch files of a version meanwhile; raises UserError where the store does not have them."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"the files of {name} version {version} cannot be fetched ({why}); bring MLflow's artifacts "
                        "back, or delete the version in MLflow and register the student again") from None


def find(client: "MlflowClient", name: str, checkpoint: str) -> str | None:
    """The version of a model that holds this checkpoint."""
    found = client.search_model_versions(f"name = '{name}' and tags.`{CHECKPOINT}` = '{checkpoint}'")
    return min((str(version.version) for version in found), key=int, default=None)


def aliases(client: "MlflowClient", name: str) -> dict[str, tuple[str, ...]]:
    """Aliases by version. A search for versions gives none, so they are read from the model."""
    by_version: dict[str, tuple[str, ...]] = {}
    for alias, version in sorted(client.get_registered_model(name).aliases.items()):
        by_version[str(version)] = (*by_version.get(str(version), ()), alias)
    return by_version


def signature(candidate: Candidate) -> "ModelSignature":
    """Named columns in; class probabilities, or a score, out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    texts = ("text", "text_pair") if candidate.info.is_pair else ("text",)
    outputs: list[ColSpec | TensorSpec]
    if candidate.info.labels is None:
        outputs = [ColSpec(DataType.double, "score")]
    else:
        outputs = [ColSpec(DataType.string, "label"),
                   *(ColSpec(DataType.double, f"probability:{name}") for name in candidate.info.labels)]
    return ModelSignature(Schema([ColSpec(DataType.string, column) for column in texts]), Schema(outputs))


def requirements() -> list[str]:
    """What the served code needs, at the versions installed here, without local suffixes such as `+cpu`."""
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in REQUIREMENTS]


def _log(client: "MlflowClient", candidate: Candidate) -> tuple[str, str]:
    """Write model, scores and predictions into a run of its own; returns the ids of run and model."""
    import mlflow
    import pandas as pd
    from mlflow.entities import Metric

    from kdcore.models.loading import quiet

    experiment = tracking_store.experiment(client, candidate.study)
    tracking_store.close_orphans(client, experiment)
    title = f"register {candidate.dataset} {candidate.method} seed {candidate.seed}"
    command = f"kdflow register {candidate.dataset} {candidate.method} --seed {candidate.seed}"
    tags = _tags(candidate) | {"mlflow.source.name": command, "mlflow.source.type": "LOCAL",
                               "mlflow.source.git.commit": candidate.code.commit, tracking_store.KIND: "register",
                               tracking_store.HOST: socket.gethostname(),
                               tracking_store.PROCESS: tracking_store.own_process()}
    if parent := tracking_store.parent_of_this_process(client, experiment, candidate.study):
        tags[tracking_store.PARENT] = parent
    run = client.create_run(experiment, tags=tags, run_name=title).info.run_id
    columns = ("text", "text_pair") if candidate.info.is_pair else ("text",)
    example = pd.DataFrame({column: [text] for column, text in zip(columns, model_card.EXAMPLE, strict=False)})
    try:
        _log_facts(client, run, candidate)
        with mlflow.start_run(run_id=run, log_system_metrics=False), quiet():
            logged = mlflow.pyfunc.log_model(
                name="student", python_model=str(SERVED_CODE), artifacts={"student": str(candidate.folder.resolve())},
                model_config={"max_length": candidate.info.max_length, "pair": candidate.info.is_pair},
                signature=signature(candidate), input_example=example, pip_requirements=requirements(),
                tags=_tags(candidate), params=flatten(candidate.settings))
        now = int(time.time() * 1000)
        client.log_batch(run, metrics=[Metric(name, value, now, 0, model_id=logged.model_id)
                                       for name, value in _metrics(candidate).items()])
    except BaseException as error:
        client.set_terminated(run, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    return run, logged.model_id


def _log_facts(client: "MlflowClient", run: str, candidate: Candidate) -> None:
    """Settings, the dataset's digest, and what the gates will compare later challengers with."""
    from mlflow.entities import Param

    client.log_batch(run, params=[Param(*item) for item in flatten(candidate.settings).items()][:100])
    prepared = candidate.hashes.get("prepared")
    if prepared:
        source = {split.name: split.source for split in candidate.info.splits.values()}
        sizes = {split.name: split.rows for split in candidate.info.splits.values()}
        client.log_inputs(run, [tracking_store.dataset_input(candidate.dataset, prepared, json.dumps(source),
                                                             json.dumps(sizes))])
    for path in candidate.predictions.values():
        client.log_artifact(run, str(path), "evaluation/predictions")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, INFO_FILE).write_text(candidate.info.to_json(), encoding="utf-8")
        Path(folder, "latency.json").write_text(json.dumps(candidate.latency, indent=2), encoding="utf-8")
        Path(folder, "model_card.md").write_text(model_card.of_version(candidate), encoding="utf-8")
        for file in sorted(Path(folder).iterdir()):
            client.log_artifact(run, str(file), "evaluation")


def _metrics(candidate: Candidate) -> dict[str, float]:
    scores = {f"{split}.{name}": value for split, values in candidate.scores.items() for name, value in values.items()}
    latency = {f"latency.{batch}.{name}": float(value) for batch, values in (candidate.latency or {}).items()
               if isinstance(values, dict) for name, value in values.items() if name.startswith("p")}
    return scores | latency | {"parameters": float(candidate.parameters)}


def _tags(candidate: Candidate) -> dict[str, str]:
    """What leads back to git and DVC, and the scores with the names of their splits."""
    tags = {CHECKPOINT: candidate.checkpoint, "kdflow.study": candidate.study, "kdflow.dataset": candidate.dataset,
            "kdflow.method": candidate.method, "kdflow.method_file": candidate.method_file,
            "kdflow.seed": str(candidate.seed), "kdflow.stage": candidate.stage,
            "kdflow.parameters": str(candidate.parameters), "kdflow.selected_on": candidate.info.select}
    if candidate.taught_by:
        tags["kdflow.teacher"] = candidate.taught_by
    if candidate.origin:
        tags["kdflow.first_weights"] = candidate.origin["weights"]
    tags |= {f"kdflow.general.{name}": ", ".join(value) if isinstance(value, list) else value
             for name, value in candidate.origin.get("general", {}).items() if value}
    tags |= {"kdflow.selector" if name == "fingerprint" else f"kdflow.selector.{name}": str(value)
             for name, value in candidate.selector.items()}
    if candidate.code.commit:
        tags["kdflow.revision"] = str(candidate.code)
    tags |= {f"dvc.{kind}": value for kind, value in candidate.hashes.items()}
    return tags | {f"metric.{split}.{name}": f"{value:.6g}" for split, values in candidate.scores.items()
                   for name, value in values.items()}


def _ensure_model(client: "MlflowClient", name: str, candidate: Candidate) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, tags={"kdflow.study": candidate.study,
                                                   "kdflow.dataset": candidate.dataset})
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    client.update_registered_model(name, model_card.of_model(candidate, name))


def _alias(client: "MlflowClient", name: str, version: str) -> None:
    """The first version becomes champion, a later one challenger. Older ones never take an alias back, nor does one
    that was rolled back: its study registers it again whenever it runs."""
    taken = client.get_registered_model(name).aliases
    if CHAMPION not in taken:
        champions.crown(client, name, version, "first")
    elif (int(version) > max(int(taken[CHAMPION]), int(taken.get(CHALLENGER, 0)))
          and champions.ROLLED_BACK not in client.get_model_version(name, version).tags):
        client.set_registered_model_alias(name, CHALLENGER, version)


@contextmanager
def _fluent() -> Iterator[None]:
    """Point MLflow's process-wide settings to our store, and put back what was.

    `log_model` reads them, and so does the registry when it looks up a logged model. MLflow writes both into the
    environment too, and takes only the first one out again: a server started later would read the wrong registry.
    """
    import mlflow

    before = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    mlflow.set_tracking_uri(tracking_store.uri())
    mlflow.set_registry_uri(tracking_store.uri())
    try:
        yield
    finally:
        mlflow.set_registry_uri(None)  # type: ignore[arg-type]  # None undoes
        mlflow.set_tracking_uri(before["MLFLOW_TRACKING_URI"])  # type: ignore[arg-type]
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
