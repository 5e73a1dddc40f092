"""What a stranger reads on the registry page: what the model is, how good, how to use it, where it came from."""

from typing import Any

from kdcore.candidate import Candidate

EXAMPLE = ("A charming film.", "The film is charming.")


def of_model(candidate: Candidate, name: str) -> str:
    """Markdown for a registered model: what all of its versions have in common."""
    info = candidate.info
    columns = "`text` and `text_pair`" if info.is_pair else "`text`"
    if info.labels is None:
        low, high = info.score_range or (None, None)
        answer = "`score`" + (f", trained on scores from {low:g} to {high:g}" if low is not None else "")
    else:
        answer = ("`label`, the most probable class, and one `probability:NAME` for each of "
                  + ", ".join(f"`{label}`" for label in info.labels))
    return f"""**A small text model for `{info.name}`, distilled from a larger one** by the study `{candidate.study}`.

**In:** {columns}, up to {info.max_length} tokens together; longer texts are cut.
**Out:** {answer}.

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

The folder `artifacts/seed-N` of a version is a plain transformers model: it loads with
`AutoModelForSequenceClassification.from_pretrained` and needs neither MLflow nor kdflow.

`champion` is the released version. `challenger` is the newest one; it takes over when it passes the gates: better on
the selection split beyond noise, not worse out of domain, latency measured, same labels.
"""


def of_version(candidate: Candidate) -> str:
    """Markdown for one version: scores beside the teacher's, cost, lineage and how to make it again.

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
    again = [f"git checkout {code.commit}"] if code.commit else []
    again += [f"cd studies/{candidate.study}"] if candidate.study != "demo" else []
    again += ["dvc pull --run-cache   # where a remote is set up", f"dvc repro {candidate.stage}"]
    dirty = "\n\nThe code had changes that were not committed, so the revision alone does not tell all of it." \
        if code.dirty else ""
    return "\n".join([
        f"{candidate.method}, seed {candidate.seed}: {summary}", "",
        *_table(("split", "role", "metric", "this model", "its teacher"),
                [(split, _role(candidate, split), metric, f"{value:.4f}", _teacher(candidate, split, metric))
                 for split, metric, value in scores]), "",
        f"The checkpoint was chosen on `{info.select}` ({info.splits[info.select].rows:,} rows). "
        "These are the numbers of this one model; the study's report has means over seeds.", "",
        f"**Cost:** {_count(candidate.parameters)} parameters; {_latency(candidate)}.", "",
        *([f"**Its method:** {candidate.variant.told()}.", ""] if candidate.variant else []),
        *([f"**Its teacher:** {candidate.taught_by}.", ""] if candidate.taught_by else []),
        *([f"**It started as** {general}.", ""] if (general := _general(candidate.origin)) else []),
        *([f"**What it learned was weighed by** {_selector(candidate.selector)}.", ""] if candidate.selector else []),
        "**Where it came from**", "",
        *_table(("what", "revision or DVC hash"), [(what, f"`{value}`") for what, value in origin]), "",
        "**Make it again**", "", "```", *again, "```" + dirty, ""])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table; MLflow draws cells and tables without any space, so they bring their own."""
    lines = [head, *rows]
    text = ["|" + "|".join(f" {cell}\N{NO-BREAK SPACE}\N{NO-BREAK SPACE} " for cell in line) + "|" for line in lines]
    return [text[0], "|" + ":---|" * len(head), *text[1:], "", "\N{NO-BREAK SPACE}"]


def _record(is_pair: bool) -> str:
    return f'{{"text": "{EXAMPLE[0]}"' + (f', "text_pair": "{EXAMPLE[1]}"' if is_pair else "") + "}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1_000_000 else f"{number:,}"


def _role(candidate: Candidate, split: str) -> str:
    about = candidate.info.splits[split]
    words = {"select": "selects and reports", "report": "reports", "ood": "out of domain"}
    if about.role == "select" and candidate.info.with_role("report"):
        return "selects" + (f"; {about.note}" if about.note else "")
    return words.get(about.role, about.role) + (f"; {about.note}" if about.note else "")


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
