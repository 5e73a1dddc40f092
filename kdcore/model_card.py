"""What a stranger reads on the registry page: what the model is, how good, how to use it, where it came from."""

import statistics
from typing import Any

from kdcore.candidate import Candidate
from kdcore.data.prepared import PreparedInfo

EXAMPLE = ("A charming film.", "The film is charming.")


def of_model(candidate: Candidate, name: str) -> str:
    """Markdown for a registered model: what all of its versions have in common."""
    info = candidate.info
    return f"""**A small text model for `{info.name}`, distilled from a larger one** by the study `{candidate.study}`.

{_interface(info)}

**Serve it** (in the kdflow checkout; elsewhere with `MLFLOW_TRACKING_URI` set)

```
mlflow models serve -m models:/{name}@champion --env-manager local --port 5001
curl -s http://127.0.0.1:5001/invocations -H 'Content-Type: application/json' -d '
  {{"dataframe_records": [{_record(info.is_pair)}]}}'
```

**Load it in Python**

```python
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model("models:/{name}@champion")
texts = [{_record(info.is_pair)}]
model.predict(pd.DataFrame(texts))
```

The folder `artifacts/seed-N` of a version is a plain transformers model: it loads with \
`AutoModelForSequenceClassification.from_pretrained` and needs neither MLflow nor kdflow.

`champion` is the released version. `challenger` is the newest one; it takes over when it passes the gates: better \
in domain beyond noise, not worse out of domain, latency measured, same labels. \
`kdflow promote {name}` tries that, `kdflow rollback {name}` takes it back; \
tags `kdflow.champion.N` say who was champion when.
"""


def of_version(candidate: Candidate) -> str:
    """Markdown for one version: scores beside the teacher's, data, cost, limits, lineage and how to make it again.

    MLflow's list of versions shows the first line as it is, hence without markup.
    """
    info, code = candidate.info, candidate.code
    scores = [(split, metric, value) for split in info.splits
              for metric, value in candidate.scores.get(split, {}).items()]
    summary = ", ".join(f"{split} {metric} {value:.3f}" for split, metric, value in scores)
    origin = [("code", str(code) if code.commit else "not under git"), ("checkpoint", candidate.checkpoint),
              *candidate.hashes.items()]
    if candidate.origin:
        origin.append(("first weights", candidate.origin["weights"]))
    if "general" in candidate.origin:
        origin += [(f"general {what}", candidate.origin["general"][what]) for what in ("teacher", "corpus")]
    if candidate.selector:
        origin.append(("selector", candidate.selector["fingerprint"]))
    again = rebuild(code.commit, candidate.study, candidate.stage, candidate.hashes["student"])
    dirty = "\n\nThe code had changes that were not committed, so the revision alone does not tell all of it." \
        if code.dirty else ""
    return "\n".join([
        f"{candidate.method}, seed {candidate.seed}: {summary}", "",
        _interface(info), "",
        *_table(("split", "role", "metric", "this model", "95 % interval", "mean over seeds", "its teacher"),
                [(split, _role(candidate, split), metric, f"{value:.4f}", _interval(candidate, split, metric),
                  _over_seeds(candidate, split, metric), _teacher(candidate, split, metric))
                 for split, metric, value in scores]), "",
        f"{_chosen(candidate)} Intervals tell what other "
        "examples would have given (bootstrap), seeds what other draws of weights and batches did.", "",
        f"**Trained on** {_data(info)}.", "",
        f"**Cost:** {_count(candidate.parameters)} parameters; {_latency(candidate)}.", "",
        f"**Its method:** {candidate.variant.told() if candidate.variant else f'`{candidate.method}`'}.", "",
        f"{_taught(candidate)}.", "",
        *([f"**It started as** {general}.", ""] if (general := _general(candidate.origin)) else []),
        *([f"**What it learned was weighed by** {_selector(candidate.selector)}.", ""] if candidate.selector else []),
        "**Limits**", "", *(f"- {limit}" for limit in _limits(candidate)), "",
        "**Where it came from**", "",
        *_table(("what", "revision or DVC hash"), [(what, f"`{value}`") for what, value in origin]), "",
        "**Make it again**", "", "```", *again, "```" + dirty, ""])


def plain(card: str) -> str:
    """A card as it is read elsewhere than in MLflow, whose tables need spaces of their own."""
    return card.replace("\N{NO-BREAK SPACE}", "").replace("\n\n\n", "\n\n")


def rebuild(commit: str, study: str, stage: str, student: str) -> list[str]:
    """Commands that bring a student back, from the DVC cache or a remote where these have it, else by training.

    `student` is the DVC hash of all seeds of its method. The folder of a profile is not in git: the flow makes it.
    """
    checkout, same = [f"git checkout {commit}"] if commit else [], "   # found: these are the same bytes"
    name, _, profile = study.partition(".")
    if profile:
        dataset, _, method = stage.partition("@")[2].rpartition("-")
        return [*checkout, f"python -m flows.distill --study {'.' if name == 'demo' else f'studies/{name}'} "
                f"--profile {profile} --datasets {dataset} --methods {method}",
                f"grep {student} studies/{study}/dvc.lock{same}"]
    return [*checkout, *([f"cd studies/{study}"] if study != "demo" else []),
            "dvc pull --run-cache   # where a remote is set up; else leave it out",
            f"dvc repro {stage}", f"grep {student} dvc.lock{same}"]


def _taught(candidate: Candidate) -> str:
    if candidate.taught_by:
        return f"**Its teacher:** {candidate.taught_by}"
    return (f"**The study's teacher:** `{candidate.settings['pair']['teacher']['source']}`, fine-tuned on "
            f"`{candidate.dataset}`")


def _interface(info: PreparedInfo) -> str:
    """What goes in and what comes out."""
    columns = "`text` and `text_pair`" if info.is_pair else "`text`"
    if info.labels is None:
        low, high = info.score_range or (None, None)
        answer = "`score`" + (f", trained on scores from {low:g} to {high:g}" if low is not None else "")
    else:
        answer = ("`label`, the most probable class, and one `probability:NAME` for each of "
                  + ", ".join(f"`{label}`" for label in info.labels))
    return (f"**In:** {columns}, up to {info.max_length} tokens together; longer texts are cut.\n"
            f"**Out:** {answer}.")


def _data(info: PreparedInfo) -> str:
    train = info.splits[info.train]
    unlabelled = f", {train.unlabelled:,} of them without a label" if train.unlabelled else ""
    note = f" ({train.note})" if train.note else ""
    warned = "".join(f"; preparation warned: {warning}" for warning in info.warnings)
    return f"{train.rows:,} rows of `{info.name}`{unlabelled}, from {train.source}{note}{warned}"


def _limits(candidate: Candidate) -> list[str]:
    """What a user should not expect."""
    info = candidate.info
    partners = ", ".join(f"`{split}`" for split in info.with_role("ood") if split in candidate.scores)
    limits = [f"Texts are cut after {info.max_length} tokens.",
              f"Outside of `{info.name}` it was tried on {partners} alone." if partners else
              f"It was tried on `{info.name}` alone: how it does on other texts is not known."]
    if info.labels is not None:
        limits.append("Whatever the text, it gives one of its classes; its probabilities were not checked for "
                      "calibration.")
    limits.append("It learned from its data and its teacher, also what is wrong or unfair in them.")
    return limits


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table; MLflow draws cells and tables without any space, so they bring their own."""
    lines = [head, *rows]
    text = ["|" + "|".join(f" {cell}\N{NO-BREAK SPACE}\N{NO-BREAK SPACE} " for cell in line) + "|" for line in lines]
    return [text[0], "|" + ":---|" * len(head), *text[1:], "", "\N{NO-BREAK SPACE}"]


def _record(is_pair: bool) -> str:
    return f'{{"text": "{EXAMPLE[0]}"' + (f', "text_pair": "{EXAMPLE[1]}"' if is_pair else "") + "}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1_000_000 else f"{number:,}"


def _chosen(candidate: Candidate) -> str:
    select = f"`{candidate.info.select}` ({candidate.info.splits[candidate.info.select].rows:,} rows)"
    if candidate.settings["training"]["keep"] == "last":
        return f"The weights of the last step were kept; {select} may have chosen the method and the seed."
    return f"The checkpoint was chosen on {select}."


def _role(candidate: Candidate, split: str) -> str:
    about = candidate.info.splits[split]
    words = {"select": "selects and reports", "report": "reports", "ood": "out of domain"}
    if about.role == "select" and candidate.info.with_role("report"):
        return "selects" + (f"; {about.note}" if about.note else "")
    return words.get(about.role, about.role) + (f"; {about.note}" if about.note else "")


def _interval(candidate: Candidate, split: str, metric: str) -> str:
    bounds = candidate.intervals.get(split, {}).get(metric)
    return "" if bounds is None else f"{bounds[0]:.4f} to {bounds[1]:.4f}"


def _over_seeds(candidate: Candidate, split: str, metric: str) -> str:
    values = [scores[split][metric] for scores in candidate.all_seeds if metric in scores.get(split, {})]
    if len(values) < 2:
        return ""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f} (n = {len(values)})"


def _teacher(candidate: Candidate, split: str, metric: str) -> str:
    value = candidate.teacher_scores.get(split, {}).get(metric)
    return "" if value is None else f"{value:.4f}"


def _general(origin: dict[str, Any]) -> str:
    """What the first weights are where they are a general student's; else empty."""
    if "general" not in origin:
        return ""
    general = origin["general"]
    by = f" by way of {', '.join(general['assistants'])}" if general["assistants"] else ""
    return f"the general student `{general['student']}` of the study `{general['study']}`, by {general['method']}{by}"


def _selector(lineage: dict[str, Any]) -> str:
    """Who trained the selector that a student took."""
    return (f"the selector that `{lineage['method']}` trained on `{lineage['dataset']}` with seed {lineage['seed']} in "
            f"the study `{lineage['study']}`")


def _latency(candidate: Candidate) -> str:
    one = (candidate.latency or {}).get("batch_1")
    if not isinstance(one, dict):
        return "latency not measured"
    return f"{one['p50_ms']:.1f} ms for one text ({one['p95_ms']:.1f} ms at the 95th percentile)"
