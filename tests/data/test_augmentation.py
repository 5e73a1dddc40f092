"""Augmentation in the stage `prepare`: which rows join, with which labels and names, and what is told of them."""

import hashlib
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdcore import config
from kdcore.data import augmentation, hub, kept_candidates
from kdcore.data.augmentation import DRAWS, Origin
from kdcore.data.augmentation_report import FILE
from kdcore.data.candidates import Sentence, Slot, eligible, words
from kdcore.data.prepared import Prepared
from kdcore.data.splitting import keys
from kdcore.data.variants import pieces
from kdcore.data.word_prediction import MaskedLm, Span
from kdcore.data_config import Augmentation
from kdcore.errors import UserError
from kdcore.layout import Layout
from tests.data.masked_lms import save_masked_lm
from tests.data.studies import DATA, make, prepare_study
from tests.import_graph import closure, has_code
from tests.tiny import save_tiny, tiny_texts

SINGLE = "text,label\n" + "".join(f"{text},{'neg' if place % 2 else 'pos'}\n" for place, text in enumerate(
    dict.fromkeys(tiny_texts(30, seed=5, longest=12))))
PAIRS = "id,text,text_pair,label\n" + "".join(
    f"r{place},{one},{two},{'neg' if place % 2 else 'pos'}\n" for place, (one, two) in enumerate(zip(
        tiny_texts(12, seed=6), tiny_texts(12, seed=7), strict=True)))
PAIR_VALIDATION = "text,text_pair,label\nfine film,bad plot,pos\nbad actor,dull film,neg\n"
VECTORS = "actors 1 0\nactor 1 0.1\nfilms 0 1\nfilm 0.1 1\n"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random masked language model."""
    return save_masked_lm(tmp_path_factory.mktemp("lm"))


def study(folder: Path, teacher: Path, lm: Path, augment: dict[str, Any] | None = None, pairs: bool = False,
          data: dict[str, Any] | None = None, files: dict[str, str] | None = None) -> Path:
    """A study whose dataset is augmented."""
    settings = {"model": str(lm), "variants": 4, "precision": "fp32"} | (augment or {})
    texts = ({"data/train.csv": PAIRS, "data/validation.csv": PAIR_VALIDATION} if pairs
             else {"data/train.csv": SINGLE})
    declared = DATA | ({"text_pair": "text_pair"} if pairs else {}) | {"augment": settings} | (data or {})
    return make(folder, teacher, declared, files=texts | (files or {}))


def rows(prepared: Prepared) -> list[dict[str, Any]]:
    return prepared.table("train").to_pylist()


def hashes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def test_variants_join_behind_the_rows_without_labels(tmp_path: Path, teacher: Path, lm: Path) -> None:
    plain = rows(prepare_study(make(tmp_path / "plain", teacher, files={"data/train.csv": SINGLE})))
    prepared = prepare_study(study(tmp_path / "augmented", teacher, lm))
    found = rows(prepared)
    own, new = found[:len(plain)], found[len(plain):]
    assert [(row["id"], row["text"], row["label"]) for row in own] == [
        (row["id"], row["text"], row["label"]) for row in plain]
    assert [row["source_id"] for row in own] == [str(place) for place in range(len(plain))]
    assert len(new) > len(plain)
    assert {row["label"] for row in new} == {-1}
    assert prepared.info.splits["train"].unlabelled == len(new)
    for row in new:
        origin = plain[int(row["source_id"].split("+")[0])]
        before, after = origin["text"].split(), row["text"].split()
        assert len(before) == len(after)
        changed = [place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
        assert changed
        assert not {before[place] for place in changed} & {"the", "a", "was", "is", "and", "not", "very", "it", "of"}
    assert f"with {len(new):,} variants without labels of {len(plain):,} rows, by {lm}" in (
        prepared.info.splits["train"].note)
    assert len(set(keys(prepared.table("train")))) == len(found), "no text comes twice"


def test_labels_may_be_copied(tmp_path: Path, teacher: Path, lm: Path) -> None:
    unlabelled = rows(prepare_study(study(tmp_path / "a", teacher, lm)))
    prepared = prepare_study(study(tmp_path / "b", teacher, lm, {"labels": "copy"}))
    labels = {row["source_id"]: row["label"] for row in rows(prepared)}
    assert [row["text"] for row in rows(prepared)] == [row["text"] for row in unlabelled], "labels change no draw"
    assert all(label == labels[name.split("+")[0]] for name, label in labels.items())
    assert prepared.info.splits["train"].unlabelled == 0


def test_scores_too(tmp_path: Path, teacher: Path, lm: Path) -> None:
    train = "text,label\n" + "".join(f"{text},{place / 10}\n" for place, text in enumerate(tiny_texts(10)))
    files = {"data/train.csv": train, "data/validation.csv": "text,label\nfine film,1\nbad actor,0\n"}
    for labels in ("teacher", "copy"):
        data = {"labels": None, "augment": {"model": str(lm), "variants": 2, "labels": labels}}
        found = rows(prepare_study(study(tmp_path / labels, teacher, lm, data=data, files=files)))[10:]
        assert found
        expected = [np.float32(int(row["source_id"].split("+")[0]) / 10) for row in found]
        values = np.array([row["label"] for row in found], np.float32)
        assert np.isnan(values).all() if labels == "teacher" else values.tolist() == expected


def test_of_a_pair_one_text_varies_beside_the_other(tmp_path: Path, teacher: Path, lm: Path) -> None:
    found = rows(prepare_study(study(tmp_path, teacher, lm, pairs=True)))
    own = {row["source_id"]: (row["text"], row["text_pair"]) for row in found[:12]}
    assert set(own) == {f"r{place}" for place in range(12)}
    for row in found[12:]:
        one, two = own[row["source_id"].split("+")[0]]
        assert (row["text"] == one) != (row["text_pair"] == two)
    assert any(row["text"] != own[row["source_id"].split("+")[0]][0] for row in found[12:])
    assert any(row["text_pair"] != own[row["source_id"].split("+")[0]][1] for row in found[12:])


def test_pairs_as_the_released_code_has_them(tmp_path: Path, teacher: Path, lm: Path) -> None:
    ours = rows(prepare_study(study(tmp_path / "ours", teacher, lm, pairs=True)))
    public = rows(prepare_study(study(tmp_path / "public", teacher, lm, {"public": True}, pairs=True)))
    own = {row["source_id"]: row for row in ours[:12]}
    for name, origin in own.items():
        first, second = ([row for row in them[12:] if row["source_id"].startswith(f"{name}+")]
                         for them in (ours, public))
        firsts = [row["text"] for row in first if row["text"] != origin["text"]]
        seconds = [row["text_pair"] for row in first if row["text_pair"] != origin["text_pair"]]
        last = firsts[-1] if firsts else origin["text"]
        assert [(row["text"], row["text_pair"]) for row in second] == [
            *((text, origin["text_pair"]) for text in firsts), *((last, text) for text in seconds)]


def test_batches_change_no_byte_and_the_seed_does(tmp_path: Path, teacher: Path, lm: Path) -> None:
    first, small, other = (prepare_study(study(tmp_path / name, teacher, lm, settings)) for name, settings in (
        ("a", {}), ("b", {"batch_size": 1}), ("c", {"seed": 1})))
    assert hashes(first.folder) == hashes(small.folder)
    assert hashes(first.folder) != hashes(other.folder)


def test_what_a_row_becomes_depends_on_itself_alone(tmp_path: Path, teacher: Path, lm: Path) -> None:
    """With fewer rows about, the same variants: of those that a seed draws, and of those of a smaller split."""
    def texts(prepared: Prepared) -> dict[str, str]:
        return {row["source_id"]: row["text"] for row in rows(prepared)}

    whole = texts(prepare_study(study(tmp_path / "whole", teacher, lm)))
    part = texts(prepare_study(study(tmp_path / "part", teacher, lm, {"rows": 7})))
    origins = {name.split("+")[0] for name in part if "+" in name}
    assert 3 <= len(origins) <= 7, "some have no word to replace"
    common = {name for name in part.keys() & whole.keys() if "+" in name}
    assert len(common) > 5
    assert all(part[name] == whole[name] for name in common)
    fewer = texts(prepare_study(study(tmp_path / "fewer", teacher, lm, data={"train_rows": 11})))
    common = fewer.keys() & whole.keys()
    assert len([name for name in fewer if "+" not in name]) == 11
    assert len(common) > 0.8 * len(fewer), "some are equal to other rows there"
    assert all(fewer[name] == whole[name] for name in common)


def test_texts_of_other_splits_are_left_out(tmp_path: Path, teacher: Path, lm: Path) -> None:
    """A variant that is a text of the validation split would let students see it."""
    found = rows(prepare_study(study(tmp_path / "a", teacher, lm)))
    leaked = next(row["text"] for row in found if row["label"] == -1)
    again = rows(prepare_study(study(tmp_path / "b", teacher, lm, files={
        "data/validation.csv": f"text,label\n{leaked.upper()},pos\nbad actor,neg\n"})))
    assert leaked not in [row["text"] for row in again]
    assert len(again) == len(found) - 1


def test_the_page_and_the_message_without_word_vectors(tmp_path: Path, teacher: Path, lm: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    train = SINGLE + "actors saw *films*,pos\n"
    prepared = prepare_study(study(tmp_path, teacher, lm, files={"data/train.csv": train}))
    page = (prepared.folder / FILE).read_text(encoding="utf-8")
    counts = {name: int(count.replace(",", "")) for name, count in re.findall(
        r"^\| (masked language model|word vectors|none: the word stays) \| ([\d,]+) \|", page, flags=re.M)}
    assert counts["word vectors"] == 0
    assert counts["none: the word stays"] == 2, "actors and films are several pieces to the tiny tokenizer"
    assert counts["masked language model"] > 50
    out, err = capsys.readouterr()
    assert re.search(r"mine: candidates for 3\d of 3\d rows, [\d,.]+ rows/s in fp32", out)
    assert re.search(r"mine: \d+ variants of 3\d rows .* in a variant \d+\.\d% of them are, \d+\.\d% of all words", out)
    (warning,) = prepared.info.warnings
    assert "without word vectors, " in warning
    assert "datasets.mine.data.augment.word_vectors" in warning
    assert f"warning: mine: {warning}" in err
    samples = page.split("\n|---|---|---|\n")[1].splitlines()
    assert len(samples) == augmentation.SAMPLES
    assert all(line.count("|") == 4 for line in samples)
    assert any("**" in line for line in samples)
    assert str(tmp_path) not in page


def test_word_vectors_fill_the_gap(tmp_path: Path, teacher: Path, lm: Path) -> None:
    train = SINGLE + "actors saw *films*,pos\n"
    files = {"data/train.csv": train, "data/vectors.txt": VECTORS}
    settings = {"word_vectors": "data/vectors.txt", "candidates": 1, "replace_probability": 1.0}
    prepared = prepare_study(study(tmp_path, teacher, lm, settings, files=files))
    assert prepared.info.warnings == ()
    (new,) = [row["text"] for row in rows(prepared) if "actor" in row["text"].split() and "*" in row["text"]]
    assert re.fullmatch(r"actor \S+ \*film\*", new), "the nearest of each"
    page = (prepared.folder / FILE).read_text(encoding="utf-8")
    assert "| word vectors | 2 |" in page
    assert "the vectors of data/vectors.txt" in page
    assert "actors saw \\*films\\*" in page or "actors" not in page.split("## Samples")[1]


def test_finished_candidates_are_kept_for_other_draws(tmp_path: Path, teacher: Path, lm: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """New draws take no model; another number of candidates does, and drops the old ones."""
    asked = []
    inner = MaskedLm.propose
    monkeypatch.setattr(MaskedLm, "propose", lambda self, sentences, *rest: (
        asked.append(len(sentences)), inner(self, sentences, *rest))[1])
    monkeypatch.setattr(kept_candidates, "BLOCK", 10)
    prepare_study(study(tmp_path, teacher, lm))
    assert asked == [10, 10, 10]
    asked.clear()
    prepare_study(study(tmp_path, teacher, lm, {"seed": 5, "variants": 9, "labels": "copy", "batch_size": 3}))
    assert asked == []
    prepare_study(study(tmp_path, teacher, lm, {"candidates": 3}))
    assert asked == [10, 10, 10]
    kept = Layout(tmp_path).kept / "augment-mine"
    assert len([path for path in kept.iterdir() if path.is_dir()]) == 1


def test_kept_candidates_are_those_of_this_code(repository: Path) -> None:
    """Of all files with data that the search and its blocks import, but for what reads prepared data."""
    needed = {f"data/{file.name}" for file in closure(repository / "kdcore" / "data" / "kept_candidates.py")
              if file.parent.name == "data" and has_code(file)}
    assert {"data/candidates.py", "data/word_prediction.py"} <= needed <= {*augmentation.CODE, "data/prepared.py"}


def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path, teacher: Path, lm: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_candidates, "BLOCK", 5)
    undisturbed = prepare_study(study(tmp_path / "undisturbed", teacher, lm))
    asked, inner = [], MaskedLm.propose

    def interrupted(self: MaskedLm, sentences: list[str], *rest: Any) -> Any:
        asked.append(len(sentences))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return inner(self, sentences, *rest)

    monkeypatch.setattr(MaskedLm, "propose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_study(study(tmp_path / "stopped", teacher, lm))
    assert not Layout(tmp_path / "stopped").prepared("mine").exists()
    resumed = prepare_study(tmp_path / "stopped")
    assert len(asked) == 3 + 6 - 2, "two of six blocks were finished"
    assert hashes(resumed.folder) == hashes(undisturbed.folder)


KILLED = """
import sys, time
from pathlib import Path
from kdcore import config
from kdcore.data import kept_candidates
from kdcore.data.word_prediction import MaskedLm
from kdcore.layout import Layout
from kdcore.stages import prepare

kept_candidates.BLOCK = 5
inner = MaskedLm.propose

def slow(self, *rest):
    time.sleep(0.5)
    return inner(self, *rest)

MaskedLm.propose = slow
layout = Layout(Path(sys.argv[1]))
prepare.run(config.load(layout.params), layout, "mine")
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path, teacher: Path, lm: Path, repository: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_candidates, "BLOCK", 5)
    undisturbed = prepare_study(study(tmp_path / "undisturbed", teacher, lm))
    killed = study(tmp_path / "killed", teacher, lm)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(killed)], cwd=repository,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kept = Layout(killed).kept / "augment-mine"
    deadline = time.monotonic() + 60
    while len(finished := list(kept.glob("*/*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -9
    before = {path: path.stat().st_mtime_ns for path in finished}
    assert len(before) >= 2
    assert not Layout(killed).prepared("mine").exists()
    resumed = prepare_study(killed)
    assert hashes(resumed.folder) == hashes(undisturbed.folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was finished is not computed again"


def test_the_settings_guide(repository: Path) -> None:
    """Its table has every key, with the default of the code."""
    page = (repository / "docs" / "params.md").read_text(encoding="utf-8")
    section = page.split("### Augmented rows\n")[1].split("\n## ")[0]
    table = {key: default for keys, default in re.findall(r"^\| (`.+?`) \| (.*?) ?\|", section, flags=re.M)
             for key in re.findall(r"`(\w+)`", keys)}
    assert table.keys() == Augmentation.model_fields.keys()
    written = {"None": "none", "False": "false"}
    for name, field in Augmentation.model_fields.items():
        if name not in ("model", "revision", "variants", "rows"):
            assert table[name].strip("`") == written.get(str(field.default), str(field.default)), name


def test_draws_by_dataset() -> None:
    assert {DRAWS[name] for name in ("cola", "mrpc", "rte", "stsb")} == {30}
    assert {DRAWS[name] for name in ("sst2", "qnli")} == {20}
    assert {DRAWS[name] for name in ("mnli", "qqp")} == {10}


def test_the_default_for_other_datasets(tmp_path: Path, teacher: Path, lm: Path) -> None:
    prepared = prepare_study(study(tmp_path, teacher, lm, {"variants": None, "rows": 3}))
    assert "20 draws per text" in (prepared.folder / FILE).read_text()


def test_a_model_without_the_head(tmp_path: Path, teacher: Path) -> None:
    """A fine-tuned classifier has none."""
    with pytest.raises(UserError, match="lack"):
        prepare_study(study(tmp_path, teacher, save_tiny(tmp_path / "classifier")))


def test_what_does_not_go(tmp_path: Path, teacher: Path, lm: Path) -> None:
    with pytest.raises(UserError, match=r"datasets\.mine\.data\.augment\.rows = 99 is more than the \d+ training rows"):
        prepare_study(study(tmp_path / "a", teacher, lm, {"rows": 99}))
    with pytest.raises(UserError, match=r"augment\.word_vectors = 'glove\.txt' is not inside the study's data/"):
        prepare_study(study(tmp_path / "b", teacher, lm, {"word_vectors": "glove.txt"}))
    with pytest.raises(UserError, match=r"augment\.word_vectors = 'data/glove\.txt' does not exist"):
        prepare_study(study(tmp_path / "c", teacher, lm, {"word_vectors": "data/glove.txt"}))
    with pytest.raises(UserError, match="`augment` beside `teacher_files`"):
        prepare_study(make(tmp_path / "d", teacher, DATA | {"teacher_files": {"train": "data/train.csv"},
                                                            "augment": {"model": str(lm)}},
                           pair={"teacher": {"source": "files"}, "student": {"source": str(teacher)}}))
    with pytest.raises(UserError, match="makes no variant: none of the 6 words of 2 rows"):
        prepare_study(study(tmp_path / "e", teacher, lm, files={"data/train.csv": "text,label\nit was,pos\n"
                                                                "it is not so,neg\n"}))
    with pytest.raises(UserError, match=r"have others to replace them, but every draw left the text .*; raise `re"):
        prepare_study(study(tmp_path / "g", teacher, lm, {"replace_probability": 1e-12}))
    with pytest.raises(UserError, match=r"unknown key `datasets\.mine\.data\.augment\.variant`; did you mean"):
        config.load(study(tmp_path / "f", teacher, lm, {"variant": 3}) / "params.yaml")


def test_a_row_without_an_id_has_variants_without(tmp_path: Path, teacher: Path, lm: Path) -> None:
    train = "id,text,label\n,good film,pos\n7,bad film,neg\n"
    found = rows(prepare_study(study(tmp_path, teacher, lm, files={"data/train.csv": train})))
    assert {row["source_id"] for row in found if row["label"] == -1} >= {None, "7+1"}


def test_unlabelled_rows_get_no_variants(tmp_path: Path, teacher: Path, lm: Path) -> None:
    files = {"data/more.csv": "text\nshe liked the fine plot\nthey hated the awful actor\n"}
    plain = rows(prepare_study(study(tmp_path / "a", teacher, lm)))
    found = rows(prepare_study(study(tmp_path / "b", teacher, lm, data={"unlabelled": "data/more.csv"}, files=files)))
    assert {row["text"] for row in found} - {row["text"] for row in plain} == {
        "she liked the fine plot", "they hated the awful actor"}


def test_two_texts_of_a_row_have_generators_of_their_own() -> None:
    origin = Origin(0, "1", ("good film", "good film"))
    slots = tuple(Slot(Span(start, start + 4), "masked_lm", tuple("abcdefgh")) for start in (0, 5))
    first, second = origin.vary([Sentence(2, slots)] * 2, 10, Augmentation(model="any"))
    assert first != second


def test_real_texts(shared: Path, tmp_path: Path, teacher: Path) -> None:
    """MRPC as it is published, by a model that knows its words and says nonsense: only words of letters change, and
    everything between words stays as it was."""
    source = shared / "data" / "glue"
    texts = hub.read(str(source), "mrpc", None)["train"].table.column("sentence1").to_pylist()
    counts = Counter(word for text in texts for word in re.findall(r"[a-z]{2,}", text.lower()))
    vocabulary = tuple(word for word, _ in counts.most_common(2000))
    lm = save_masked_lm(tmp_path / "lm", words=vocabulary)
    data = {"source": str(source), "train_rows": 60, "eval_rows": 20,
            "augment": {"model": str(lm), "variants": 5, "precision": "fp32"}}
    found = rows(prepare_study(make(tmp_path / "study", teacher, data, name="mrpc"), "mrpc"))
    own = {row["source_id"]: row for row in found[:60]}
    assert len(found) > 400
    capitals = 0
    for row in found[60:]:
        origin = own[row["source_id"].split("+")[0]]
        (name,) = [name for name in ("text", "text_pair") if row[name] != origin[name]]
        spans = [words(of[name]) for of in (origin, row)]
        before, after = ([of[name][span.start:span.end] for span in own] for of, own in zip((origin, row), spans,
                                                                                            strict=True))
        places = [place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
        assert {spans[0][place] for place in places} <= set(eligible(origin[name]))
        assert all(after[place].istitle() for place in places if before[place].istitle() and after[place].isalpha())
        rebuilt = pieces(origin[name], [(Slot(spans[0][place], "masked_lm", ()), after[place]) for place in places])
        assert "".join(rebuilt) == row[name]
        capitals += sum(before[place].istitle() for place in places)
    assert capitals > 50
