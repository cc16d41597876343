"""Planted misreadings: heads whose files say what is not so, or which are asked for in a wrong reading, are named, and
right heads are not accused."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.conformance.models.tiny import registry
from benchsuite.doctor.examination import Examination, examine_readings
from benchsuite.doctor.readings import readings_of
from benchsuite.tests.made_up_echo import HIDDEN as ECHO_HIDDEN
from benchsuite.tests.made_up_echo import MARK, MadeUpBlock, MadeUpMedusa, MadeUpPeagle
from benchsuite.tests.made_up_models import VOCABULARY, MadeUp, made_up_prompts, write_head
from benchsuite.tests.made_up_pair import HIDDEN, MadeUpHead, MadeUpMtp, made_up_target
from specdec import Registry, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_plugins.drafts.dflash import DFlash, DSpark
from specdec_plugins.drafts.eagle3 import eagle3
from specdec_plugins.drafts.mtp import mtp
from specdec_plugins.drafts.peagle import peagle

PROMPTS, ROWS, TOKENS, K = 40, 12, 32, 3


@dataclass(frozen=True)
class PlantedHead:
    """A head, what its files say wrongly, the options that it is asked for with, and the name of its right reading
    among the others; "" if it is read rightly."""

    head: MadeUp
    right: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    options: str = ""


IDS, TAPS = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"
OTHERS, ECHO_OTHERS = (
    torch.randn(VOCABULARY, size, generator=torch.Generator().manual_seed(1)) for size in (HIDDEN, ECHO_HIDDEN)
)
ECHO_OTHERS[:, MARK] = 0
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
        MadeUpHead(own=True), "embedding=own (as the head says)", {}, "embedding=target"
    ),
    "states before the target's norm": PlantedHead(
        MadeUpMtp(final="before", states="before"), "the target's states from before its last norm", {}, "states=before"
    ),
    "its own states before the norm": PlantedHead(
        MadeUpMtp(final="before", states="before"), "its own states from before its last norm", {}, "final=before"
    ),
    "a wrong option": PlantedHead(MadeUpHead(), "layers one later", {}, "layers=0-1-2"),
    "dflash: outputs where inputs are meant": PlantedHead(MadeUpBlock(), "layers one later", {TAPS: [1, 2, 3]}),
    "dflash: outputs counted from -1": PlantedHead(
        MadeUpBlock(authors=True),
        "layers one later",
        {"dflash_config": {"mask_token_id": 257, "target_layer_ids": [0, 1, 2]}},
    ),
    "dflash: reverse order": PlantedHead(MadeUpBlock(), "layers in reverse order", {TAPS: [4, 3, 2]}),
    "dflash: the first slot gives": PlantedHead(
        MadeUpBlock(), "the block's first slot proposes nothing", {"sample_from_anchor": True}
    ),
    "dflash: the first slot proposes": PlantedHead(
        MadeUpBlock(proposes=True), "the block's first slot proposes", {"sample_from_anchor": False}
    ),
    "dflash: slots see later ones": PlantedHead(
        MadeUpBlock(inside="causal"),
        "no slot sees later ones in a layer with a window",
        {"sliding_window_non_causal": True},
    ),
    "dflash: no slot sees later ones": PlantedHead(
        MadeUpBlock(inside="all", near=True),
        "slots see later ones in a layer with a window",
        {"sliding_window_non_causal": False},
    ),
    "dflash: causal by an option": PlantedHead(
        MadeUpBlock(inside="all", near=True, authors=True),
        "slots see later ones in a layer with a window",
        {},
        "inside=causal",
    ),
    "dflash: window not read": PlantedHead(MadeUpBlock(near=True), "window=8 (as the head says)", {}, "window=0"),
    "dflash: ids read as offsets": PlantedHead(
        MadeUpBlock(tokens=85, stride=2), "d2t as id", {"d2t": torch.arange(85) * 2}, "ids=offset"
    ),
    "dflash: offsets read as ids": PlantedHead(MadeUpBlock(tokens=128, stride=2), "d2t as offset", {}, "ids=id"),
    "dflash: embeddings that were not read": PlantedHead(
        MadeUpBlock(own=True), "embedding=own (as the head says)", {}, "embedding=target"
    ),
    "dflash: embeddings that were left": PlantedHead(
        MadeUpBlock(), "the target's embeddings", {"embed_tokens.weight": ECHO_OTHERS}
    ),
    "dspark: the first slot gives": PlantedHead(
        MadeUpBlock("dspark"), "the block's first slot proposes nothing", {"sample_from_anchor": True}
    ),
    "dspark: inputs counted from 2": PlantedHead(
        MadeUpBlock("dspark", proposes=True), "layers one earlier", {TAPS: [3, 4, 5]}
    ),
    "dspark: window not read": PlantedHead(
        MadeUpBlock("dspark", near=True), "window=8 (as the head says)", {}, "window=0"
    ),
    "peagle: outputs where inputs are meant": PlantedHead(MadeUpPeagle(), "layers one later", {IDS: [1, 2, 3]}),
    "peagle: reverse order": PlantedHead(MadeUpPeagle(), "layers in the reverse order", {IDS: [4, 3, 2]}),
    "peagle: another mask": PlantedHead(MadeUpPeagle(), "mask=257 (as the head says)", {}, "mask=7"),
    "peagle: window not read": PlantedHead(MadeUpPeagle(near=True), "a window of 8", {}, "window=0"),
    "peagle: embeddings that were not read": PlantedHead(
        MadeUpPeagle(own=True), "embedding=own (as the head says)", {}, "embedding=target"
    ),
    "medusa: states before the norm": PlantedHead(
        MadeUpMedusa(), "the target's states from after its last norm", {}, "final=before"
    ),
    "medusa: states after the norm": PlantedHead(
        MadeUpMedusa(final="before"), "the target's states from before its last norm"
    ),
}

RIGHT = {
    "eagle3": PlantedHead(MadeUpHead(), ""),
    "mtp": PlantedHead(MadeUpMtp(), ""),
    "eagle3.1": PlantedHead(MadeUpHead(after=True), ""),
    "own embeddings": PlantedHead(MadeUpHead(own=True), ""),
    "half of the tokens": PlantedHead(MadeUpHead(tokens=128, stride=2), "", {"t2d": HALF}),
    "by options": PlantedHead(MadeUpHead(), "", {IDS: [1, 2, 3]}, "layers=1-2-3"),
    "dflash": PlantedHead(MadeUpBlock(tokens=128, stride=2), "", {"t2d": HALF}),
    "dflash: every slot proposes": PlantedHead(MadeUpBlock(proposes=True, own=True), ""),
    "dflash: a window": PlantedHead(MadeUpBlock(near=True), ""),
    "dflash: all of the block": PlantedHead(MadeUpBlock(inside="all"), ""),
    "dflash: none behind": PlantedHead(MadeUpBlock(inside="causal"), ""),
    "dflash: its authors' form": PlantedHead(MadeUpBlock(authors=True), ""),
    "dspark": PlantedHead(MadeUpBlock("dspark", proposes=True), ""),
    "peagle": PlantedHead(MadeUpPeagle(), ""),
    "peagle: a window": PlantedHead(MadeUpPeagle(near=True, own=True), ""),
    "medusa": PlantedHead(MadeUpMedusa(), ""),
    "medusa: by an option": PlantedHead(MadeUpMedusa(final="before"), "", {}, "final=before"),
}


def plugins() -> Registry:
    """Return the registry with the drafts that read published heads, also where an older installation lacks them."""
    known = registry().names("draft")
    drafts: dict[str, Callable[..., Any]] = {
        "eagle3": eagle3,
        "mtp": mtp,
        "dflash": DFlash,
        "dspark": DSpark,
        "peagle": peagle,
    }
    return registry(*(("draft", name, draft) for name, draft in drafts.items() if name not in known))


def examined(planted: PlantedHead, seed: int, folder: Path) -> Examination:
    """Return the examination of a planted head of its target of a seed, on prompts of this seed."""
    found = plugins()
    target = ArenaModel(planted.head.target(seed), found.backend("auto"))
    path = write_head(planted.head, seed, folder / "head", planted.changed)
    text = f"{planted.head.form}(head={path!r}{', ' * bool(planted.options)}{planted.options})"
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


def planted_cases(table: Mapping[str, PlantedHead]) -> list[Any]:
    """Return the names of a table: one of each form, and the others for --specdec-deep."""
    first = dict[str, str]()
    for name, planted in table.items():
        first.setdefault(planted.head.form, name)
    return [pytest.param(name, marks=() if name in first.values() else pytest.mark.deep) for name in table]


@pytest.mark.slow
@pytest.mark.parametrize("name", planted_cases(MISREAD))
def test_a_misread_head_is_named_with_its_right_reading(name: str, tmp_path: Path) -> None:
    found = examined(MISREAD[name], 3, tmp_path)
    assert found.verdict == "read otherwise it accepts more"
    assert found.best.candidate.name == MISREAD[name].right


@pytest.mark.slow
@pytest.mark.parametrize("name", planted_cases(RIGHT))
def test_a_right_head_is_not_accused(name: str, tmp_path: Path) -> None:
    found = examined(RIGHT[name], 4, tmp_path)
    assert found.verdict == "read rightly"
    assert found.taken.length.share > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "changed", "skilled"),
    [
        pytest.param(MadeUpBlock(), {"mask_token_id": 7}, False, id="dflash"),
        pytest.param(MadeUpPeagle(), {"mask_token_id": 7}, True, id="peagle"),
    ],
)
def test_a_head_that_no_reading_puts_right_is_not_called_right(
    head: MadeUp, changed: Mapping[str, Any], skilled: bool, tmp_path: Path
) -> None:
    """Its file names another mask than it was trained with, and nothing in it says which: it accepts by chance, or, if
    its first proposal needs no mask, falls off behind that."""
    found = examined(PlantedHead(head, "", changed), 5, tmp_path)
    assert found.verdict == "cannot tell"
    assert (found.taken.skilled, found.taken.collapses) == (skilled, skilled)


@pytest.mark.deep
def test_every_misreading_is_named_and_no_right_head_is_accused(tmp_path: Path) -> None:
    """With seeds that nobody has seen: ``pytest -s`` prints them, and the text that each verdict needed."""
    named, accused = list[str](), list[str]()
    for index, (name, planted) in enumerate([*MISREAD.items(), *RIGHT.items(), *RIGHT.items()]):
        seed = secrets.randbelow(2**31)
        found = examined(planted, seed, tmp_path / str(index))
        print(
            json.dumps([name, seed, found.verdict, found.best.candidate.name, found.prompts, found.tokens]), flush=True
        )
        if found.better:
            (named if found.best.candidate.name == planted.right else accused).append(name)
    assert (named, accused) == ([*MISREAD], [])
