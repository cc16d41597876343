"""How a published head is read: each convention is said with its source, and refused where nothing decides it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from specdec import SpecdecError
from specdec_plugins.published import read_published
from specdec_plugins.published.checkpoint import Checkpoint
from specdec_plugins.published.reading import Choice, Published, Reading, TargetSizes, draft_ids, settled

SIZES = TargetSizes(hidden=4, vocabulary=40, layers=3)


def test_options_become_a_reading_and_wrong_ones_are_refused() -> None:
    assert Reading.of(layers="2-15-27", ids="offset", window="0", states="") == Reading(
        layers=(2, 15, 27), ids="offset", window=0
    )
    assert Reading.of(layers=2, window=0) == Reading(layers=(2,), window=0)
    for options in ({"layers": "2,15"}, {"layers": "2-"}, {"ids": "offsets"}, {"window": "-1"}, {"states": "post"}):
        with pytest.raises(SpecdecError, match=r"; expected "):
            Reading.of(**options)


def test_an_option_goes_before_the_file_and_nothing_is_guessed() -> None:
    stated: list[tuple[tuple[int, ...] | None, str]] = [(None, "aux_ids"), ((1, 2), "eagle_config.aux_ids")]
    example = "eagle3(head=…, layers=2-15-27)"
    assert settled("layers", (3,), stated, example) == Choice("layers", (3,), "option layers", instead=(1, 2))
    assert settled("layers", (1, 2), stated, example) == Choice("layers", (1, 2), "option layers")
    assert settled("layers", (3,), stated[:1], example).instead is None
    assert str(settled("layers", None, stated, example)) == "layers=1-2 (eagle_config.aux_ids)"
    with pytest.raises(SpecdecError, match=r"decides its layers \(looked for: aux_ids\); name it: eagle3"):
        settled("layers", None, stated[:1], example)


@given(st.sets(st.integers(0, 39), min_size=1))
def test_ids_and_offsets_of_the_same_tokens_are_told_apart_by_the_targets_marks(tokens: set[int]) -> None:
    ids = torch.tensor(sorted(tokens))
    t2d = torch.zeros(40, dtype=torch.bool)
    t2d[ids] = True
    place = torch.arange(len(ids))
    for name, d2t in (("offset", ids - place), ("id", ids)):
        got, choice = draft_ids(d2t, t2d, 40, None, "")
        assert torch.equal(got, ids)
        assert choice.value == name or torch.equal(ids, ids - place)
        assert torch.equal(draft_ids(d2t, None, 40, name, "")[0], ids)


def test_without_marks_a_reading_is_taken_only_if_the_other_is_impossible() -> None:
    """All pairs of tokens of a small vocabulary, by brute force: what d2t may mean is what no reading but one gives."""
    for d2t in itertools.product(range(-1, 6), repeat=2):
        meant = {"offset": (d2t[0], d2t[1] + 1), "id": d2t}
        able = [name for name, ids in meant.items() if len({*ids} & {*range(5)}) == 2]
        if len(able) == 1:
            ids, choice = draft_ids(torch.tensor(d2t), None, 5, None, "")
            assert ([choice.value], tuple(ids.tolist())) == (able, meant[able[0]])
        else:
            with pytest.raises(SpecdecError, match=r"name the reading: ids=id"):
                draft_ids(torch.tensor(d2t), None, 5, None, "ids=id")


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    t2d = torch.zeros(8, dtype=torch.bool)
    t2d[[1, 5, 7]] = True
    assert draft_ids(torch.tensor([1, 4, 5]), t2d, 8, None, "")[1].value == "offset"
    with pytest.raises(SpecdecError, match=r"t2d marks 3 tokens, and the 2 of d2t are others"):
        draft_ids(torch.tensor([1, 4]), t2d, 8, None, "")
    with pytest.raises(SpecdecError, match=r"both as offset and as id in a vocabulary of 8.*name the reading: ids"):
        draft_ids(torch.tensor([0, 1, 2]), None, 8, None, "ids=id")
    with pytest.raises(SpecdecError, match=r"neither as offset nor as id in a vocabulary of 8"):
        draft_ids(torch.tensor([0, 0, 9]), None, 8, None, "")
    with pytest.raises(SpecdecError, match=r"read as id gives ids that repeat or are not from 0 to 7"):
        draft_ids(torch.tensor([0, 0, 4]), None, 8, "id", "")


@dataclass
class Made:
    """A reader of checkpoints whose ``kind`` is its own name, with or without what it is told to leave."""

    FORM: str
    leaves: bool = False

    def knows(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.settings.peek("kind") in (self.FORM, "any")

    def read(self, checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[Any]:
        if not self.leaves:
            checkpoint.settings.harmless("kind", "architectures")
        checkpoint.tensors.take("norm.weight", (sizes.hidden,))
        return Published(self.FORM, "made", nn.Identity(), reading, ())

    def alternatives(self, published: Published[Any], sizes: TargetSizes) -> dict[str, Reading]:
        return {}


def test_exactly_one_form_knows_a_head_and_leaves_nothing(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")

    def get(kind: str, *forms: Made) -> Published[Any]:
        (tmp_path / "config.json").write_text(json.dumps({"kind": kind, "architectures": ["X"]}))
        return read_published(tmp_path, SIZES, forms=forms)

    assert get("b", Made("a"), Made("b")).form == "b"
    with pytest.raises(SpecdecError, match=r"no form that can be read: architectures \['X'\].*expected one of: a, b"):
        get("c", Made("a"), Made("b"))
    with pytest.raises(SpecdecError, match=r"could be of the forms a, b: "):
        get("any", Made("a"), Made("b"))
    with pytest.raises(SpecdecError, match=r"settings that nobody reads: architectures, kind"):
        get("b", Made("b", leaves=True))
