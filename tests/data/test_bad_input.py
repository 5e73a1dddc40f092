"""Wrong data and declarations: exit code 2 and one line that names the thing, its place and the remedy."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command import kdflow
from tests.data.studies import DATA, TRAIN, VALIDATION, make


@dataclass(frozen=True)
class Case:
    """A study that must be refused; `says` are fragments of the message."""

    name: str
    says: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    pair: dict[str, Any] = field(default_factory=dict)
    dataset: str = "mine"
    whole_data: dict[str, Any] | None = None


def train(content: str | bytes) -> dict[str, str | bytes]:
    """A bad training file."""
    return {"data/train.csv": content}


def parquet(columns: dict[str, Any]) -> bytes:
    """A Parquet file in memory."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def jsonl(content: str | bytes) -> dict[str, Any]:
    """Training data in JSON lines."""
    return {
        "files": {"data/train.jsonl": content},
        "data": {"files": {"train": "data/train.jsonl", "validation": "data/validation.csv"}},
    }


def latin(*texts: bytes) -> pa.Array:
    """What claims to be text, as a careless writer leaves it."""
    return pa.array(texts, pa.binary()).view(pa.string())


def columnar(columns: dict[str, Any]) -> dict[str, Any]:
    """Training data in Parquet."""
    return {
        "files": {"data/train.parquet": parquet(columns)},
        "data": {"files": {"train": "data/train.parquet", "validation": "data/validation.csv"}},
    }


def scores(lines: str, **data: Any) -> dict[str, Any]:
    """Training data with scores."""
    return {
        "files": {"data/train.csv": "text,label\n" + lines, "data/validation.csv": "text,label\na,1\nb,2\n"},
        "data": {"labels": None} | data,
    }


def ood(content: str, **declared: Any) -> dict[str, Any]:
    """A set of the user's own from another domain."""
    return {"files": {"data/other.csv": content}, "data": {"ood": {"other": {"file": "data/other.csv"} | declared}}}


CASES = [
    # Columns and rows
    Case("missing text column", ("data/train.csv", "'text'", "did you mean 'texts'"), train("texts,label\na,pos\n")),
    Case(
        "missing label column",
        ("data/train.csv", "no column 'label'", "known: gold, text", "Name the column"),
        train("text,gold\na,pos\n"),
    ),
    Case("missing pair column", ("data/train.csv", "no column 'other'"), data={"text_pair": "other"}),
    Case("no rows", ("data/train.csv has no rows",), train("text,label\n")),
    Case("empty file", ("data/train.csv is empty", "header"), train("")),
    Case(
        "two columns of one name", ("data/train.csv", "two columns named 'text'"), train("text,text,label\na,b,pos\n")
    ),
    Case("all labels alike", ("all 2 training rows", "label 'pos'"), train("text,label\na,pos\nb,pos\n")),
    # Labels
    Case(
        "unknown label",
        ("data/train.csv, line 3", "'posi'", "did you mean 'pos'"),
        train("text,label\na,pos\nb,posi\n"),
    ),
    Case(
        "label in another case",
        ("data/train.csv, line 2", "'Pos'", "did you mean 'pos'"),
        train("text,label\na,Pos\nb,neg\n"),
    ),
    Case("id beyond the names", ("data/train.csv, line 4", "'2'"), train("text,label\na,0\nb,1\nc,2\n")),
    Case("names and ids mixed", ("data/train.csv, line 3", "'1'"), train("text,label\na,pos\nb,1\n")),
    Case(
        "hidden label in train",
        ("data/train.csv, line 3", "hidden", "remove the row"),
        train("text,label\na,0\nb,-1\n"),
    ),
    Case("empty label in train", ("data/train.csv, line 2", "hidden"), train("text,label\na,\nb,pos\n")),
    Case(
        "hidden label in validation",
        ("data/validation.csv, line 2", "hidden"),
        {"data/validation.csv": "text,label\na,-1\nb,1\n"},
    ),
    Case(
        "partly hidden test",
        ("data/test.csv, line 3", "while other rows have labels"),
        {"data/test.csv": "text,label\na,pos\nb,-1\n"},
        {"files": DATA["files"] | {"test": "data/test.csv"}},
    ),
    Case(
        "fractional label", ("data/train.parquet, row 2", "0.5"), **columnar({"text": ["a", "b"], "label": [1.0, 0.5]})
    ),
    Case(
        "truth value as label",
        ("data/train.parquet, row 1", "True"),
        **columnar({"text": ["a", "b"], "label": [True, False]}),
    ),
    Case(
        "list as label",
        ("data/train.jsonl, line 2: label is ['neg']", "expected one label per row"),
        **jsonl('{"text": "a", "label": null}\n{"text": "b", "label": ["neg"]}\n'),
    ),
    Case(
        "object as label",
        ("data/train.jsonl, line 1: label is {'v': 'neg'}", "expected one label per row"),
        **jsonl('{"text": "a", "label": {"v": "neg"}}\n'),
    ),
    Case(
        "lists as labels in Parquet",
        ("data/train.parquet, row 1: label is ['pos']", "expected one label per row"),
        **columnar({"text": ["a", "b"], "label": [["pos"], ["neg"]]}),
    ),
    Case(
        "list of several types as label",
        ("data/train.jsonl: column 'label' cannot be read",),
        **jsonl('{"text": "a", "label": ["x", 1]}\n'),
    ),
    Case(
        "huge number as label",
        ("data/train.jsonl: column 'label' cannot be read",),
        **jsonl('{"text": "a", "label": 1' + 30 * "0" + '}\n'),
    ),
    # Scores
    Case("score is text", ("data/train.csv, line 3", "'good'", "`labels`"), **scores("a,1\nb,good\n")),
    Case("score is not a number", ("data/train.csv, line 2", "nan is not finite"), **scores("a,nan\nb,1\n")),
    Case("score is infinite", ("data/train.csv, line 3", "inf is not finite"), **scores("a,1\nb,inf\n")),
    Case(
        "score out of range", ("data/train.csv, line 3", "5.5", "0 to 5"), **scores("a,1\nb,5.5\n", score_range=[0, 5])
    ),
    Case(
        "score beyond single precision",
        ("data/train.csv, line 3: label 1e+39 is beyond the largest number", "3.4e+38"),
        **scores("a,1\nb,1e39\n"),
    ),
    Case("score missing", ("data/train.csv, line 2", "hidden"), **scores("a,\nb,1\n")),
    Case("empty score range", ("score_range", "lowest"), **scores("a,1\nb,2\n", score_range=[5, 0])),
    # Texts
    Case("empty text", ("data/train.csv, line 3", "'text' is empty"), train("text,label\na,pos\n ,neg\n")),
    Case(
        "null text in JSON",
        ("data/train.jsonl, line 2", "'text' is null"),
        **jsonl('{"text": "a", "label": "pos"}\n{"text": null, "label": "neg"}\n'),
    ),
    Case(
        "absent text in JSON",
        ("data/train.jsonl, line 2", "'text' is null"),
        **jsonl('{"text": "a", "label": "pos"}\n{"label": "neg"}\n'),
    ),
    Case(
        "null text in Parquet",
        ("data/train.parquet, row 2", "'text' is null"),
        **columnar({"text": ["a", None], "label": ["pos", "neg"]}),
    ),
    Case(
        "text is a number",
        ("data/train.parquet", "int64", "expected text"),
        **columnar({"text": [1, 2], "label": ["pos", "neg"]}),
    ),
    Case(
        "null pair",
        ("data/train.jsonl, line 1", "'second' is null"),
        files={
            "data/train.jsonl": '{"text": "a", "second": null, "label": "pos"}\n'
            '{"text": "b", "second": "c", "label": "neg"}\n'
        },
        data={"files": {"train": "data/train.jsonl", "validation": "data/validation.csv"}, "text_pair": "second"},
    ),
    # Files
    Case(
        "Latin-1",
        ("data/train.csv, line 3", "not UTF-8", "Latin-1"),
        train("text,label\na,pos\ncaf\xe9,neg\n".encode("latin-1")),
    ),
    Case("UTF-16", ("data/train.csv is UTF-16",), train(TRAIN.encode("utf-16"))),
    Case("field too many", ("data/train.csv, line 3", "3 fields", "quotes"), train("text,label\na,pos\nb, c,neg\n")),
    Case("open quote", ("data/train.csv, line 3", "quote"), train('text,label\na,pos\n"b,neg\n')),
    Case(
        "malformed JSON",
        ("data/train.jsonl, line 2", "no JSON"),
        **jsonl('{"text": "a", "label": "pos"}\n{"text": "b",\n'),
    ),
    Case("JSON list", ("data/train.jsonl, line 1", "list", "object"), **jsonl('["a", "pos"]\n')),
    Case(
        "half a surrogate pair",
        ("data/train.jsonl, line 1", "surrogate"),
        **jsonl('{"text": "\\ud83d", "label": "pos"}\n'),
    ),
    Case(
        "half a surrogate pair in a list",
        ("data/train.jsonl, line 2: column 'label' holds half a surrogate pair",),
        **jsonl('{"text": "a", "label": ["x"]}\n{"text": "b", "label": ["\\ud83d"]}\n'),
    ),
    Case(
        "JSON of great depth",
        ("data/train.jsonl, line 2 is no JSON", "recursion"),
        **jsonl('{"text": "a", "label": "pos"}\n{"text": "b", "label": ' + 100_000 * "[" + 100_000 * "]" + "}\n"),
    ),
    Case(
        "missing column in JSON, near one that is not read",
        ("data/train.jsonl has no column 'text'", "did you mean 'texts'"),
        **jsonl('{"texts": ["x", 1], "label": "pos"}\n'),
    ),
    Case(
        "missing column in Parquet, near one that is not read",
        ("data/train.parquet has no column 'text'", "did you mean 'texts'"),
        **columnar({"texts": ["a", "b"], "label": ["pos", "neg"]}),
    ),
    Case(
        "rows of a TSV in quotes",
        ("data/train.tsv, line 2: a quote opens a field", "up to line 4", "double those inside", "CSV or JSONL"),
        {"data/train.tsv": 'text\tlabel\n"Good start\tpos\nmiddle\tneg\nthe end"\tneg\nlast\tpos\n'},
        {"files": {"train": "data/train.tsv", "validation": "data/validation.csv"}},
    ),
    Case(
        "rows of a TSV in quotes, text last",
        ("data/train.tsv, line 3: a quote opens a field", "up to line 4"),
        {"data/train.tsv": 'label\ttext\nneg\tmiddle\npos\t"Good start\nneg\tthe end"\n'},
        {"files": {"train": "data/train.tsv", "validation": "data/validation.csv"}},
    ),
    Case(
        "types mixed in JSON",
        ("data/train.jsonl, line 2", "'label'", "type"),
        **jsonl('{"text": "a", "label": "pos"}\n{"text": "b", "label": 0}\n'),
    ),
    Case(
        "Latin-1 in Parquet",
        ("data/train.parquet", "no readable Parquet", "UTF8"),
        **columnar({"text": pa.array(["a", "b"]), "label": latin(b"caf\xe9", b"neg")}),
    ),
    Case(
        "cut-short Parquet",
        ("data/train.parquet", "no readable Parquet"),
        {"data/train.parquet": b"PAR1 and no more"},
        {"files": {"train": "data/train.parquet", "validation": "data/validation.csv"}},
    ),
    Case(
        "missing file",
        ("files.train", "data/none.csv", "does not exist"),
        data={"files": {"train": "data/none.csv"}, "selection": "held_out"},
    ),
    Case(
        "file elsewhere",
        ("files.train", "'train.csv'", "data/train.csv"),
        {"train.csv": TRAIN},
        {"files": {"train": "train.csv"}, "selection": "held_out"},
    ),
    Case(
        "file above the study",
        ("files.train", "'data/../../x.csv'", "data/x.csv"),
        data={"files": {"train": "data/../../x.csv"}, "selection": "held_out"},
    ),
    Case("absolute path", ("/etc/passwd", "data/"), data={"files": {"train": "/etc/passwd"}, "selection": "held_out"}),
    Case(
        "unknown ending",
        ("data/train.xlsx", ".xlsx", ".parquet"),
        {"data/train.xlsx": "x"},
        {"files": {"train": "data/train.xlsx"}, "selection": "held_out"},
    ),
    Case(
        "duplicate ids",
        ("data/train.csv, line 4", "id '7'", "line 2", "unique"),
        train("id,text,label\n7,a,pos\n8,b,neg\n7,c,neg\n"),
    ),
    # Declarations
    Case("no validation", ("files.validation", "held_out"), data={"files": {"train": "data/train.csv"}}),
    Case("no train", ("files.train is missing",), data={"files": {"validation": "data/validation.csv"}}),
    Case("one label", ("labels", "fewer than two"), data={"labels": ["pos"]}),
    Case("label twice", ("labels", "'pos' twice"), data={"labels": ["pos", "pos"]}),
    Case("labels and range", ("labels", "score_range"), data={"score_range": [0, 1]}),
    Case("unknown metric", ("metrics", "'acuracy'", "did you mean 'accuracy'"), data={"metrics": ["acuracy"]}),
    Case("metric for scores", ("metrics", "'pearson'", "2 classes"), data={"metrics": ["pearson"]}),
    Case("f1 of three", ("metrics", "'f1'", "macro_f1"), data={"metrics": ["f1"], "labels": ["neg", "pos", "mixed"]}),
    Case("files under a built-in name", ("rte is a built-in dataset", "another name"), dataset="rte"),
    Case("unknown dataset", ("'rtf'", "did you mean", "'rte'"), dataset="rtf", whole_data={}),
    Case("columns of a built-in", ("datasets.rte.data.text", "files"), dataset="rte", whole_data={"text": "x"}),
    Case("margin of another set", ("margin", "movies"), dataset="rte", whole_data={"margin": 0.5}),
    Case("source of own data", ("data.source", "remove"), data={"source": "a/b"}),
    Case("name with a slash", ("'my/data'", "folder name"), dataset="my/data"),
    Case("too many train_rows", ("train_rows = 9", "4 rows", "lower it"), data={"train_rows": 9}),
    Case(
        "nothing held out",
        ("held_out_share", "1 training rows"),
        train("text,label\na,pos\n"),
        {"selection": "held_out"},
    ),
    # Out of domain
    Case("partner unknown", ("ood_sets", "'imdb'", "none"), dataset="rte", whole_data={"ood_sets": ["imdb"]}),
    Case(
        "partner misspelt",
        ("ood_sets", "'scital'", "did you mean 'scitail'"),
        dataset="mnli",
        whole_data={"ood_sets": ["scital"]},
    ),
    Case(
        "own set without a counterpart",
        ("data.ood.other", "'neg'", "label_map"),
        **ood("text,label\na,pos\n", labels=["pos", "bad"]),
    ),
    Case(
        "own set with a stray class",
        ("data.ood.other", "'mixed'", "label_map"),
        **ood("text,label\na,pos\n", labels=["pos", "neg", "mixed"]),
    ),
    Case(
        "map from nowhere",
        ("label_map", "'negg'", "did you mean 'neg'"),
        **ood("text,label\na,pos\n", label_map={"negg": "pos"}),
    ),
    Case("own set with hidden labels", ("data/other.csv, line 2", "hidden"), **ood("text,label\na,-1\n")),
    Case(
        "own set named as a split",
        ("ood.validation", "rename"),
        {"data/other.csv": VALIDATION},
        {"ood": {"validation": {"file": "data/other.csv"}}},
    ),
    # Models
    Case("longer than the positions", ("max_length 65", "64", "teacher"), pair={"max_length": 65}),
    Case("no such teacher", ("./nothing", "no folder"), pair={"teacher": {"source": "./nothing"}}),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_refused_in_one_line(case: Case, tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDFLOW_SOURCES", "")
    data = DATA | case.data if case.whole_data is None else case.whole_data
    study = make(tmp_path / "study", teacher, data, case.dataset, case.files, case.pair)
    outcome = kdflow("prepare", case.dataset, cwd=study)
    assert outcome.code == 2, outcome.err
    line = outcome.err.strip()
    assert "\n" not in line
    for fragment in case.says:
        assert fragment in line
    assert not (study / "artifacts" / "prepared" / case.dataset).exists()
