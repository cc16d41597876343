"""What heads learn from and how: labels, losses, schedules, judgements and first weights, computed again by hand."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models import families
from specdec_kernels.reference import Reference
from specdec_plugins.heads import corpus, files, start, training
from specdec_plugins.heads.corpus import Corpus
from specdec_plugins.heads.eagle_head import EagleHead, EagleShape
from specdec_plugins.heads.medusa_heads import MedusaHeads
from specdec_plugins.heads.muon import OwnDtypeMuon
from specdec_plugins.heads.training import Reader

OPS = Reference()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_reader(vocabulary: int = 9, size: int = 5) -> Reader:
    """A head of the target of which every second token is read."""
    return Reader(randn(vocabulary, size, seed=1), torch.arange(0, vocabulary, 2), torch.float32)


def test_the_reduced_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    tokens = torch.tensor([[5, 5, 5, 2], [7, 7, 1, 1]])
    assert training.frequent(tokens, 3).tolist() == [1, 5, 7], "of equals the lower ids"
    assert training.frequent(tokens, 2).tolist() == [1, 5]
    assert training.frequent(tokens, 9).tolist() == [1, 2, 5, 7]


def test_a_corpus_draws_the_likeliest_token_at_temperature_0_and_by_its_distribution_else() -> None:
    """Of equal logits always the same one; the shares of 4,000 draws are within five deviations."""
    dice, many = torch.Generator().manual_seed(3), 4000
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).expand(many, 4)
    assert len(set(corpus._draw(logits, torch.zeros(many), dice).tolist())) == 1
    drawn = corpus._draw(logits, torch.full((many,), 2.0), dice)
    expected = (logits[0] / 2).softmax(dim=0)
    apart = (drawn.bincount(minlength=4) / many - expected).abs()
    assert (apart < 5 * (expected * (1 - expected) / many).sqrt()).all()


def test_training_begins_from_norms_of_one_and_matrices_of_a_fiftieth() -> None:
    """As the models begin that such heads are trained for; larger ones do not learn in the same steps."""
    torch.manual_seed(0)
    shape = EagleShape(hidden=64, intermediate=96, heads=4, heads_kv=2, head_dim=16, eps=1e-5, theta=1e4)
    for name, weight in EagleHead(shape).named_parameters():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones(64)), name
        else:
            assert weight.std().item() == pytest.approx(0.02, rel=0.1), name


def test_labels_are_half_the_targets_distribution_and_half_its_likeliest_token() -> None:
    one, hidden = small_reader(), randn(4, 3, 5)
    assert torch.equal(one.rows, one.whole[one.ids])
    logits = hidden @ one.rows.T
    expected = 0.5 * logits.softmax(dim=-1) + 0.5 * torch.nn.functional.one_hot(logits.argmax(-1), 5)
    torch.testing.assert_close(training.labels(one, hidden), expected)
    torch.testing.assert_close(one.logits(hidden), logits)


def test_an_estimate_counts_if_it_is_of_an_answers_token_and_every_step_has_it() -> None:
    answer = torch.tensor([[True, True, True, False, True], [False, False, False, True, True]])
    assert training.counted(answer, 0).tolist() == [[True, True, False, True], [False, False, True, True]]
    assert training.counted(answer, 2).tolist() == [[False, False, False, True], [False, False, True, True]]
    assert answer[0, 1], "the corpus is left as it is"


def test_the_loss_fades_with_each_unrolled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one, hidden, states = small_reader(), randn(2, 6, 5), [randn(2, 5, 5, seed=seed) for seed in (3, 4, 5)]
    answer = torch.tensor([[True] * 6, [True, True, True, True, False, True]])
    asked: list[Any] = []

    def unrolled(*given: Any) -> list[Tensor]:
        asked.append(given)
        return states[: given[-1]]

    monkeypatch.setattr(training, "unrolled", unrolled)
    head: Any = "head"
    embedded = randn(2, 5, 5, seed=9)
    for steps in (1, 3):
        found = training.loss_of(head, OPS, one, embedded, hidden, answer, steps)
        counts = [(row, t) for row in range(2) for t in range(steps, 5) if answer[row, t + 1]]
        total = 0.0
        for fed in range(steps):
            losses = []
            for row, t in counts:
                wanted = training.labels(one, hidden[row, t + 1])
                losses.append(float(-(wanted * one.logits(states[fed][row, t]).log_softmax(dim=-1)).sum()))
            total += 0.8**fed * sum(losses) / len(losses)
        assert float(found) == pytest.approx(total, rel=1e-5)
        given = asked.pop()
        assert given[:2] == (head, OPS)
        assert torch.equal(given[2], embedded)
        assert torch.equal(given[3], hidden[:, :-1])


def test_a_judgement_counts_the_chains_that_begin_at_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six conversations, so that there are several batches; states that are right about half of the time."""
    one, hidden, steps = small_reader(), randn(6, 8, 5).bfloat16(), 3
    tokens, answer = torch.randint(0, 9, (6, 8)), randn(6, 8, seed=7) > -1
    embed = randn(9, 5, seed=8)
    noise = [randn(6, 7, 5, seed=20 + fed) for fed in range(steps)]
    wanted = (hidden[:, 1:].float() @ one.whole.T).argmax(dim=-1)
    at = 0

    def unrolled(head: Any, ops: Any, embedded: Tensor, states: Tensor, count: int) -> list[Tensor]:
        nonlocal at
        size = len(states)
        assert torch.equal(embedded, embed[tokens[at : at + size, 1:]])
        assert torch.equal(states, hidden[at : at + size, :-1].float())
        at += size
        rows = slice(at - size, at)
        return [hidden[rows, 1:].float() + 0.7 * noise[fed][rows] for fed in range(count)]

    monkeypatch.setattr(training, "unrolled", unrolled)
    head: Any = None
    found = training.judge(head, OPS, one, embed, Corpus(tokens, hidden, answer), steps)
    assert at == 6
    kept, tried = [0] * steps, [0] * steps
    for row in range(6):
        for first in range(7):
            for fed in range(steps):
                place = first + fed
                if place > 6 or place < steps or not answer[row, place + 1]:
                    break
                tried[fed] += 1
                state = hidden[row, place + 1].float() + 0.7 * noise[fed][row, place]
                if int(one.ids[one.logits(state).argmax()]) != int(wanted[row, place]):
                    break
                kept[fed] += 1
    rates = [k / max(t, 1) for k, t in zip(kept, tried, strict=True)]
    assert min(tried) > 0
    assert found["agreement"] == [pytest.approx(rate, abs=6e-5) for rate in rates]
    length = 1 + rates[0] + rates[0] * rates[1] + math.prod(rates)
    assert found["acceptance_length"] == pytest.approx(length, abs=6e-5)
    assert all(rate == round(rate, 4) for rate in (*found["agreement"], found["acceptance_length"]))
    nothing = Corpus(tokens, hidden, torch.zeros_like(answer))
    at = 0
    assert training.judge(head, OPS, one, embed, nothing, steps) == {"agreement": [0.0] * 3, "acceptance_length": 1.0}


def test_matrices_are_trained_by_muon_and_the_rest_by_adamw() -> None:
    head = MedusaHeads(8, 4, 2, 1e-5)
    matrices, rest = training._optimizers(head, 0.25)
    assert isinstance(matrices, OwnDtypeMuon)
    assert isinstance(rest, torch.optim.AdamW)
    [muon], [adam] = matrices.param_groups, rest.param_groups
    assert muon["lr"] == 0.25
    assert (adam["lr"], adam["weight_decay"]) == (0.25, 0.0)
    assert {p.dim() for p in muon["params"]} == {2}
    assert 2 not in {p.dim() for p in adam["params"]}
    assert len(muon["params"]) + len(adam["params"]) == len(list(head.parameters()))


def test_a_descent_clips_the_gradient_to_1_sets_the_rate_and_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    head: Any = SimpleNamespace(parameters=lambda: [weight])
    optimizers = [torch.optim.SGD([weight], lr=9.0)]
    for gradient, moved in ((8.0, 0.5), (0.25, 0.25)):
        with torch.no_grad():
            weight.zero_()
        weight.grad = torch.full((4,), gradient)
        training._descend(head, optimizers, 0.5)
        torch.testing.assert_close(weight.detach(), torch.full((4,), -0.5 * moved), rtol=1e-4, atol=1e-5)
        assert weight.grad is None
        assert optimizers[0].param_groups[0]["lr"] == 0.5


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[float], epochs: int, **more: Any
) -> tuple[Any, list[dict[str, Any]], dict[str, list[Any]]]:
    """Train on 40 conversations with this length after each epoch; losses are the first tokens of a batch."""
    head: Any = more.pop("head", None) or MedusaHeads(8, 4, 2, 1e-5)
    tokens = torch.arange(40)[:, None].expand(-1, 6)
    text = Corpus(tokens, randn(40, 6, 8).bfloat16(), torch.ones(40, 6).bool())
    seen: dict[str, list[Any]] = {"picks": [], "rates": [], "steps": [], "judged": []}

    def loss_of(head: Any, ops: Any, reader: Any, embedded: Tensor, hidden: Any, answer: Any, steps: int) -> Tensor:
        seen["picks"].append(embedded[:, 0, 0].long().tolist())
        seen["steps"].append(steps)
        found: Tensor = head.norm.sum() * 0 + float(embedded[0, 0, 0])
        return found

    def descend(head: Any, optimizers: Any, rate: float) -> None:
        seen["rates"].append(rate)
        with torch.no_grad():
            head.norm.fill_(float(len(seen["rates"])))

    def judge(head: Any, ops: Any, reader: Any, embed: Any, held_out: Corpus, depth: int) -> dict[str, Any]:
        seen["judged"].append((held_out.tokens[:, 0].tolist(), depth))
        return {"agreement": [], "acceptance_length": lengths[len(seen["judged"]) - 1]}

    for function in (loss_of, judge):
        monkeypatch.setattr(training, function.__name__, function)
    monkeypatch.setattr(training, "_descend", descend)
    load = torch.load

    def safe(path: Path, **given: Any) -> Any:
        assert given == {"weights_only": True}, "a checkpoint is data, and no program"
        return load(path, **given)

    monkeypatch.setattr(torch, "load", safe)
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    embed, none = torch.arange(40.0)[:, None].expand(-1, 8), Any
    given = {"epochs": epochs, "steps": 3, "batch": 5, "rate": 2.0, "seed": 11, **more}
    log = training.train(head, OPS, none, embed, text, folder, **given)  # type: ignore[arg-type]
    return head, log, seen


def test_training_warms_up_and_cools_down_shuffles_by_the_seed_and_keeps_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, log, seen = trained(tmp_path / "a" / "b", monkeypatch, [1.5, 2.0, 1.75], 3)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == log
    orders = [torch.randperm(38, generator=torch.Generator().manual_seed(11 + epoch)).split(5) for epoch in range(3)]
    picks = [pick.tolist() for order in orders for pick in order]
    assert seen["picks"] == picks
    assert len(picks) == 24
    warm = 2.4  # a tenth of 24 steps
    paces = [min(1.0, (n + 1) / warm) * 0.5 * (1 + math.cos(math.pi * n / 24)) for n in range(24)]
    assert seen["rates"] == pytest.approx([2.0 * pace for pace in paces])
    assert seen["judged"] == [([38, 39], 2)] * 3
    assert set(seen["steps"]) == {3}
    losses = [round(sum(pick[0] for pick in picks[8 * e : 8 * e + 8]) / 8, 4) for e in range(3)]
    assert [(line["epoch"], line["loss"], line["acceptance_length"], line["seconds"]) for line in log] == [
        (1, losses[0], 1.5, 7),
        (2, losses[1], 2.0, 7),
        (3, losses[2], 1.75, 7),
    ]
    assert head.norm.tolist() == [16.0] * 8, "the weights after the second epoch"
    state = torch.load(tmp_path / "a" / "b" / "checkpoint.pt", weights_only=True)
    assert (json.loads(state["log"]), state["losses"]) == (log, [])
    assert state["head"]["norm"].tolist() == [24.0] * 8
    assert state["best"]["norm"].tolist() == [16.0] * 8
    assert len(state["optimizers"]) == 2


def test_training_goes_on_from_its_checkpoint_and_stops_when_nothing_improves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log, _ = trained(tmp_path, monkeypatch, [2.0], 1)
    head, again, seen = trained(tmp_path, monkeypatch, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 9)
    assert again[0] == log[0]
    assert [line["epoch"] for line in again] == [1, 2, 3, 4], "three epochs without a better one"
    assert seen["picks"][0] == torch.randperm(38, generator=torch.Generator().manual_seed(12))[:5].tolist()
    assert head.norm.tolist() == [8.0] * 8
    _, short, _ = trained(tmp_path / "x", monkeypatch, [1.0, 2.0, 2.0, 1.0, 1.0, 1.0], 9, patience=1)
    assert [line["epoch"] for line in short] == [1, 2, 3], "an equal one is no better one"


@pytest.mark.parametrize(("steps", "depth"), [(3, 4), (6, 6)])
def test_an_eagle_head_is_judged_at_four_proposals_or_as_many_as_it_is_trained_for(
    steps: int, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = EagleHead(EagleShape(8, 16, 2, 1, 4, 1e-5, 10000.0))
    _, _, seen = trained(tmp_path, monkeypatch, [1.0], 1, head=head, steps=steps)
    assert seen["judged"] == [([38, 39], depth)]


def test_a_short_warm_up_is_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WARM_UP", 1.5)
    _, _, seen = trained(tmp_path, monkeypatch, [1.0, 1.0, 1.0], 3)
    assert seen["rates"][0] == pytest.approx(2.0 / 1.5)


@torch.no_grad()
def test_a_head_begins_as_the_targets_last_layer_at_the_scale_of_its_states() -> None:
    model: Any = families.build_model("llama")
    with torch.no_grad():
        model.model.norm.weight.copy_(torch.linspace(0.5, 1.5, len(model.model.norm.weight)))
    tokens = torch.arange(24).view(2, 12)
    states = model(tokens, output_hidden_states=True).hidden_states
    seen: list[Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(tokens)
    handle.remove()
    before, after = (float(s.square().mean(-1).sqrt().median()) for s in (seen[0], states[-1]))
    caches: list[Any] = []
    handle = model.register_forward_pre_hook(
        lambda module, given, named: caches.append(named.get("use_cache")), with_kwargs=True
    )
    head, last = start.eagle_start(model, tokens, 3), model.model.layers[-1]
    handle.remove()
    assert caches == [False], "a text is read once, so that nothing is kept of it"
    attention, mlp, gain = last.self_attn, last.mlp, model.model.norm.weight
    weights = {
        "qkv": torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        "out": attention.o_proj.weight,
        "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        "down": mlp.down_proj.weight,
        "norm_before": last.input_layernorm.weight,
        "norm_after": last.post_attention_layernorm.weight,
        "norm": gain,
        "hidden_norm": before * after / gain,
        "token_norm": torch.full_like(gain, before),
    }
    for name, expected in weights.items():
        torch.testing.assert_close(getattr(head, name).detach(), expected, msg=name)
    size = model.config.hidden_size
    assert torch.equal(head.enter[:, size:], torch.eye(size))
    assert float(head.enter[:, :size].abs().max()) > 0
    again, other = start.eagle_start(model, tokens, 3), start.eagle_start(model, tokens, 4)
    assert torch.equal(head.enter, again.enter)
    assert not torch.equal(head.enter, other.enter)
    config = model.config
    assert vars(head.shape) == {
        "hidden": size,
        "intermediate": config.intermediate_size,
        "heads": config.num_attention_heads,
        "heads_kv": config.num_key_value_heads,
        "head_dim": attention.head_dim,
        "eps": config.rms_norm_eps,
        "theta": config.rope_parameters["rope_theta"],
    }
    heads = start.medusa(model, tokens, 3, 2, 16)
    torch.testing.assert_close(heads.norm.detach(), gain)
    torch.testing.assert_close(heads.hidden_norm.detach(), after / gain)
    assert heads.count == 2
    assert not model.model.norm._forward_hooks, "nothing is left on the model"


def test_the_mark_of_a_target_is_a_hash_of_its_vectors_unless_they_are_all_constant() -> None:
    model: Any = families.build_model("llama")

    def digest(tensors: list[Tensor]) -> str:
        found = hashlib.sha256()
        for tensor in tensors:
            found.update(tensor.detach().bfloat16().view(torch.int16).numpy().tobytes())
        return found.hexdigest()[:16]

    named = [tensor for _, tensor in sorted(model.named_parameters())]
    vectors = [tensor for tensor in named if tensor.dim() == 1]
    varied = [tensor for tensor in vectors if bool((tensor != tensor[0]).any())]
    assert files.fingerprint(model) == digest(varied or named)
    with torch.no_grad():
        for tensor in vectors:
            tensor.fill_(1.0)
    assert files.fingerprint(model) == digest(named)
    with torch.no_grad():
        vectors[1][2] = 3.0
    assert files.fingerprint(model) == digest([vectors[1]])


def test_a_draw_is_the_token_whose_part_of_the_mass_has_the_point() -> None:
    logits = randn(6, 9, seed=2)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0, 1.0, 0.0])
    found = corpus._draw(logits, temperature, torch.Generator().manual_seed(4))
    points = torch.rand(6, 1, generator=torch.Generator().manual_seed(4))[:, 0]
    for row in range(6):
        if temperature[row] == 0:
            expected = int(logits[row].argmax())
        else:
            share = (logits[row] / temperature[row]).softmax(dim=0).cumsum(dim=0)
            expected = int((share < points[row]).sum())
        assert int(found[row]) == expected
    assert found.shape == (6,)


def test_the_last_conversations_are_held_out_at_least_one() -> None:
    def sizes(count: int, share: float) -> tuple[list[int], list[int]]:
        text = Corpus(torch.arange(count)[:, None], torch.zeros(count, 1, 2), torch.zeros(count, 1).bool())
        kept, out = text.split(share)
        return kept.tokens[:, 0].tolist(), out.tokens[:, 0].tolist()

    assert sizes(4, 0.5) == ([0, 1], [2, 3])
    assert sizes(4, 0.01) == ([0, 1, 2], [3])
    assert sizes(40, 0.05) == ([*range(38)], [38, 39])
