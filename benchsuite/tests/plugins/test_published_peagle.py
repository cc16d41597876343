"""P-EAGLE heads propose what the package that trains them computes, at all places of one forward."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchsuite.tests.recorded_heads import Led, recorded_assembly, recorded_head, recorded_ids, recorded_steps
from specdec import SamplingParams, SpecdecError, Window
from specdec_plugins.published import peagle, read_published
from specdec_plugins.published.reading import TargetSizes

SIZES = TargetSizes(hidden=32, vocabulary=258, layers=2)

NEAR = 2e-5
"""Largest difference of a logarithm of a probability: float32 sums in another order."""


def _led(path: str, name: str, options: str = "", temperature: float = 1.0, k: int = 4) -> Led:
    """A draft led through a recorded text. Of the text the package has no first token: entry t is of token t + 1."""
    steps = recorded_steps(name)
    whole = {**steps, "tokens": torch.cat([torch.tensor([9]), steps["tokens"]])}
    engine = recorded_assembly().engine(f"peagle(head={path!r}{options})", "rejection", k=k)
    return Led(engine, whole, SamplingParams(temperature=temperature))


def _recorded(name: str, place: int) -> Tensor | None:
    """The package's logits [4, D] behind the token at ``place``: of the entry before it, then of three masks."""
    steps = recorded_steps(name)
    anchors = steps["anchors"].tolist()
    if place - 1 not in anchors:
        return None
    return torch.cat([steps["entries"][place - 1][None], steps["masks"][anchors.index(place - 1)]])


@pytest.mark.parametrize("name", ["peagle/qwen3", "peagle/llama"])
def test_masks_have_the_packages_logits_from_a_prompt_and_after_rejections(name: str) -> None:
    """K = 4, so that three masks follow; and the likeliest tokens at temperature 0 are the package's."""
    known, seen = recorded_ids(name), 0
    for temperature in (1.0, 0.0):
        for row, place, window in _led(recorded_head(name), name, temperature=temperature).places(4, 2):
            logits = _recorded(name, place)
            if logits is None:
                continue
            seen += 1
            if temperature:
                assert window.q is not None
                wanted = logits.log_softmax(dim=-1)
                apart = (window.q[row][:, known].log() - wanted)[wanted > -12].abs().max()
                assert apart < NEAR, place
                assert window.q[row].sum(dim=1).tolist() == pytest.approx([1] * 4)
            else:
                assert window.tokens[row, 1:].tolist() == known[logits.argmax(dim=1)].tolist()
    assert seen == 18


def test_one_forward_makes_all_proposals_behind_the_first() -> None:
    """Counted with that of each step's entries: two a step, however large K is, and one where K is 1."""
    for k, forwards in ((1, 1), (2, 2), (4, 2)):
        led = _led(recorded_head("peagle/llama"), "peagle/llama", k=k)
        steps = sum(1 for row, _, _ in led.places(k, 2) if row == 0) if k >= 3 else 1
        if k < 3:
            led.begin(0, 2)
            led.window(1, k)
            led.keep((0,), k + 1)
        assert led.draft.info()["draft_forwards"] == forwards * steps


def _window_at(path: str, options: str = "") -> Tensor:
    found: list[Window] = [window for _, _, window in _led(path, "peagle/llama", options).places(4, 2)]
    assert found[6].q is not None
    return found[6].q


def test_every_other_reading_that_is_offered_loads_and_computes_something_else() -> None:
    path = recorded_head("peagle/llama")
    own, others = _window_at(path), peagle.alternatives(read_published(path, SIZES), SIZES)
    assert len(others) >= 2
    for said, other in others.items():
        assert other.layers is not None
        layers = "-".join(map(str, other.layers))
        options = f", layers={layers!r}, embedding={other.embedding}, window='{other.window}', mask='{other.mask}'"
        assert not torch.allclose(_window_at(path, options), own, atol=1e-3), said


def _copied(folder: Path, change: Any, tensors: Any = lambda held: None) -> str:
    shutil.copytree(recorded_head("peagle/llama"), folder)
    settings = json.loads((folder / "config.json").read_text())
    change(settings)
    (folder / "config.json").write_text(json.dumps(settings))
    held = load_file(folder / "model.safetensors")
    tensors(held)
    save_file(held, folder / "model.safetensors")
    return str(folder)


def _as_specforge(settings: dict[str, Any]) -> None:
    """SpecForge's keys: those of one config, without the mask's token and the layers."""
    layer = settings.pop("transformer_layer_config")
    kept = {name: settings[name] for name in ("draft_vocab_size", "fc_norm", "norm_before_residual")}
    theta = layer.pop("rope_parameters")["rope_theta"]
    settings.clear()
    settings.update({**layer, **kept, "rope_theta": theta, "architectures": ["PEagleDraftModel"]})


def test_what_specforge_leaves_out_is_asked_for_and_then_it_is_the_same_head(tmp_path: Path) -> None:
    path = _copied(tmp_path / "head", _as_specforge)
    with pytest.raises(SpecdecError, match=r"nothing in the head decides its mask .*peagle\(head=…, mask="):
        _window_at(path)
    with pytest.raises(SpecdecError, match="nothing in the head decides its layers"):
        _window_at(path, ", mask='257'")
    assert torch.equal(_window_at(path, ", mask='257', layers='0-1'"), _window_at(recorded_head("peagle/llama")))


@pytest.mark.parametrize(
    ("change", "tensors", "said"),
    [
        (lambda s: s.update(mask_token_id=258), None, "token 258 .* from 0 to 257"),
        (lambda s: None, lambda t: t.pop("mask_hidden"), "no tensor mask_hidden"),
        (lambda s: None, lambda t: t.update(mask_hidden=torch.ones(1, 1, 96)), r"mask_hidden .*\[1, 1, 96\]"),
        (lambda s: s.update(speculators_model_type="eagle3"), None, "nobody reads: .*mask_token_id"),
        (lambda s: None, lambda t: t.pop("fc_norm.1.weight"), "no tensor fc_norm.1.weight"),
        (lambda s: s.update(eagle_aux_hidden_state_layer_ids=[1, 2, 3]), None, "names 3 layers .* 2 states"),
    ],
    ids=["mask", "states", "three", "eagle3", "norm", "layers"],
)
def test_a_damaged_head_is_refused_by_name(change: Any, tensors: Any, said: str, tmp_path: Path) -> None:
    path = _copied(tmp_path / "head", change, tensors or (lambda held: None))
    with pytest.raises(SpecdecError, match=said):
        read_published(path, SIZES)


def test_wrong_options_and_a_head_of_another_form_are_refused() -> None:
    for options, said in (
        (f"head={recorded_head('dspark/rnn')!r}", r"is a head of the form dspark; name the draft dspark\(head=…\)"),
        ("", "none is named"),
        (f"head={recorded_head('peagle/llama')!r}, max_draft=-1", "max_draft=-1; expected 0 or more"),
        (f"head={recorded_head('peagle/llama')!r}, mask=last", "mask is 'last'; expected a token's id"),
    ):
        with pytest.raises(SpecdecError, match=said):
            recorded_assembly().engine(f"peagle({options})", k=3)
