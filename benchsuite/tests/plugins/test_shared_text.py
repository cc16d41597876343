"""How tokens are spelt in every alphabet, how a text is read with the tokens that there are, and what a draft with its
own tokens knows of each row's text on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchsuite.workshop.machines.renamed import byte_level
from specdec import SpecdecError, Verdict, Window
from specdec_plugins.chain import widened
from specdec_plugins.drafts.translated import TranslatedDraft
from specdec_plugins.vocabularies import Spelling, Translation, _byte


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
    assert _byte(token) == byte


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


class Doubled:
    """A translation in which an odd token is two of the draft's, and an even one is one."""

    @staticmethod
    def more(tokens: list[int]) -> list[int]:
        return [token for token in tokens for _ in range(1 + token % 2)]


def draft_with(room: int, window: int) -> Any:
    """The host's part of a draft of two rows."""
    draft: Any = object.__new__(TranslatedDraft)
    draft._room, draft._window, draft._translation = room, window, Doubled()
    draft._text = np.zeros((2, room), dtype=np.int64)
    draft._length, draft._seen, draft._held, draft._drafted = (np.zeros(2, dtype=np.int64) for _ in range(4))
    draft._proposed, draft._ours, draft._steps = None, False, 0
    return draft


def test_a_row_is_open_while_one_more_window_fits() -> None:
    draft = draft_with(10, 3)
    for length, fits in ((0, True), (7, True), (8, False), (30, False)):
        draft._length[1] = length
        assert draft._open(1) is fits


def test_a_text_counts_on_past_its_room_and_writes_no_more() -> None:
    draft = draft_with(6, 1)
    for text, length, held in (
        ([1, 2], 2, [1, 2, 0, 0, 0, 0]),
        ([3, 4, 5], 5, [1, 2, 3, 4, 5, 0]),
        ([6, 7, 8], 8, [1, 2, 3, 4, 5, 6]),
        ([9], 9, [1, 2, 3, 4, 5, 6]),
    ):
        draft._append(1, text)
        assert (draft._length.tolist(), draft._text.tolist()) == ([0, length], [[0] * 6, held])


@pytest.mark.parametrize(
    ("tokens", "ours", "steps", "drafted", "kept"),
    [
        ([2, 4, 6, 8], True, 1, 3, 3),  # three proposals were accepted, and a token that was none
        ([2, 4, 6, 8], True, 1, 2, 2),  # the last proposal was never processed
        ([2, 4, 6, 8], True, 2, 3, 2),  # another step without proposals
        ([2], True, 1, 3, 0),
        ([2, 4], True, 2, 3, 0),  # two steps that accepted nothing
        ([2, 4], True, 1, 3, 1),
        ([2, 4, 6, 8], False, 1, 3, 0),  # another draft's window
    ],
)
def test_cells_of_accepted_proposals_become_cells_of_the_text(
    tokens: list[int], ours: bool, steps: int, drafted: int, kept: int
) -> None:
    draft = draft_with(40, 4)
    draft._length[1], draft._held[1], draft._seen[1], draft._drafted[1] = 5, 5, 4, drafted
    draft._ours, draft._steps = ours, steps
    draft._read(1, np.array(tokens))
    assert (draft._length[1], draft._seen[1], draft._held[1]) == (5 + len(tokens), 4 + len(tokens), 5 + kept)
    draft._ours = False
    draft._read(1, np.array([3], dtype=np.int64))
    assert (draft._length[1], draft._seen[1]) == (7 + len(tokens), 5 + len(tokens)), "one token, two of the draft's"
    assert draft._text[1, 5 : 7 + len(tokens)].tolist() == [*tokens, 3, 3]


def test_the_last_token_of_a_text_is_read_again_and_a_row_that_is_full_holds_nothing() -> None:
    draft = draft_with(10, 3)
    draft._length[1] = draft._held[1] = 4
    none = np.array([], dtype=np.int64)
    for length, held in ((4, 3), (7, 3), (8, 0)):
        draft._length[1] = length
        draft._read(1, none)
        assert draft._held[1] == held
    empty = draft_with(10, 3)
    empty._read(0, none)
    assert (empty._held[0], empty._length[0]) == (0, 0)


def test_the_host_counts_the_steps_since_its_own_window_was_verified() -> None:
    """Only roots may follow: after a window of another draft it no longer knows which tokens were its own."""
    draft = draft_with(10, 3)
    verdict: Any = Verdict(torch.zeros(1, 1).long(), torch.zeros(1).long(), torch.zeros(1).long())

    def window(size: int) -> Window:
        return Window.chain(torch.zeros(1).long(), torch.zeros(1, size - 1).long(), torch.tensor([size - 1]))

    seen = []
    own = draft._proposed = window(3)
    for verified in (own, window(1), window(1), window(2), window(1)):
        draft.observe(verified, verdict, None)
        seen.append((draft._ours, draft._steps, draft._proposed))
    assert seen == [(True, 1, None), (True, 2, None), (True, 3, None), (False, 4, None), (False, 5, None)]
    draft.observe(own, verdict, None)
    assert draft._ours is False, "a window is its own once"
