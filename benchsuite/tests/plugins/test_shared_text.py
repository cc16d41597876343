"""How tokens are spelt in every alphabet, and how a text is read with the tokens that there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchsuite.workshop.machines.renamed import byte_level
from specdec import SpecdecError
from specdec_plugins.chain import widened
from specdec_plugins.vocabularies import Spelling, Translation


def whole_words(vocabulary: list[str], decoder: Any = None, special: tuple[str, ...] = ()) -> PreTrainedTokenizerBase:
    """A tokenizer that looks whole words up, without merges."""
    made = Tokenizer(models.WordLevel(vocab={token: i for i, token in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    if decoder is not None:
        made.decoder = decoder
    made.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize(
    ("token", "byte"),
    [
        *[("<0x41>", b"A"), ("<0x00>", b"\x00"), ("<0xFF>", b"\xff")],
        *[("<0x041>", None), ("<0x4>", None), ("<1x41>", None), ("<0x41)", None), ("(0x41>", None), ("", None)],
    ],
)
def test_a_token_for_a_byte_has_two_digits_between_these_marks(token: str, byte: bytes | None) -> None:
    found = Spelling(whole_words(["b", token], decoders.ByteFallback()), 2)
    assert found.keys[1] == (False, token.encode() if byte is None else byte)


REPLACED = decoders.Replace("▁", " ")


@pytest.mark.parametrize(
    ("decoder", "spelt"),
    [
        (None, ["a", "▁b", "<0x41>", "Ġc", "é"]),
        (decoders.Metaspace(), ["a", " b", "<0x41>", "Ġc", "é"]),
        (REPLACED, ["a", " b", "<0x41>", "Ġc", "é"]),
        (decoders.ByteFallback(), ["a", "▁b", "A", "Ġc", "é"]),
        (decoders.Sequence([REPLACED, decoders.ByteFallback()]), ["a", " b", "A", "Ġc", "é"]),
        (decoders.ByteLevel(), ["a", "▁b", "<0x41>", " c", None]),
    ],
)
def test_a_decoder_says_in_which_alphabet_tokens_are_written(decoder: Any, spelt: list[str | None]) -> None:
    """A token with a letter that the bytes' alphabet lacks is taken as it is written; é is the byte E9 there."""
    found = Spelling(whole_words(["a", "▁b", "<0x41>", "Ġc", "é"], decoder), 99)
    expected = [text.encode() if text is not None else b"\xe9" for text in spelt]
    assert [found.keys[index] for index in range(5)] == [(False, text) for text in expected]
    assert found.ids == {(False, text): index for index, text in enumerate(expected)}


def test_of_tokens_for_the_same_bytes_the_one_that_text_is_made_of_is_meant() -> None:
    """Not the one for a byte alone, whatever their order; of two others the first, and none for no bytes."""
    decoder = decoders.Sequence([REPLACED, decoders.ByteFallback()])
    found = Spelling(whole_words(["<0x41>", "A", "B", "<0x42>", "▁", " ", "", "<0x43>"], decoder), 8)
    assert found.ids == {(False, b"A"): 1, (False, b"B"): 2, (False, b" "): 4, (False, b"C"): 7}
    assert len(found.keys) == 8
    plain = Spelling(whole_words(["▁", " ", "<0x41>"], REPLACED), 3)
    assert plain.ids == {(False, b" "): 0, (False, b"<0x41>"): 2}


def test_special_and_added_tokens_are_written_as_they_are() -> None:
    tokenizer = whole_words(["a", "b"], decoders.ByteLevel(), special=("Ġend", "b"))
    tokenizer.add_tokens(["Ġmore"])
    found = Spelling(tokenizer, 99)
    names = tokenizer.get_vocab()
    assert found.keys == {
        names["a"]: (False, b"a"),
        names["b"]: (True, b"b"),
        names["Ġend"]: (True, "Ġend".encode()),
        names["Ġmore"]: (False, "Ġmore".encode()),
    }
    cut = Spelling(tokenizer, 2)
    assert sorted(cut.keys) == [0, 1], "ids from the size on have no row in the model's head"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"abc", ["abc"]),
        (b"abd", ["ab", "d"]),
        (b"abcabd", ["abc", "ab", "d"]),
        (b"xaxxbcx", ["a", "bc"]),
        (b"bcd", ["bc", "d"]),
        (b"x", []),
    ],
)
def test_without_merges_a_text_is_read_longest_token_first_and_what_has_no_token_is_left_out(
    text: bytes, expected: list[str]
) -> None:
    tokenizer = whole_words(["a", "ab", "abc", "bc", "d"], special=("b",))
    spelling = Spelling(tokenizer, 99)
    assert tokenizer.convert_ids_to_tokens(list(spelling.encode(text))) == expected
    assert type(spelling.encode(text)) is tuple


def test_merges_are_used_where_they_cover_the_text_and_else_the_longest_token() -> None:
    spelling = Spelling(byte_level(["a", "b", "ab", "bc"], merges=[("a", "b")]), 99)
    assert spelling.encode(b"ab") == (2,)
    assert spelling.encode(b"abc") == (2,), "c has no token of its own"
    assert spelling.encode(b"bc") == (3,), "no merge makes it"


def test_a_shared_text_has_a_row_for_each_id_and_no_tokens_for_ids_without_one() -> None:
    target, draft = byte_level(["a", "b", "ab"], special=[]), byte_level(["b", "a"], special=[])
    found = Translation(target, 5, draft, 2)
    assert [found.more([token]) for token in range(5)] == [[1], [0], [1, 0], [], []]
    assert found.longest == 2
    assert found.back(5).tolist() == [1, 0, 0, 0, 0]
    assert found.back(5).dtype == found.ids.dtype == found.draft_ids.dtype == torch.int64
    assert (found.text([]), found.text([2, 0])) == ([], [1, 0, 1])


def test_two_shared_tokens_are_enough_and_one_is_refused_in_one_sentence() -> None:
    target = byte_level(["a", "b", "c"], special=[])
    assert Translation(target, 3, byte_level(["b", "a"], special=[]), 2).ids.tolist() == [0, 1]
    with pytest.raises(SpecdecError) as refused:
        Translation(target, 3, byte_level(["b", "x"], special=[]), 2)
    assert str(refused.value) == (
        "the target has 3 tokens and the draft 2, with 1 in common; a draft needs two to choose from: choose one whose "
        "tokens are spelt like the target's"
    )


def test_logits_of_some_tokens_leave_the_others_impossible() -> None:
    logits = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    none = float("-inf")
    assert widened(logits, torch.tensor([3, 1]), 4).tolist() == [[[none, 2, none, 1]], [[none, 4, none, 3]]]
    assert widened(logits, None, 4) is logits
