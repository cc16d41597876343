"""Recurrent and convolutional layers: a state after each slot of a window, and speculation that changes no token."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchsuite.conformance.guards.fake_cuda import fake_run
from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry, requests
from benchsuite.judge.sources import EngineSource
from benchsuite.judge.ties import Judge
from benchsuite.tests.rig import Make, assert_same, peer_runner, slow_after
from benchsuite.workshop.sweep.battery import spread_model
from specdec import ArenaModel, Assembly, Request, SamplingParams, SpecdecError, Window
from specdec.catalog import byte_tokenizer
from specdec.states import StateKey, StateRings, StateShape
from specdec_plugins.openvino_ir import save_ir

GREEDY = SamplingParams(max_new_tokens=14)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_new_tokens=14)

CHAINED = ("draft_model", "oracle(0.8)", "ngram")
BRANCHED = ("tree(beam=2, depth=3)", "ngram(branches=3)")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rwkv", "a rwkv model takes the states of its layers as an argument of its own, state, and asks no cache"),
        ("recurrent_gemma", "has layers of kind linear_attention that keep their states in their own modules"),
    ],
)
def test_a_model_whose_states_no_cache_has_is_refused_by_where_they_are(kind: str, reason: str) -> None:
    with pytest.raises(SpecdecError, match=reason):
        ArenaModel(spread_model(kind), registry().backend())


def test_openvino_refuses_a_model_with_states(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="Lfm2ForCausalLM has layers without keys and values"):
        save_ir(families.build_model("lfm2"), byte_tokenizer(), tmp_path)


@pytest.mark.parametrize("family", slow_after(1, families.RECURRENT))
def test_recurrent_targets_decode_as_generate_does(family: str, assemble: Make) -> None:
    build = assemble(family)
    judge = Judge(build.target, range(40))
    plain = EngineSource(build.engine(None))
    assert_same(judge, peer_runner("transformers", judge.model), plain, requests(GREEDY))


RINGS = {
    StateKey(0, "conv", 0): StateShape((2, 3), torch.float32),
    StateKey(1, "recurrent", 0): StateShape((2,), torch.float64),
}


@pytest.mark.parametrize("seed", range(4))
def test_rings_hold_the_states_of_the_last_counts(seed: int) -> None:
    """Beside lists of all states: random windows, commits, trees, moves, and texts that are kept."""
    draw = torch.Generator().manual_seed(seed)
    window = 3
    rings = StateRings(RINGS, rows=3, window=window, device=torch.device("cpu"))
    texts: list[list[dict[StateKey, torch.Tensor]]] = [[], [], []]  # for each row the states after 1, 2, … tokens
    zeros = {key: torch.zeros(shape.size, dtype=shape.dtype) for key, shape in RINGS.items()}

    def number(most: int) -> int:
        return int(torch.randint(most + 1, (1,), generator=draw))

    def check() -> None:
        for key in RINGS:
            count = torch.tensor([len(text) for text in texts])
            got = rings.read(key, slice(0, 3), count)
            for row, text in enumerate(texts):
                assert torch.equal(got[row], (text[-1] if text else zeros)[key]), (seed, key, row)

    for _ in range(60):
        width, count = 1 + number(window - 1), torch.tensor([len(text) for text in texts])
        made: list[dict[StateKey, torch.Tensor]] = []
        for slot in range(width):
            made.append(
                {key: torch.randn(3, *shape.size, generator=draw, dtype=shape.dtype) for key, shape in RINGS.items()}
            )
            for key, state in made[-1].items():
                rings.write(key, slice(0, 3), count + 1 + slot, state)
        check()  # nothing is committed yet
        accepted = [number(width - 1) for _ in texts]
        last = [taken + number(width - 1 - taken) for taken in accepted]  # the slot of the last one kept, as in a tree
        rings.compact(slice(0, 3), count + 1 + torch.tensor(last), count + 1 + torch.tensor(accepted))
        for row, text in enumerate(texts):
            text += [{key: made[slot][key][row] for key in RINGS} for slot in (*range(accepted[row]), last[row])]
        check()
        source, row = number(2), number(2)
        if number(3) == 0:
            assert rings.move(source, row) == rings.row_bytes
            texts[row] = [*texts[source]]
        if number(3) == 0:
            kept = rings.keep(source, len(texts[source]))
            assert rings.restore(row, len(texts[source]), kept) == rings.state_bytes
            texts[row] = [*texts[source]]
        if number(9) == 0:
            texts[row] = []
        check()


def test_a_window_wider_than_the_rings_is_refused(assemble: Make) -> None:
    target = assemble("lfm2").target
    window = Window.chain(torch.tensor([5]), torch.tensor([[6, 7, 8]]), torch.tensor([3]))
    with torch.inference_mode(), pytest.raises(SpecdecError, match="4 slots leaves more states .* of a row, 3; build"):
        target.forward(target.arena(1, 16, 3), window, slice(0, 1), 0)


@pytest.mark.parametrize("draft", [*CHAINED, *slow_after(1, BRANCHED)])
@pytest.mark.parametrize("family", slow_after(1, families.RECURRENT))
def test_speculation_over_recurrent_targets_emits_plain_s_tokens(family: str, draft: str, assemble: Make) -> None:
    """Three rows at once, of different lengths; chains and trees."""
    build = assemble(family, max_rows=3)
    judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))
    for params in (GREEDY, SAMPLED):
        assert_same(judge, plain, EngineSource(build.engine(draft, k=4)), requests(params))


@pytest.mark.slow
@pytest.mark.parametrize("family", families.RECURRENT)
def test_every_k_and_exact_policy_over_recurrent_targets_emits_plain_s_tokens(family: str, assemble: Make) -> None:
    """K from 1 to 8; each policy has every second K, and five requests share three rows."""
    build = assemble(family, max_rows=3)
    judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None, max_rows=1))
    work = requests(GREEDY, count=5)
    expected = plain.tokens(work)
    for k in range(1, 9):
        for policy in ("match", "longest_prefix") if k % 2 else ("rejection", "block"):
            other = EngineSource(build.engine("oracle(0.8)", policy, k=k))
            assert other.engine.policy.contract(GREEDY) == "exact"
            assert_same(judge, plain, other, work, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "policy"), [("lfm2", "rejection"), ("mamba", "block")])
def test_sampled_speculation_has_the_law_of_an_unmodified_recurrent_model(family: str, policy: str) -> None:
    """Three tokens of 2,000 requests: chi-square beside the model's own probabilities of all texts.

    Texts expected fewer than eight times count as one; the bound is above five standard deviations.
    """
    config = families.config_of(family)
    config.vocab_size, config.eos_token_id, config.pad_token_id = 4, None, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    own = copy.deepcopy(model)
    build = Assembly(registry(), ArenaModel(model, registry().backend()), byte_tokenizer(), max_rows=50, max_length=32)
    prompt, seen, count = (1, 3, 2, 0, 3, 1), Counter[tuple[int, ...]](), 2000
    params = SamplingParams(temperature=1.5, seed=11, max_new_tokens=3)
    engine = build.engine("garbage", policy, k=2)
    for done in engine.run([Request(number, prompt, params) for number in range(count)]):
        seen[done.tokens] += 1
    assert engine.stats.counts["num_accepted_tokens"] > count // 10
    with torch.inference_mode():
        texts = torch.tensor([[*prompt, *out] for out in itertools.product(range(4), repeat=3)])
        chance = own(texts, use_cache=False).logits[:, len(prompt) - 1 : -1].div(1.5).softmax(dim=-1)
        law = chance.gather(2, texts[:, len(prompt) :, None]).prod(dim=1)[:, 0] * count
    rare = law < 8
    found = torch.tensor([float(seen[tuple(text[len(prompt) :])]) for text in texts.tolist()])
    pairs = [torch.cat([one[~rare], one[rare].sum()[None]]) for one in (found, law)]
    squares = float(((pairs[0] - pairs[1]) ** 2 / pairs[1]).sum())
    degrees = int((~rare).sum())
    assert degrees > 10
    assert squares < degrees + 8 * degrees**0.5, f"{squares} of {degrees} degrees of freedom"


@pytest.mark.parametrize("family", slow_after(1, families.RECURRENT))
def test_a_kept_text_is_continued_from_its_states_at_its_full_length_alone(family: str, assemble: Make) -> None:
    build = assemble(family)
    params = SamplingParams(max_new_tokens=9)
    for shorter in (0, 1):
        engine = build.engine("oracle(0.8)", k=4)
        first = Request(0, prompts(1)[0], params, keep=True)
        text = (*first.prompt, *engine.run([first])[0].tokens)
        kept = engine.kept[0].cells
        cells = (len(text) - 1) * engine.arena.bytes_per_token(engine.arena.layers, engine.target.dtype)
        assert kept.nbytes == cells + engine.arena.states.state_bytes == engine.stats.counts["kv_kept_bytes_copied"]
        following = Request(1, (*text[: len(text) - 2 * shorter], 5, 6, 7), params, continues=0)
        done = engine.run([following])[0]
        assert engine.stats.counts["kv_reused_tokens"] == (0 if shorter else len(text) - 1)
        judge, plain = Judge(build.target, range(40)), EngineSource(build.engine(None))
        [expected] = plain.tokens([following.alone()])
        found = judge.compare([following], following, plain, EngineSource(engine), (expected, done.tokens))
        assert all(difference.tie for difference in found), found


@pytest.mark.fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "mamba"])
def test_a_step_over_recurrent_layers_waits_nowhere_and_can_be_replayed(family: str) -> None:
    """Of a mixture, transformers' own experts read the host."""
    params = SamplingParams(temperature=1.0, max_new_tokens=60)
    config = families.config_of(family)
    found = fake_run("garbage", k=2, params=params, config=config, backends="gpu", steps=3)
    assert found.wrong() is None
    assert list(found.twins())
