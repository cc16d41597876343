"""Modules for multi-token prediction: read as their programs read them, refused where they cannot be, run as chains."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchsuite.conformance.models.tiny import ask, registry
from benchsuite.tests.rig import slow_after
from specdec import Assembly, Context, Request, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.arena import Arena
from specdec.model import ArenaModel
from specdec.taps import Taps
from specdec_plugins.drafts.mtp import MtpSteps
from specdec_plugins.published import read_published
from specdec_plugins.published.mtp import alternatives
from specdec_plugins.published.reading import Reading, TargetSizes
from specdec_plugins.reading import known_text

_RECORDED = Path(__file__).parents[1] / "recorded" / "heads" / "mtp"
_WHOLE = ("deepseek", "glm", "qwen3-next", "qwen3.5", "mimo")
"""Checkpoints of whole models, and transformers' logits of their modules."""

_SIZES = TargetSizes(hidden=16, vocabulary=64, layers=2)


@cache
def _assembly(kind: str, dtype: torch.dtype = torch.float32) -> Assembly:
    """The target of a checkpoint; transformers has no kind ``mimo``, whose layers are Qwen2's."""
    folder = _RECORDED / kind
    settings = json.loads((folder / "config.json").read_text())
    model_type = settings.pop("model_type").replace("mimo", "qwen2")
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype)
    found = registry()
    target = ArenaModel(model, found.backend("reference"))
    return Assembly(found, target, catalog.byte_tokenizer(), max_rows=3, max_length=96)


class ModuleInUse:
    """A module in use: its arena follows the text as that of a draft does."""

    def __init__(
        self,
        kind: str,
        head: str | None = None,
        reading: Reading = Reading(),  # noqa: B008  # frozen
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.target = _assembly(kind, dtype).target
        self.published = read_published(_RECORDED / (head or kind), _SIZES, reading)
        self.steps = MtpSteps(self.target, self.published.head)
        self.arena = self.empty()

    def empty(self) -> Arena:
        dtype, device = self.target.dtype, self.target.device
        return Arena(self.steps.layers, rows=1, max_length=64, max_window=32, dtype=dtype, device=device)

    @torch.inference_mode()
    def hidden(self, tokens: Tensor) -> Tensor:
        """The target's states [1, T, H] of a text."""
        return self.target.extend(self.target.arena(1, 64, 32), tokens[None], 0, 0)

    @torch.inference_mode()
    def entered(self, tokens: Tensor, state: Tensor, commit: int | None = None) -> Tensor:
        """States after tokens [W] that follow states [1, W, H]; ``commit`` of them are kept, by default all."""
        plan = self.arena.plan(known_text(tokens[None]), self.target.ops, slice(0, 1), int(self.arena.committed[0]))
        after = self.steps.step(tokens[None], state, plan)
        self.arena.committed += len(tokens) if commit is None else commit
        return after

    @torch.inference_mode()
    def logits(self, state: Tensor) -> Tensor:
        """Logits [..., V] after states."""
        return self.steps.logits(state)

    def proposals(self, last: Tensor, count: int) -> Tensor:
        """Logits [count, V] of a chain of likeliest proposals after the state [1, 1, H] that read the whole text."""
        found = [self.logits(last)[0, 0]]
        while len(found) < count:
            last = self.entered(found[-1].argmax()[None], self.steps.feature(last))
            found.append(self.logits(last)[0, 0])
        self.arena.committed -= count - 1
        return torch.stack(found)


@pytest.mark.parametrize("states", ["after", "before"])
@pytest.mark.parametrize("kind", slow_after(3, _WHOLE))
def test_logits_of_every_step_are_those_of_transformers_from_prefill_and_after_a_rejection(
    kind: str, states: Any
) -> None:
    """The second text has the first nine tokens of the first: what was drafted and read behind them is rejected."""
    run, expected = ModuleInUse(kind, reading=Reading(states=states)), load_file(_RECORDED / f"{kind}.safetensors")
    first, second = expected["0.tokens"], expected["1.tokens"]
    hidden = run.hidden(first[:-1])
    run.entered(first[1:5], hidden[:, :4])  # in two chunks
    found = run.proposals(run.entered(first[5:], hidden[:, 4:])[:, -1:], 4)
    assert torch.allclose(found, expected[f"0.{states}"], atol=1e-4)

    run.arena.committed[:] = 8
    found = run.proposals(run.entered(second[9:], run.hidden(second[:-1])[:, 8:])[:, -1:], 4)
    assert torch.allclose(found, expected[f"1.{states}"], atol=1e-4)


@pytest.mark.parametrize("kind", slow_after(1, ["deepseek", "glm", "qwen3-next", "qwen3.5"]))
def test_in_half_precision_a_step_is_as_near_as_eight_bits_are(kind: str) -> None:
    """What chooses experts stays in float32 as in the target, since a tie that is rounded chooses others."""
    run, expected = ModuleInUse(kind, dtype=torch.bfloat16), load_file(_RECORDED / f"{kind}.safetensors")
    of_target = run.target.model.base_model.state_dict()
    for name, tensor in run.published.head.model.base_model.state_dict().items():
        same = of_target.get(name.replace("layers.0.", "layers.1."))
        assert tensor.dtype == (torch.bfloat16 if same is None else same.dtype)
    text = expected["0.tokens"]
    found = run.logits(run.entered(text[1:], run.hidden(text[:-1]))[:, -1])[0]
    assert found.dtype == torch.float32
    assert (found - expected["0.after"][0]).abs().mean() < 0.03 * expected["0.after"][0].abs().max()


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-next", "qwen3.5"])
def test_logits_of_every_step_and_position_are_those_of_speculators(kind: str) -> None:
    """Each of its steps reads what the step before made, at all positions at once, and the tokens one further."""
    run, expected = ModuleInUse(kind, f"speculators-{kind}"), load_file(_RECORDED / f"speculators-{kind}.safetensors")
    tokens, logits = expected["tokens"], expected["logits"]
    state, size = run.hidden(tokens), logits.shape[1]
    for step, wanted in enumerate(logits):
        run.arena = run.empty()
        state = run.entered(tokens[step + 1 : step + 1 + size], state[:, :size])
        assert torch.allclose(run.logits(state)[0], wanted, atol=1e-4)
    assert len(logits) == 4


_Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def _damaged(folder: Path, kind: str, change: _Change) -> Path:
    """A copy of a checkpoint whose settings and tensors ``change`` has changed."""
    settings = json.loads((_RECORDED / kind / "config.json").read_text())
    tensors = load_file(_RECORDED / kind / "model.safetensors")
    change(settings, tensors)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _transposed(name: str) -> _Change:
    return lambda settings, tensors: tensors.update({name: tensors[name].T.contiguous()})


def _renamed(name: str, other: str) -> _Change:
    return lambda settings, tensors: tensors.update({other: tensors.pop(name)})


def _absent(name: str) -> _Change:
    return lambda settings, tensors: tensors.pop(name)


def _added(name: str, *shape: int) -> _Change:
    return lambda settings, tensors: tensors.update({name: torch.zeros(shape)})


def _said(**keys: object) -> _Change:
    return lambda settings, tensors: settings.update(keys)


def _said_of_layer(**keys: object) -> _Change:
    return lambda settings, tensors: settings["transformer_layer_config"].update(keys)


_EXPERT_2 = "model.layers.2.mlp.experts.2.up_proj.weight"
_DAMAGES: tuple[tuple[str, _Change, str], ...] = (
    ("deepseek", _absent("model.layers.2.hnorm.weight"), r"has no tensor model\.layers\.2\.hnorm\.weight, \[16\]"),
    ("deepseek", _absent(_EXPERT_2), rf"has no tensor {re.escape(_EXPERT_2)}"),
    ("deepseek", _transposed("model.layers.2.eh_proj.weight"), r"eh_proj.*\[32, 16\] \(it is transposed\)"),
    ("deepseek", _added("model.layers.2.mlp.experts.3.up_proj.weight", 8, 16), r"nobody reads: .*experts\.3\.up_proj"),
    ("deepseek", _added("model.layers.3.eh_proj.weight", 16, 32), r"has 2 modules, .*layers\.3.*expected one"),
    ("deepseek", _said(num_nextn_predict_layers=2), r"num_nextn_predict_layers .* is 2 .*expected 1"),
    ("deepseek", _said(scoring_func="softmax"), r"scoring_func .*'softmax'.*expected 'sigmoid'"),
    ("deepseek", _said(quantization_config={"quant_method": "fp8"}), r"quantised weights; convert them to bfloat16"),
    ("deepseek", _said(attention_sinks=4), r"settings that nobody reads: attention_sinks"),
    ("glm", _said(hidden_size=32, vocab_size=65), r"hidden_size is 32 .*the target's 16, vocab_size is 65 .*choose"),
    ("glm", _said(num_hidden_layers=3), r"num_hidden_layers is 3 and the target's 2"),
    ("glm", _renamed("model.layers.2.enorm.weight", "model.layers.2.e_norm.weight"), r"no tensor .*enorm"),
    ("qwen3-next", _added("mtp.layers.1.input_layernorm.weight", 16), r"nobody reads: mtp\.layers\.1\.input_layernorm"),
    ("qwen3.5", _said(mtp_use_dedicated_embeddings=True), r"mtp_use_dedicated_embeddings .* is True .*expected False"),
    ("qwen3.5", _said(mtp_num_hidden_layers=0), r"mtp_num_hidden_layers .* is 0 .*expected 1"),
    ("qwen3.5", _absent("mtp.fc.weight"), r"is of no form that can be read.*expected one of: .*mtp"),
    ("mimo", _said(attention_bias=False), r"attention_bias .* is False .*expected True"),
    ("mimo", _said(use_sliding_window=True), r"use_sliding_window .* is True .*expected False"),
    ("mimo", _said(model_type="mimo2"), r"of the kind 'mimo2', which transformers has not.*mimo"),
    ("speculators-qwen3", _said_of_layer(vocab_size=63), r"vocab_size is 63 and the target's 64"),
    ("speculators-qwen3", _said_of_layer(temperature=1.0), r"nobody reads: transformer_layer_config\.temperature"),
    ("speculators-qwen3", _said(num_nextn_predict_layers=3), r"num_nextn_predict_layers .* is 3 "),
    ("speculators-qwen3", _said(step_weights=[1.0]), r"nobody reads: step_weights"),
    ("speculators-qwen3", _added("t2d", 64), r"tensors that nobody reads: t2d"),
)


@pytest.mark.parametrize(("kind", "change", "words"), _DAMAGES, ids=[f"{i}-{d[0]}" for i, d in enumerate(_DAMAGES)])
def test_a_damaged_or_strange_checkpoint_is_refused_by_the_name_of_what_is_wrong(
    kind: str, change: _Change, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecdecError, match=words):
        read_published(_damaged(tmp_path, kind, change), _SIZES)
    whole = _damaged(tmp_path, kind, lambda settings, tensors: None)
    assert read_published(whole, _SIZES).form == "mtp", "without the damage it is read"


def test_what_was_taken_is_said_and_names_that_differ_in_their_beginning_alone_are_read_in_two_orders() -> None:
    taken = {
        kind: {choice.what: str(choice) for choice in read_published(_RECORDED / kind, _SIZES).choices}
        for kind in (*_WHOLE, "speculators-qwen3")
    }
    assert taken["deepseek"]["order"] == "order=embedding (transformers' MtpModel reads DeepSeek's names so)"
    assert taken["mimo"]["order"] == "order=state (vLLM's MiMoMTP reads MiMo's names so)"
    assert taken["speculators-qwen3"]["order"].startswith("order=embedding (speculators'")
    assert taken["glm"]["embedding"] == "embedding=own (tensor model.layers.2.embed_tokens.weight)"
    assert taken["qwen3.5"]["embedding"] == "embedding=target (no tensor mtp.embed_tokens.weight)"
    assert {choices["states"].partition(" ")[0] for choices in taken.values()} == {"states=after"}
    with pytest.raises(SpecdecError, match=r"has no layers, ids or window: leave these options out"):
        read_published(_RECORDED / "glm", _SIZES, Reading(layers=(1,)))


@pytest.mark.parametrize("kind", slow_after(1, ["mimo", "deepseek", "qwen3-next"]))
def test_every_other_reading_loads_and_computes_something_else(kind: str, tmp_path: Path) -> None:
    """The embeddings of a module are the target's in the files; here they are others, or to read them is no choice."""
    name = "model.layers.2.embed_tokens.weight"
    folder = _damaged(
        tmp_path, kind, lambda _, tensors: name in tensors and tensors.update({name: tensors[name].flip(0)})
    )
    text = load_file(_RECORDED / f"{kind}.safetensors")["0.tokens"]
    readings = {"as it is": Reading()} | alternatives(read_published(folder, _SIZES), _SIZES)
    assert len(readings) == (5 if kind == "deepseek" else 4)
    found = list[Tensor]()
    for reading in readings.values():
        run = ModuleInUse(kind, str(folder), reading)
        hidden = run.hidden(text[:-1])
        if run.published.reading.final == "before":
            hidden = run.target.extend(run.target.arena(1, 64, 32), text[None, :-1], 0, 0, Taps((1,)))
        found.append(run.proposals(run.entered(text[1:], run.steps.feature(hidden))[:, -1:], 2))
    for one, other in itertools.combinations(found, 2):
        assert (one - other).abs().max() > 0.05


def _as_the_target(settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Make MiMo's module compute what its target does: but for the first token, which it never reads.

    The target's second layer adds nothing, and its embeddings have a norm that a norm does not change.
    """
    embedding, size = "model.embed_tokens.weight", 16
    tensors[embedding] *= tensors[embedding].square().mean(1, keepdim=True).rsqrt()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.1.{name}.weight"].zero_()
    start = "model.mtp_layers.0."
    for name in [name for name in tensors if name.startswith("model.layers.0.")]:
        tensors[name.replace("model.layers.0.", start)] = tensors[name].clone()
    tensors[f"{start}token_layernorm.weight"] = torch.ones(size)
    tensors[f"{start}input_proj.weight"] = torch.cat([torch.zeros(size, size), torch.eye(size)], dim=1)
    tensors[f"{start}final_layernorm.weight"] = tensors["model.norm.weight"].clone()


@pytest.fixture(scope="module")
def target_itself(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a target with a module that mostly predicts what it does."""
    return str(_damaged(tmp_path_factory.mktemp("target_itself"), "mimo", _as_the_target))


def _ragged(params: SamplingParams) -> list[Request]:
    """Four requests of different prompts and lengths."""
    prompts = [tuple((7 * row + 5 * place) % 64 for place in range(3 + 2 * row)) for row in range(4)]
    return [Request(row, prompt, replace(params, max_new_tokens=8 + 3 * row)) for row, prompt in enumerate(prompts)]


def _accepted(folder: str, draft: str, policy: str = "match", temperature: float = 0.0) -> float:
    """The share of proposals that are accepted, in a batch of ragged requests whose outputs are plain decoding's."""
    build = _assembly(folder)
    engine = build.engine(draft, policy, k=4)
    params = SamplingParams(temperature=temperature, seed=3)
    work = _ragged(params)
    outputs = [done.tokens for done in engine.run(work)]
    if engine.policy.contract(params) == "exact":
        assert outputs == [build.plain(one) for one in work]
    counts = engine.stats.counts
    return counts["num_accepted_tokens"] / counts["num_draft_tokens"]


@pytest.mark.slow
def test_a_module_is_accepted_as_it_is_read_and_a_misread_one_is_not(target_itself: str) -> None:
    assert _accepted(target_itself, "mtp") > 0.7
    assert _accepted(target_itself, "mtp", temperature=1.0) > 0.7
    assert _accepted(target_itself, "mtp(order=embedding)") < 0.2


def test_proposals_of_a_ragged_batch_are_the_best_of_the_module_over_the_whole_text(target_itself: str) -> None:
    """Rows begin and end at different steps, some propose nothing, and proposals are accepted and rejected."""
    engine, found = _assembly(target_itself).engine("mtp", "tree_rejection", k=3), list[tuple[Tensor, Tensor]]()

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            text = context.tokens[row, : context.length_host[row]].clone()
            found.append((text, window.tokens[row, 1 : int(window.width[row])].clone()))

    ask(engine, [3, 3, 0, 1, 0, 0, 3, 2] * 20)
    engine.trace = keep
    engine.run(_ragged(SamplingParams()))
    run = ModuleInUse(target_itself, target_itself)
    proposing = [(text, proposals) for text, proposals in found if len(proposals)][:12]
    for text, proposals in proposing:
        run.arena = run.empty()
        state = run.entered(text[1:], run.hidden(text[:-1]))[:, -1:]
        for token in proposals:
            logits = run.logits(state)[0, 0]
            assert logits[token] > logits.max() - 1e-4
            state = run.entered(token[None], run.steps.feature(state))
    assert len(proposing) == 12
    counts = engine.stats.counts
    assert 0 < counts["num_accepted_tokens"] < counts["num_draft_tokens"]


def test_a_node_of_a_tree_has_the_state_of_its_path_as_a_chain(target_itself: str) -> None:
    run, text = ModuleInUse("glm"), torch.arange(9) * 5 % 64
    last = run.entered(text[1:], run.hidden(text[:-1]))[:, -1:]
    tokens, parents = torch.tensor([[4, 9, 17, 33]]), torch.tensor([[-1, 0, 0, 1]])
    states = torch.cat([last, torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(0))], dim=1)
    window = Window(tokens, parents, torch.tensor([4]))
    with torch.inference_mode():
        plan = run.arena.plan(window, run.target.ops, slice(0, 1), int(run.arena.committed[0]))
        tree = run.steps.step(tokens, states, plan)
    for path in ([0], [0, 1], [0, 2], [0, 1, 3]):
        chain = run.entered(tokens[0, path], states[:, path], commit=0)
        assert torch.allclose(chain[:, -1], tree[:, path[-1]], atol=1e-5)
