"""Heads that draft blocks propose what the package that trains them computes, from a prompt and after rejections."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchsuite.tests.recorded_heads import Led, recorded_assembly, recorded_head, recorded_ids, recorded_steps
from benchsuite.workshop.machines.random_blocks import slots_see_what_they_should
from specdec import SamplingParams, SpecdecError
from specdec_plugins.published import dflash, read_published
from specdec_plugins.published.reading import Reading, TargetSizes

HEADS = ("dflash/plain", "dflash/windows", "dflash/ahead", "dspark/vanilla", "dspark/gated", "dspark/rnn")
SIZES = TargetSizes(hidden=32, vocabulary=258, layers=2)

NEAR = 2e-5
"""Largest difference of a logarithm of a probability: float32 sums in another order."""


def _led(path: str, name: str, temperature: float, options: str = "") -> Led:
    """A draft over the head ``path``, led through the text recorded with ``name``."""
    engine = recorded_assembly().engine(f"{name.partition('/')[0]}(head={path!r}{options})", "rejection", k=3)
    return Led(engine, recorded_steps(name), SamplingParams(temperature=temperature))


@pytest.mark.parametrize("name", HEADS)
def test_blocks_have_the_packages_logits_from_a_prompt_and_after_rejections(name: str) -> None:
    """At every recorded place; a proposal that follows from those before it counts where these are the recorded ones.

    For DSpark the temperature is low, so that they are in most places.
    """
    temperature = 0.1 if name.startswith("dspark") else 1.0
    steps, known, seen = recorded_steps(name), recorded_ids(name), [0, 0, 0]
    places, first = steps["anchors"].tolist(), steps["chains"].shape[1] == 3
    for row, place, window in _led(recorded_head(name), name, temperature).places(3):
        if place not in places:
            continue
        at, drawn = places.index(place), window.tokens[row, 1:].tolist()
        assert window.q is not None
        for slot in range(3):
            if temperature < 1 and drawn[:slot] != steps["chains"][at, :slot].tolist():
                break
            wanted = (steps["logits"][at, slot + first] / temperature).log_softmax(dim=-1)
            apart = (window.q[row, slot, known].log() - wanted)[wanted > -12].abs().max()
            assert apart < NEAR / temperature, (place, slot)
            assert float(window.q[row, slot].sum()) == pytest.approx(1)
            seen[slot] += 1
    assert min(seen) >= 3, "places are missing"


@pytest.mark.parametrize("name", HEADS)
def test_greedy_blocks_are_the_packages_with_its_confidence_in_each_proposal(name: str) -> None:
    steps, seen = recorded_steps(name), 0
    places, first = steps["anchors"].tolist(), steps["chains"].shape[1] == 3
    for row, place, window in _led(recorded_head(name), name, 0.0).places(3):
        if place not in places:
            continue
        at, seen = places.index(place), seen + 1
        assert window.tokens[row, 1:].tolist() == steps["chains"][at, :3].tolist()
        if "confidence" in steps:
            assert window.confidence is not None
            sure = steps["confidence"][at, first : first + 3].sigmoid()
            torch.testing.assert_close(window.confidence[row, 1:], sure, atol=NEAR, rtol=0)
        else:
            assert window.confidence is None
    assert seen == 9


def _logits(path: str, name: str, options: str = "") -> Tensor:
    """Logarithms of q where a text is longer than any window."""
    found = [window.q for _, _, window in _led(path, name, 1.0, options).places(3)]
    return torch.stack([q.log().clamp(min=-20) for q in found[6:9] if q is not None])


@pytest.mark.parametrize("name", ["dflash/windows", "dflash/ahead"])
def test_every_other_reading_that_is_offered_loads_and_computes_something_else(name: str) -> None:
    """And the head's own reading, said in full by options, computes what the file says."""
    path = recorded_head(name)
    read = read_published(path, SIZES)
    own, others = _logits(path, name), dflash.alternatives(read, SIZES)
    assert torch.equal(_logits(path, name, _options(read.reading)), own)
    assert len(others) >= 4
    for said, other in others.items():
        assert not torch.allclose(_logits(path, name, _options(other)), own, atol=1e-3), said


def _options(reading: Reading) -> str:
    said = {field.name: getattr(reading, field.name) for field in fields(reading)}
    texts = {
        name: "-".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in said.items() if v is not None
    }
    return "".join(f", {name}={text!r}" for name, text in texts.items())


def _copied(name: str, folder: Path, config: Callable[[dict[str, Any]], object], tensors: Any = None) -> str:
    """A copy of a recorded head whose config and tensors were changed in place."""
    shutil.copytree(recorded_head(name), folder)
    settings = json.loads((folder / "config.json").read_text())
    config(settings)
    (folder / "config.json").write_text(json.dumps(settings))
    held = load_file(folder / "model.safetensors")
    if tensors is not None:
        tensors(held)
    save_file({key: tensor.contiguous() for key, tensor in held.items()}, folder / "model.safetensors")
    return str(folder)


def _as_the_authors(settings: dict[str, Any]) -> None:
    """The same head with z-lab's keys: layers count outputs, and embeddings and head are the target's."""
    layer = settings["transformer_layer_config"]
    theta = layer.pop("rope_parameters")["rope_theta"]
    flat = {**layer, "rope_theta": theta, "rope_scaling": None, "num_target_layers": 3}
    flat |= {"architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}}
    block = {"mask_token_id": settings["mask_token_id"], "target_layer_ids": [0, 1]}
    block["block_size"] = settings["block_size"]
    settings.clear()
    settings.update({**flat, "dflash_config": block})


def test_the_authors_form_is_the_same_network(tmp_path: Path) -> None:
    """block_size inside or beside dflash_config, ids of outputs; its tokens are all of the target's."""

    def whole(tensors: dict[str, Tensor]) -> None:
        for name in ("t2d", "d2t", "lm_head.weight"):
            del tensors[name]

    def beside(settings: dict[str, Any]) -> None:
        _as_the_authors(settings)
        settings["block_size"] = settings["dflash_config"].pop("block_size")

    sizes = TargetSizes(32, 258, 3)
    paths = [
        _copied("dflash/plain", tmp_path / kind, change, whole)
        for kind, change in (("inside", _as_the_authors), ("beside", beside))
    ]
    heads = [read_published(path, sizes) for path in paths]
    package = read_published(recorded_head("dflash/plain"), SIZES)
    for head in heads:
        assert (head.form, head.dialect, head.reading.layers, head.reading.window) == ("dflash", "z-lab", (0, 1), 0)
        assert head.head.shape.block == package.head.shape.block
        mine, theirs = head.head.state_dict(), package.head.state_dict()
        assert mine.keys() - {"rows", "ids"} == theirs.keys() - {"rows", "ids"}
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


DAMAGES: dict[str, tuple[str, str, Any, Any, str]] = {
    "a layer too few": (
        "dflash",
        "plain",
        lambda s: s["aux_hidden_state_layer_ids"].pop(),
        None,
        r"fc.weight .*\[32, 64\]; expected \[32, 32\]",
    ),
    "the embeddings as a layer": (
        "dflash",
        "plain",
        lambda s: s.update(aux_hidden_state_layer_ids=[0, 1]),
        None,
        "output of layer -1 of its target",
    ),
    "a layer that the target lacks": (
        "dflash",
        "plain",
        lambda s: s.update(aux_hidden_state_layer_ids=[1, 3]),
        None,
        "output of layer 2 of its target",
    ),
    "no layers": (
        "dflash",
        "plain",
        lambda s: s.pop("aux_hidden_state_layer_ids"),
        None,
        r"decides its layers .*name it: dflash\(head=…, layers=",
    ),
    "another size": (
        "dflash",
        "plain",
        lambda s: s["transformer_layer_config"].update(hidden_size=64),
        None,
        "hidden_size in .* is 64, and the target's is 32",
    ),
    "another vocabulary": (
        "dflash",
        "plain",
        lambda s: s["transformer_layer_config"].update(vocab_size=300),
        None,
        "vocab_size in .* is 300",
    ),
    "a mask beyond the vocabulary": (
        "dflash",
        "plain",
        lambda s: s.update(mask_token_id=258),
        None,
        "mask_token_id in .* is 258; expected a token from 0 to 257",
    ),
    "a transposed matrix": (
        "dflash",
        "plain",
        None,
        lambda t: t.update({"fc.weight": t["fc.weight"].T}),
        r"fc.weight .*\(it is transposed\)",
    ),
    "a missing norm": (
        "dflash",
        "plain",
        None,
        lambda t: t.pop("layers.1.self_attn.k_norm.weight"),
        "no tensor layers.1.self_attn.k_norm.weight",
    ),
    "a tensor too many": (
        "dflash",
        "plain",
        None,
        lambda t: t.update({"layers.0.self_attn.g_proj.weight": torch.zeros(2, 2)}),
        "nobody reads: layers.0.self_attn.g_proj.weight",
    ),
    "a key too many": ("dflash", "plain", lambda s: s.update(selector_rank=8), None, "nobody reads: selector_rank"),
    "no width of the window": (
        "dflash",
        "windows",
        lambda s: s["transformer_layer_config"].update(sliding_window=None),
        None,
        r"decides its window \(looked for: layer_types and sliding_window, the width\); name it: .*window=",
    ),
    "a window smaller than a block": (
        "dflash",
        "windows",
        lambda s: s["transformer_layer_config"].update(sliding_window=3),
        None,
        "blocks of 4 slots and a window of 3",
    ),
    "nothing said of a window": (
        "dflash",
        "windows",
        lambda s: s.pop("sliding_window_non_causal"),
        None,
        "decides its inside .*inside=all or inside=causal",
    ),
    "a layer of another kind": (
        "dflash",
        "windows",
        lambda s: s["transformer_layer_config"].update(layer_types=["linear_attention"] * 3),
        None,
        "layer_types in .* holds 'linear_attention'",
    ),
    "a rotary that grows": (
        "dflash",
        "plain",
        lambda s: s["transformer_layer_config"]["rope_parameters"].update(rope_type="dynamic"),
        None,
        "rotary of .* is 'dynamic'; expected default or linear",
    ),
    "a rotary of a part": (
        "dflash",
        "plain",
        lambda s: s["transformer_layer_config"]["rope_parameters"].update(partial_rotary_factor=0.5),
        None,
        "turns a part of each head",
    ),
    "nothing said of the first slot": (
        "dspark",
        "vanilla",
        lambda s: s.pop("sample_from_anchor"),
        None,
        "decides its first .*first=given or first=proposes",
    ),
    "a bias of another kind": (
        "dspark",
        "vanilla",
        lambda s: s.update(markov_head_type="lstm"),
        None,
        "markov_head_type in .* is 'lstm'; expected vanilla, gated, rnn",
    ),
    "a confidence without a token": ("dspark", "vanilla", lambda s: s.update(markov_rank=0), None, "markov_rank is 0"),
    "a gate that is missing": (
        "dspark",
        "gated",
        None,
        lambda t: t.pop("markov_head.gate_proj.bias"),
        "no tensor markov_head.gate_proj.bias",
    ),
    "weights that were never filled": (
        "dspark",
        "rnn",
        None,
        lambda t: t["norm.weight"].fill_(float("nan")),
        "norm.weight .* no finite numbers",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_ambiguous_head_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    form, name, config, tensors, said = DAMAGES[damage]
    path = _copied(f"{form}/{name}", tmp_path / "head", config or (lambda settings: None), tensors)
    with pytest.raises(SpecdecError, match=said):
        read_published(path, SIZES)


def test_what_a_file_leaves_open_an_option_decides(tmp_path: Path) -> None:
    path = _copied("dflash/windows", tmp_path / "head", lambda s: s.pop("sliding_window_non_causal"))
    assert torch.equal(
        _logits(path, "dflash/windows", ", inside=causal"), _logits(recorded_head("dflash/windows"), "dflash/windows")
    )


def test_a_k_beyond_the_block_is_refused_unless_the_most_is_named() -> None:
    path, build = recorded_head("dflash/plain"), recorded_assembly()
    with pytest.raises(SpecdecError, match=r"has 3 proposals, and K is 4 .*dflash\(head=…, max_draft=3\)"):
        build.engine(f"dflash(head={path!r})", k=4)
    with pytest.raises(SpecdecError, match="has 3 proposals, and K is 3 and max_draft 4"):
        build.engine(f"dflash(head={path!r}, max_draft=4)", k=3)
    draft = build.engine(f"dflash(head={path!r}, max_draft=2)", "rejection", k=6)
    led = Led(draft, recorded_steps("dflash/plain"), SamplingParams())
    assert {window.tokens.shape[1] for _, _, window in led.places(6)} == {3}


def test_a_head_of_another_form_and_no_head_are_refused() -> None:
    with pytest.raises(SpecdecError, match=r"is a head of the form dspark; name the draft dspark\(head=…\)"):
        recorded_assembly().engine(f"dflash(head={recorded_head('dspark/rnn')!r})", k=3)
    with pytest.raises(SpecdecError, match=r"none is named: dspark\(head='path/to/head'\)"):
        recorded_assembly().engine("dspark", k=3)


def test_each_slot_of_a_block_sees_what_it_was_trained_to_see() -> None:
    """By brute force: each token of text and block is changed, and the slots whose states change are the due ones."""
    slots_see_what_they_should()
