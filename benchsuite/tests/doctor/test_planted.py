"""Planted misreadings: heads whose files say what is not so, or which are asked for in a wrong reading, are named, and
right heads are not accused."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.doctor.examination import Examination, examine_readings
from benchsuite.doctor.readings import readings_of
from benchsuite.tests.made_up_pair import (
    HIDDEN,
    VOCABULARY,
    MadeUpHead,
    MadeUpMtp,
    made_up_prompts,
    made_up_target,
    write_head,
)
from specdec import Registry, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_plugins.drafts.eagle3 import eagle3
from specdec_plugins.drafts.mtp import mtp

PROMPTS, ROWS, TOKENS, K = 40, 12, 32, 3


@dataclass(frozen=True)
class PlantedHead:
    """A head, what its files say wrongly, the options that it is asked for with, and the name of its right reading
    among the others; "" if it is read rightly."""

    head: MadeUpHead | MadeUpMtp
    right: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    options: str = ""


IDS = "eagle_aux_hidden_state_layer_ids"
OTHERS = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))
HALF = (torch.arange(VOCABULARY) % 2 == 0) & (torch.arange(VOCABULARY) < 256)
HALF = (torch.arange(VOCABULARY) % 2 == 0) & (torch.arange(VOCABULARY) < 256)

MISREAD = {
    "outputs written where inputs are meant": PlantedHead(MadeUpHead(), "layers one later", {IDS: [1, 2, 3]}),
    "norm not said": PlantedHead(MadeUpHead(after=True), "states after the norm fed back", {"norm_output": False}),
    "ids read as offsets": PlantedHead(
        MadeUpHead(tokens=85, stride=2), "d2t as ids", {"d2t": torch.arange(85) * 2}, "ids=offset"
    ),
    "state first": PlantedHead(MadeUpMtp(state_first=True), "the state first in the joined input"),
    "inputs counted from 2": PlantedHead(MadeUpHead(after=True), "layers one earlier", {IDS: [3, 4, 5]}),
    "reverse order": PlantedHead(MadeUpHead(own=True), "layers in the reverse order", {IDS: [4, 3, 2]}),
    "offsets read as ids": PlantedHead(MadeUpHead(tokens=128, stride=2), "d2t as offsets", {}, "ids=id"),
    "embeddings that were left": PlantedHead(MadeUpHead(), "embeddings of the target", {"embed_tokens.weight": OTHERS}),
    "embeddings that were not read": PlantedHead(
        MadeUpHead(own=True), "embeddings of the head", {}, "embedding=target"
    ),
    "states before the target's norm": PlantedHead(
        MadeUpMtp(final="before", states="before"), "the target's states from before its last norm", {}, "states=before"
    ),
    "its own states before the norm": PlantedHead(
        MadeUpMtp(final="before", states="before"), "its own states from before its last norm", {}, "final=before"
    ),
    "a wrong option": PlantedHead(MadeUpHead(), "layers one later", {}, "layers=0-1-2"),
}

RIGHT = {
    "eagle3": PlantedHead(MadeUpHead(), ""),
    "mtp": PlantedHead(MadeUpMtp(), ""),
    "eagle3.1": PlantedHead(MadeUpHead(after=True), ""),
    "own embeddings": PlantedHead(MadeUpHead(own=True), ""),
    "half of the tokens": PlantedHead(MadeUpHead(tokens=128, stride=2), "", {"t2d": HALF}),
    "by options": PlantedHead(MadeUpHead(), "", {IDS: [1, 2, 3]}, "layers=1-2-3"),
}


def plugins() -> Registry:
    """Return the registry with the drafts that read published heads, also where an older installation lacks them."""
    known = registry().names("draft")
    return registry(
        *(("draft", name, draft) for name, draft in (("eagle3", eagle3), ("mtp", mtp)) if name not in known)
    )


def examined(planted: PlantedHead, seed: int, folder: Path) -> Examination:
    """Return the examination of a planted head of ``made_up_target(seed)``, on prompts of this seed."""
    found = plugins()
    target = ArenaModel(made_up_target(seed), found.backend("auto"))
    path = write_head(planted.head, seed, folder / "head", planted.changed)
    form = "eagle3" if isinstance(planted.head, MadeUpHead) else "mtp"
    text = f"{form}(head={path!r}{', ' * bool(planted.options)}{planted.options})"
    readings, choices = readings_of(text, found, target)
    assert choices
    build = Assembly(found, target, catalog.byte_tokenizer(), max_rows=ROWS, max_length=40 + TOKENS + K + 1)
    prompts = made_up_prompts(seed + 1, PROMPTS)
    return examine_readings(build, prompts, readings, k=K, tokens=TOKENS, rows=ROWS)


def test_a_module_in_the_targets_own_checkpoint_has_the_readings_of_its_folder(tmp_path: Path) -> None:
    target = ArenaModel(made_up_target(0), plugins().backend("auto"))
    path = write_head(MadeUpMtp(), 0, tmp_path / "head", {})
    by_folder, choices = readings_of(path, plugins(), target)
    target.model.config.name_or_path = path
    own, same = readings_of("mtp(max_draft=2)", plugins(), target)
    assert [one.name for one in own] == [one.name for one in by_folder]
    assert len(own) > 1
    assert same == choices
    build = Assembly(plugins(), target, catalog.byte_tokenizer(), max_rows=1, max_length=64)
    for one in own:
        assert one.draft.startswith("mtp(max_draft=2")
        build.engine(one.draft, k=K)  # raises for what does not load


@pytest.mark.slow
@pytest.mark.parametrize("name", MISREAD)
def test_a_misread_head_is_named_with_its_right_reading(name: str, tmp_path: Path) -> None:
    found = examined(MISREAD[name], 3, tmp_path)
    assert found.verdict == "read otherwise it accepts more"
    assert MISREAD[name].right in [
        found.best.candidate.name,
        *[other.measured.candidate.name for other in found.as_good],
    ]
    assert found.best.candidate.name == MISREAD[name].right


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_head_is_not_accused(name: str, tmp_path: Path) -> None:
    found = examined(RIGHT[name], 4, tmp_path)
    assert found.verdict == "read rightly"
    assert found.taken.length.share > 0.4


@pytest.mark.deep
def test_twelve_of_twelve_are_named_and_none_of_twelve_is_accused(tmp_path: Path) -> None:
    """With seeds that nobody has seen: ``pytest -s`` prints them, and the text that each verdict needed."""
    named = accused = 0
    for index, (name, planted) in enumerate([*MISREAD.items(), *RIGHT.items(), *RIGHT.items()]):
        seed = secrets.randbelow(2**31)
        found = examined(planted, seed, tmp_path / str(index))
        print(
            json.dumps([name, seed, found.verdict, found.best.candidate.name, found.prompts, found.tokens]), flush=True
        )
        named += bool(planted.right) and found.best.candidate.name == planted.right
        accused += not planted.right and bool(found.better)
    assert (named, accused) == (12, 0)
