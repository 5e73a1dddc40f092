"""Reading a corpus: rows across shards, its fingerprint, damage; and what the guide says of its settings."""

import json
import re
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from kdcore.data.corpus import INFO_FILE, Corpus, CorpusInfo
from kdcore.errors import UserError
from kdcore.general_config import Cleaning, CorpusSource, Masking
from kdcore.general_config import Corpus as Settings
from kdcore.strict import parse
from tests.corpora import tiny_corpus
from tests.tiny import tiny_texts, tiny_tokenizer


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("shard_rows", [1, 16, 1000])
def test_any_rows_are_those_of_the_tokenizer(tmp_path: Path, family: str, shard_rows: int) -> None:
    corpus = tiny_corpus(tmp_path, family, rows=40, shard_rows=shard_rows)
    assert len(corpus.info.shards) == {1: 40, 16: 3, 1000: 1}[shard_rows]
    assert len(corpus) == corpus.info.rows == 40
    tokenizer = tiny_tokenizer(family)
    expected = tokenizer(tiny_texts(40), truncation=True, max_length=24, padding=True, return_token_type_ids=True,
                         return_tensors="pt")
    assert corpus.lengths.tolist() == expected["attention_mask"].sum(1).tolist()
    assert corpus.info.tokens == corpus.lengths.sum()
    for rows in (list(range(40)), [39, 0, 17, 16, 15, 17], [5]):
        batch = corpus.tokens(torch.tensor(rows))
        width = batch["input_ids"].shape[1]
        assert width == corpus.lengths[rows].max()
        for name, value in batch.items():
            assert value.dtype == torch.int64
            assert torch.equal(value, expected[name][rows, :width])


def test_fingerprint_is_of_rows_and_origin(tmp_path: Path) -> None:
    one, same, other = (tiny_corpus(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert len(one.fingerprint) == 16
    assert CorpusInfo.from_json(one.info.to_json()) == one.info


@pytest.mark.parametrize(("damage", "message"), [
    ("absent", "run `kdflow corpus` first"),
    ("json", "is of another format"),
    ("key", "is of another format"),
    ("shard", "rows-00001.arrow has 0 bytes, expected"),
    ("short", "rows-00000.arrow has 100 bytes, expected"),
])
def test_damage_is_said_in_one_line(tmp_path: Path, damage: str, message: str) -> None:
    folder = tiny_corpus(tmp_path).folder
    match damage:
        case "absent":
            folder = tmp_path / "nothing"
        case "json":
            (folder / INFO_FILE).write_text("{")
        case "key":
            content = json.loads((folder / INFO_FILE).read_text())
            (folder / INFO_FILE).write_text(json.dumps(content | {"colour": "red"}))
        case "shard":
            (folder / "rows-00001.arrow").unlink()
        case "short":
            (folder / "rows-00000.arrow").write_bytes((folder / "rows-00000.arrow").read_bytes()[:100])
    with pytest.raises(UserError, match=message) as error:
        Corpus.load(folder)
    assert "\n" not in str(error.value)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path)
    own = corpus.info.vocabulary.fingerprint
    corpus.check_tokenizer(own, "the teacher x")
    with pytest.raises(UserError, match=f"was cut by tokenizer {own}, but the teacher x has tokenizer 0123") as error:
        corpus.check_tokenizer("0123456789ab", "the teacher x")
    assert "\n" not in str(error.value)


def test_memory_mapped_rows_are_not_copied(tmp_path: Path) -> None:
    """Values stay in the files: opening a corpus holds lengths alone."""
    corpus = tiny_corpus(tmp_path)
    assert all(not shard.values.flags.owndata for shard in corpus._shards)


def test_the_guide_names_every_key_and_its_default(repository: Path) -> None:
    text = (repository / "docs" / "corpus.md").read_text(encoding="utf-8")
    for model in (CorpusSource, Settings, Cleaning, Masking):
        for name, field in model.model_fields.items():
            said = re.search(rf"^\| `(?:cleaning\.)?{name}`[^|]*\| ([^|]*)\|", text, re.MULTILINE)
            assert said, f"docs/corpus.md says nothing of {model.__name__}.{name}"
            if isinstance(field.default, int | float | str):
                assert said[1].strip().strip("`") == str(field.default).lower().replace("nfc", "NFC"), name


def test_the_settings_of_the_guide_are_valid(repository: Path) -> None:
    text = (repository / "docs" / "corpus.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        for section, content in YAML(typ="safe").load(block).items():
            parse({"corpus": Settings, "masking": Masking}[section], content, "docs/corpus.md")
