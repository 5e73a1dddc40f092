"""Packing: sentences, rows that lose nothing, pairs, special tokens of every family."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from kdcore.data.packing import Packer, Rows, Template, pack, sentences
from tests.tiny import FAMILIES, tiny_texts, tiny_tokenizer

NO_DRAWS = np.full((100, 3), 0.5)


def rows_of(rows: Rows) -> list[list[int]]:
    return [part.tolist() for part in np.split(rows.values, np.cumsum(rows.lengths)[:-1])]


def packer(family: str = "bert", max_length: int = 12, packing: str = "sentences", pairs: bool = False,
           short: float = 0.0) -> Packer:
    return Packer(tiny_tokenizer(family), max_length, packing, pairs, short, seed=3)


def test_sentences() -> None:
    document = 'He met J. Smith and Dr. Who. "Really?" she said. Then... nothing! "No." Yes\nA line, e.g. this.\n\nEnd'
    assert sentences(document) == [
        "He met J. Smith and Dr. Who.", ' "Really?" she said.', " Then... nothing!", ' "No."', " Yes",
        " A line, e.g. this.", " End"]
    assert sentences("\u7b2c\u4e00\u3002\u7b2c\u4e8c\uff01x") == ["\u7b2c\u4e00\u3002", " \u7b2c\u4e8c\uff01", " x"]
    assert sentences(" \n ") == []
    assert sentences("pi is 3.14 or so.") == ["pi is 3.14 or so."]


def test_rows_fill_up_with_whole_sentences() -> None:
    """By hand, room for 10: 4 + 3 fit, 5 does not; 23 is continued; 2 follows the rest of it."""
    assert pack([4, 3, 5, 5, 23, 2], 10, 0.0, NO_DRAWS) == [(7, 4), (10, 5), (10, 5), (10, 5), (5, 3)]
    assert pack([], 10, 0.0, NO_DRAWS) == []
    assert pack([0, 0], 10, 0.0, NO_DRAWS) == [], "no tokens, no row"


def test_cut_of_a_pair_is_any_end_of_a_sentence_inside() -> None:
    cuts = {pack([1, 2, 3, 4], 10, 0.0, np.array([[0, 0, place]]))[0][1] for place in np.linspace(0, 0.999, 30)}
    assert cuts == {1, 3, 6}
    assert pack([1], 10, 0.0, NO_DRAWS) == [(1, 1)]


def test_short_rows_aim_at_random_lengths() -> None:
    draws = np.random.default_rng(0).random((20_000, 3))
    totals = np.array([total for total, _ in pack([1] * 200_000, 50, 0.1, draws)])
    assert totals.sum() == 200_000
    assert 0.08 < (totals < 50).mean() < 0.12
    assert totals.min() == 2
    short = totals[totals < 50]
    assert abs(short.mean() - 25.5) < 1.5, "2 to 50 with equal probability"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pairs", [False, True])
def test_all_tokens_arrive_in_order_with_the_tokenizers_special_tokens(family: str, pairs: bool) -> None:
    """Text between special tokens, put together, is the tokenizer's own reading of the whole document."""
    tokenizer, packed = tiny_tokenizer(family), packer(family, 12, "sentences", pairs, 0.3)
    documents = [" ".join(f"{text.capitalize()}." for text in tiny_texts(8, seed, 9)) for seed in range(6)]
    rows = packed(documents, 0)
    special = {*(token for token, _ in packed.template.before + packed.template.between + packed.template.after)}
    text = [token for row in rows_of(rows) for token in row if token not in special]
    own = tokenizer(documents, add_special_tokens=False)["input_ids"]
    assert text == [token for row in own for token in row]
    assert rows.lengths.max() <= 12
    checked = 0
    for row, types in zip(rows_of(rows), np.split(rows.types, np.cumsum(rows.lengths)[:-1]), strict=True):
        places = [place for place, token in enumerate(row) if token not in special]
        cut = next((i for i in range(1, len(places)) if places[i] != places[i - 1] + 1), len(places))
        ids = [row[place] for place in places]
        parts = [ids[:cut], ids[cut:]] if pairs else [ids]
        texts = [tokenizer.decode(part) for part in parts]
        # Not so where a segment starts inside a word; a single token has no second segment.
        if all(parts) and tokenizer(texts, add_special_tokens=False)["input_ids"] == parts:
            checked += 1
            expected = tokenizer(*texts, return_token_type_ids=True)
            assert (row, types.tolist()) == (expected["input_ids"], expected["token_type_ids"])
    assert checked > len(rows.lengths) / 2


def test_byte_pairs_read_sentences_as_they_read_the_whole_text() -> None:
    """A byte-level tokenizer tells ` He` inside a text from `He` at its beginning."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    document = 'He saw it. He liked "it"! Was it good? It was.'
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator([document] * 9, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    rows = Packer(tokenizer, 10, "sentences", False, 0.0, 0)([document], 0)
    assert len(rows.lengths) > 1
    whole = core.encode(document, add_special_tokens=False).ids
    assert [token for row in rows_of(rows) for token in row[1:-1]] == whole


def test_every_row_has_the_same_number_of_special_tokens() -> None:
    for pairs in (False, True):
        packed = packer(pairs=pairs)
        rows = packed(["film.", "A.", "the film was good. " * 9], 0)
        special = np.isin(rows.values, [2, 3])
        per_row = np.add.reduceat(special, np.cumsum(rows.lengths) - rows.lengths)
        assert (per_row == packed.template.size).all()
        assert packed.template.size == 2 + pairs


def test_texts_never_become_special_tokens() -> None:
    """A page about BERT that writes [MASK] or [SEP] does not mask or end anything."""
    for family in FAMILIES:
        tokenizer = tiny_tokenizer(family)
        rows = packer(family, 64, "rows")([f"the {' '.join(tokenizer.all_special_tokens)} film"], 0)
        body = set(rows.values[1:-1].tolist()) - {tokenizer.unk_token_id}
        assert not body & set(tokenizer.all_special_ids)


def test_rows_are_cut_at_the_end_and_counted() -> None:
    packed = packer(packing="rows", max_length=6)
    rows = packed(["the film", "the film was good and fine", "", "bad"], 0)
    assert rows.lengths.tolist() == [4, 6, 3]
    assert packed.cut_off == 2
    tokenizer = tiny_tokenizer("bert")
    assert tokenizer.convert_ids_to_tokens(rows_of(rows)[1]) == ["[CLS]", "the", "film", "was", "good", "[SEP]"]


def test_draws_belong_to_the_chunk() -> None:
    """Equal for the same chunk, whatever was packed before; another chunk has other lengths."""
    documents = [" ".join(["film"] * 400)]
    document = [". ".join(["Film"] * 400)]
    packed = packer(short=0.5, max_length=40)
    first = packed(document, 5)
    packed(documents, 1)
    again, other = packed(document, 5), packed(document, 6)
    assert first.lengths.tolist() == again.lengths.tolist() != other.lengths.tolist()


def test_cutting_rows() -> None:
    rows = packer(packing="rows")(["the film", "good", "a dull plot"], 0)
    part = rows.cut(1, 3)
    assert rows_of(part) == rows_of(rows)[1:]
    assert rows.cut(3).lengths.tolist() == []
    assert rows_of(rows.cut(2)) == rows_of(rows)[2:]


def test_template() -> None:
    assert Template.of(tiny_tokenizer("bert"), True) == Template([(2, 0)], [(3, 0)], [(3, 1)], (0, 1))
    assert Template.of(tiny_tokenizer("roberta"), True).size == 4
    assert Template.of(tiny_tokenizer("roberta"), False).size == 2
