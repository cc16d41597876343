"""Medusa's published heads: their formula in every dialect, what is refused, and whole runs with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchsuite import conformance
from benchsuite.conformance.claims import failures
from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.tests.rig import Make
from specdec import Context, SamplingParams, SpecdecError, Verdict, Window
from specdec.model import ArenaModel
from specdec.taps import Taps
from specdec_plugins.heads.medusa_heads import MedusaBlocks
from specdec_plugins.published import read_published
from specdec_plugins.published.medusa import alternatives
from specdec_plugins.published.reading import Reading, TargetSizes

_HIDDEN, _VOCABULARY, _HEADS = 32, 258, 3
_SIZES = TargetSizes(_HIDDEN, _VOCABULARY, 2)

_Parts = tuple[dict[str, Any], dict[str, Tensor]]
"""The settings and the tensors of a checkpoint."""


def _drawn(seed: int, *shape: int) -> Tensor:
    drawn: Tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5
    return drawn


def _blocks(layers: int) -> tuple[Tensor, Tensor]:
    """Weights [N, L, H, H] and biases [N, L, H]."""
    return _drawn(1, _HEADS, layers, _HIDDEN, _HIDDEN), _drawn(2, _HEADS, layers, _HIDDEN)


def _of_medusa(layers: int = 1, start: str = "") -> _Parts:
    """As Medusa's repository saves them: its list of heads, each a Sequential of blocks and a Linear."""
    (weight, bias), tensors = _blocks(layers), dict[str, Tensor]()
    for head in range(_HEADS):
        for layer in range(layers):
            tensors[f"{start}{head}.{layer}.linear.weight"] = weight[head, layer].clone()
            tensors[f"{start}{head}.{layer}.linear.bias"] = bias[head, layer].clone()
        tensors[f"{start}{head}.{layers}.weight"] = _drawn(3 + head, _VOCABULARY, _HIDDEN)
    settings = {"medusa_num_heads": _HEADS, "medusa_num_layers": layers, "transformers_version": "4.31.0"}
    return {**settings, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}, tensors


def _of_vllm(layers: int = 2, shared: bool = False, rows: int = 20) -> _Parts:
    """As vLLM has them, without biases and with 20 tokens, of which there are rows or of all tokens."""
    (weight, _), tensors = _blocks(layers), dict[str, Tensor]()
    for head in range(_HEADS):
        for layer in range(layers):
            tensors[f"medusa_heads.blocks.{head}.layers.{layer}.weight"] = weight[head, layer].clone()
        if head == 0 or not shared:
            tensors[f"medusa_heads.lm_heads.{head}.weight"] = _drawn(3 + head, rows, _HIDDEN)
    tensors["token_map"] = torch.arange(20) * 7
    settings = {"num_heads": _HEADS, "num_hidden_layers": layers, "hidden_size": _HIDDEN, "vocab_size": _VOCABULARY}
    settings |= {"truncated_vocab_size": 20, "max_paths": 64, "topk": 10}
    more = {"model_type": "medusa", "architectures": ["MedusaModel"], "original_lm_head": shared}
    return settings | more, tensors


def _saved(folder: Path, parts: _Parts, pickled: bool = False) -> Path:
    settings, tensors = parts
    (folder / "config.json").write_text(json.dumps(settings))
    if pickled:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


def _names(head: int, layer: int) -> tuple[str, str]:
    return f"{head}.{layer}.linear", f"blocks.{head}.layers.{layer}"


def _formula(parts: _Parts, hidden: Tensor) -> list[Tensor]:
    """Logits [D] of each head after a state [H], by section 2.1.1 of the paper, in plain products."""
    tensors = {re.sub(r"^medusa_heads?\.", "", name): tensor for name, tensor in parts[1].items()}
    found = list[Tensor]()
    for head in range(_HEADS):
        state, layer = hidden, 0
        while name := next((one for one in _names(head, layer) if f"{one}.weight" in tensors), ""):
            wide = tensors[f"{name}.weight"] @ state + tensors.get(f"{name}.bias", 0)
            state, layer = state + wide * torch.sigmoid(wide), layer + 1
        rows = [f"{head}.{layer}.weight", f"lm_heads.{head}.weight", "lm_heads.0.weight"]
        matrix = next(tensors[name] for name in rows if name in tensors)
        cut = "token_map" in tensors and len(matrix) == _VOCABULARY
        found.append((matrix[tensors["token_map"]] if cut else matrix) @ state)
    return found


_DIALECTS = {
    "Medusa": _of_medusa(),
    "Medusa of two blocks": _of_medusa(2),
    "Medusa with a prefix": _of_medusa(1, "medusa_head."),
    "vLLM": _of_vllm(),
    "vLLM with one matrix": _of_vllm(1, shared=True),
    "vLLM with rows of all tokens": _of_vllm(1, rows=_VOCABULARY),
}


@pytest.mark.parametrize("dialect", _DIALECTS)
def test_logits_of_every_head_are_the_papers_formula(dialect: str, tmp_path: Path) -> None:
    parts = _DIALECTS[dialect]
    found = read_published(_saved(tmp_path, parts), _SIZES)
    head: MedusaBlocks = found.head
    assert head.rows is not None
    hidden = _drawn(9, 4, _HIDDEN) * 3
    states = head(hidden)
    for row, state in enumerate(hidden):
        for place, logits in enumerate(_formula(parts, state)):
            rows = head.rows if head.rows.dim() == 2 else head.rows[place]
            assert torch.allclose(rows @ states[row, place], logits, atol=1e-5)
    said = {choice.what: str(choice) for choice in found.choices}
    assert said["final"] == "final=after (the heads of Medusa's repository read what its model returns)"
    assert said["ids"] == ("ids=id (tensor token_map)" if "vLLM" in dialect else "ids=all (no token_map)")
    assert head.ids is None or head.ids.tolist() == [*range(0, 140, 7)]
    assert list(alternatives(found, _SIZES).values()) == [Reading(final="before")]


def test_a_pickle_is_read_only_on_demand_and_then_as_weights_alone(tmp_path: Path) -> None:
    folder = _saved(tmp_path, _of_medusa(), pickled=True)
    with pytest.raises(SpecdecError, match=r"medusa_lm_head\.pt .* is a pickle.*pickle=true"):
        read_published(folder, _SIZES)
    read: MedusaBlocks = read_published(folder, _SIZES, pickle=True).head
    assert torch.equal(read.blocks, _blocks(1)[0])

    class Code:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return (print, ("code of a checkpoint was run",))

    torch.save({"0.0.linear.weight": Code()}, folder / "medusa_lm_head.pt")
    with pytest.raises(SpecdecError, match="cannot be read as weights alone"):
        read_published(folder, _SIZES, pickle=True)


def test_fewer_heads_in_the_settings_than_in_the_file_are_said(tmp_path: Path) -> None:
    """The published heads of Vicuna have five and say two: their program loads two unless it is told otherwise."""
    settings, tensors = _of_medusa()
    found = read_published(_saved(tmp_path, (settings | {"medusa_num_heads": 2}, tensors)), _SIZES)
    assert "heads=3 (the tensors; medusa_num_heads 2)" in map(str, found.choices)


def _without(parts: _Parts, name: str) -> _Parts:
    return parts[0], {key: tensor for key, tensor in parts[1].items() if key != name}


def _with(parts: _Parts, **tensors: Tensor) -> _Parts:
    return parts[0], parts[1] | tensors


def _saying(parts: _Parts, **settings: object) -> _Parts:
    return parts[0] | settings, parts[1]


_WRONG: tuple[tuple[_Parts, str], ...] = (
    (_without(_of_medusa(), "1.0.linear.bias"), r"no tensor 1\.0\.linear\.bias, \[32\]"),
    (_without(_of_medusa(), "2.1.weight"), r"no tensor 2\.1\.weight"),
    (_without(_of_medusa(), "1.0.linear.weight"), r"has 1 heads of 1 blocks.*medusa_num_heads 3"),
    (_with(_of_medusa(), **{"0.1.weight": torch.zeros(32, 258)}), r"0\.1\.weight .*\[32, 258\] \(it is transposed\)"),
    (_with(_of_medusa(), **{"3.1.weight": torch.zeros(258, 32)}), r"tensors that nobody reads: 3\.1\.weight"),
    (_saying(_of_medusa(), medusa_num_layers=2), r"medusa_num_layers 2"),
    (_saying(_of_medusa(), medusa_choices=[[0]]), r"settings that nobody reads: medusa_choices"),
    (_saying(_of_vllm(), vocab_size=300), r"vocab_size is 300 and the target's 258"),
    (_saying(_of_vllm(), logit_scale=0.5), r"logit_scale .* is 0\.5 .*expected 1\.0"),
    (_saying(_of_vllm(), medusa_fc_bias=True), r"no tensor medusa_heads\.blocks\.0\.layers\.0\.bias"),
    (_without(_of_vllm(), "token_map"), r"truncated_vocab_size of 20 and no tensor token_map"),
    (
        _with(_of_vllm(), token_map=torch.arange(20) * 14),
        r"token_map .* that are not from 0 to 257",
    ),
    (_with(_of_vllm(), token_map=torch.zeros(20, dtype=torch.int64)), r"token_map .* repeats ids"),
)


@pytest.mark.parametrize(("parts", "words"), _WRONG, ids=range(len(_WRONG)))
def test_damaged_heads_are_refused_by_the_name_of_what_is_wrong(parts: _Parts, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match=words):
        read_published(_saved(tmp_path, parts), _SIZES)


def test_heads_without_rows_read_tokens_with_the_targets(tmp_path: Path, assemble: Make) -> None:
    settings, tensors = _of_medusa()
    parts = settings, {name: tensor for name, tensor in tensors.items() if "linear" in name}
    found = read_published(_saved(tmp_path, parts), _SIZES)
    assert found.head.rows is None
    assert "output=target (no tensor 0.1.weight)" in map(str, found.choices)
    build = assemble(max_rows=2)
    engine = build.engine(f"medusa(head={str(tmp_path)!r})", k=3)
    engine.run(requests(SamplingParams(max_new_tokens=6), count=2))
    rows = build.target.model.get_output_embeddings().weight
    blocks, bias = _blocks(1)
    assert engine.draft is not None
    assert engine.draft.weight_bytes == rows.nbytes + blocks.nbytes + bias.nbytes


@pytest.mark.slow
@pytest.mark.parametrize(("dialect", "final"), [("Medusa", "after"), ("vLLM", "before")])
def test_every_proposal_is_the_best_token_of_its_head_at_the_last_true_state(
    dialect: str, final: str, tmp_path: Path, assemble: Make
) -> None:
    """Rows begin and end at different steps; after a rejection the state is that of the last token that was kept."""
    parts, build = _DIALECTS[dialect], assemble("llama", max_rows=3)
    engine = build.engine(f"medusa(head={str(_saved(tmp_path, parts))!r}, final={final})", "tree_rejection", k=3)
    ids = parts[1].get("token_map", torch.arange(_VOCABULARY))
    taken = list[tuple[Tensor, list[int]]]()

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            text = context.tokens[row, : context.length_host[row]].clone()
            taken.append((text, window.tokens[row, 1 : int(window.width[row])].tolist()))

    engine.trace = keep
    ask(engine, [3, 0, 1, 3, 0, 2] * 30)
    engine.run(requests(SamplingParams(max_new_tokens=8), count=4))
    for text, proposals in taken:
        best = _formula(parts, _last_state(build.target, text[:-1], final))
        for place, token in enumerate(proposals):
            place_of = (ids == token).nonzero()[0, 0]
            assert best[place][place_of] > best[place].max() - 1e-4
    assert {len(proposals) for _, proposals in taken} == {0, 1, 2, 3}


@torch.inference_mode()
def _last_state(target: ArenaModel, text: Tensor, final: str) -> Tensor:
    taps = Taps((1,)) if final == "before" else Taps()
    states: Tensor = target.extend(target.arena(1, 320, 256), text[None], 0, 0, taps)[0, -1].flatten()
    return states


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ", beam=2, final=before"])
def test_steps_with_published_heads_are_fit_for_a_gpu_and_texts_go_on(options: str, tmp_path: Path) -> None:
    """Checks of the kit, over its own target; the others are those of all that medusa drafts."""
    folder = _saved(tmp_path, _of_vllm())
    kit = conformance.draft(f"medusa(head={str(folder)!r}{options})", trees="beam" in options, sampled=not options)
    kit.windows, kit.repeats = 8, 2
    assert not [*failures(kit, only="fit_for_a_gpu|goes_on_is_a_text")]
