"""Which words may be replaced, and what a masked language model and word vectors propose for them."""

import pytest
import torch

from kdcore.data.candidates import Slot, eligible, propose
from kdcore.data.stop_words import STOP_WORDS
from kdcore.data.word_prediction import MaskedLm, Span
from kdcore.data.word_vectors import WordVectors
from kdcore.errors import UserError
from kdcore.models.random_encoders import _byte_pieces
from tests.data.masked_lms import predictable_masked_lm, random_masked_lm
from tests.tiny import FAMILIES, POSITIONS, tiny_texts, tiny_tokenizer, vocabulary


def chosen(sentence: str) -> list[str]:
    return [sentence[span.start:span.end] for span in eligible(sentence)]


def test_words_of_letters_that_are_no_stop_words() -> None:
    assert chosen("The film wasn't GOOD, it's well-made in 1990s style.") == ["film", "GOOD", "well", "made", "style"]
    assert chosen("naïve 3D R2D2 U.S. 中文 \u212aelvin film") == ["U", "film"], "the S is as in it's"
    assert chosen("it is not") == chosen("") == chosen(" . ") == []


def test_stop_words_are_lower_case_and_of_grammar() -> None:
    assert all(word == word.lower() and word.isascii() and word.isalpha() for word in STOP_WORDS)
    assert {"the", "not", "don", "re", "s", "would", "between"} <= STOP_WORDS
    assert not {"fire", "sincere", "empty", "good", "interest", "film"} & STOP_WORDS


def known(family: str, *words: str) -> list[int]:
    return [vocabulary(family)[word] for word in words]


def slots(family: str, sentence: str, order: list[int], count: int = 3, vectors: WordVectors | None = None,
          ) -> dict[str, Slot]:
    lm = MaskedLm(predictable_masked_lm(family, order), tiny_tokenizer(family))
    (found,) = propose([sentence], lm, vectors, count, 8)
    return {sentence[slot.span.start:slot.span.end]: slot for slot in found.slots}


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "mpnet"])
def test_the_most_probable_words_without_pieces_and_special_tokens(family: str) -> None:
    """Of the first 5 tokens 2 do not count, and no sixth comes in their place."""
    special = tiny_tokenizer(family).unk_token_id
    order = [*known(family, "great", "##x"), special, *known(family, "awful", "dull", "plot")]
    found = slots(family, "the film was good", order, count=5)
    assert set(found) == {"film", "good"}
    assert all(slot.source == "masked_lm" and slot.candidates == ("awful", "dull", "great")
               for slot in found.values())


def test_a_marked_vocabulary_keeps_what_begins_a_word_as_the_masked_piece_does() -> None:
    """SentencePiece: "▁film" may be replaced by pieces with the mark only."""
    order = known("deberta-v2", "▁great", "x", "▁bad", "▁")
    assert slots("deberta-v2", "film", order, 4)["film"].candidates == ("bad", "great")


def test_bytes_keep_what_begins_a_word_as_the_masked_piece_does() -> None:
    """"b" stands first, where pieces have no mark of the space before them; half a character is no text."""
    tokenizer = _byte_pieces()
    known = tokenizer.get_vocab()
    model = random_masked_lm("roberta")
    model.resize_token_embeddings(len(tokenizer))
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
        bias = torch.full((len(tokenizer),), -100.0)
        bias[[known["x"], known["Ġ"], known["Ã"], known["y"], tokenizer.mask_token_id]] = torch.linspace(9.0, 5.0, 5)
        model.lm_head.bias.copy_(bias)
    assert MaskedLm(model, tokenizer).propose(["b"], [[Span(0, 1)]], 5, 8) == [[("x", "y")]]


def test_words_of_several_pieces_come_from_vectors_or_stay() -> None:
    vectors = WordVectors(("films", "Films", "movies", "plays"), torch.nn.functional.normalize(torch.tensor(
        [[1.0, 0], [0, 1], [1, 0.1], [1, 0.5]])))
    order = known("bert", "great", "bad")
    sentence = "FILMS films Films good Good actors"
    found = slots("bert", sentence, order, 2, vectors)
    assert found["films"] == Slot(Span(6, 11), "word_vectors", ("movies", "plays"))
    assert found["Films"].candidates == ("Movies", "Plays"), "title case is restored"
    assert found["good"].candidates == ("bad", "great")
    assert found["Good"].candidates == ("Bad", "Great"), "this model knows lower case only"
    assert found["actors"] == Slot(Span(28, 34), "none", ())
    assert found["FILMS"].source == "word_vectors"
    alone = slots("bert", sentence, order, 2)
    assert {alone[word].source for word in ("films", "Films", "FILMS", "actors")} == {"none"}
    assert alone["good"] == found["good"]


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_and_neighbours_change_nothing(family: str) -> None:
    """Padding, batch size and order are of no influence, and the context is."""
    lm = MaskedLm(random_masked_lm(family), tiny_tokenizer(family))
    texts = list(dict.fromkeys(tiny_texts(12, seed=3)))
    together = propose(texts, lm, None, 5, 64)
    assert together == [propose([text], lm, None, 5, 1)[0] for text in texts]
    assert together == propose(texts[::-1], lm, None, 5, 3)[::-1]
    assert len({slot.candidates for sentence in together for slot in sentence.slots}) > 5


def test_the_masked_word_is_seen_in_the_second_sentence_only() -> None:
    """What the model gets, token by token."""
    model, tokenizer = random_masked_lm("bert"), tiny_tokenizer("bert")
    seen = []
    model.register_forward_pre_hook(lambda module, args, inputs: seen.append(inputs), with_kwargs=True)
    MaskedLm(model, tokenizer).propose(["the film was good"], [[Span(4, 8), Span(13, 17)]], 3, 8)
    (inputs,) = seen
    read = [tokenizer.decode(row) for row in inputs["input_ids"]]
    assert sorted(read) == ["[CLS] the [MASK] was good [SEP] the film was good [SEP]",
                            "[CLS] the film was [MASK] [SEP] the film was good [SEP]"]
    assert inputs["token_type_ids"].tolist() == [[0] * 6 + [1] * 5] * 2


def test_long_texts_are_cut() -> None:
    """Words beyond the model's tokens have no candidates from it; those before do."""
    lm = MaskedLm(random_masked_lm("bert"), tiny_tokenizer("bert"))
    sentence = " ".join(["film"] * 100)
    (found,) = propose([sentence], lm, None, 3, 64)
    sources = [slot.source for slot in found.slots]
    assert sources == ["masked_lm"] * (POSITIONS - 1) + ["none"] * (101 - POSITIONS), "one token is [CLS]"


def test_a_tokenizer_without_a_mask() -> None:
    tokenizer = tiny_tokenizer("bert")
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="no mask token"):
        MaskedLm(random_masked_lm("bert"), tokenizer)


def test_no_text_at_all() -> None:
    lm = MaskedLm(random_masked_lm("bert"), tiny_tokenizer("bert"))
    assert [sentence.slots for sentence in propose(["", "it was"], lm, None, 3, 8)] == [(), ()]
