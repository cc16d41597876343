"""Noise: enumeration knows what shares it, whole runs with the engine's own noise have the target's distribution, and
seeds and requests share none.

Whole runs: 24,064 tokens of a case. A test fails by chance with a probability of 1e-8, and finds with 0.99 a total
variation of 0.035 of a token, given the two before it (``keyed_runs.keyed_power``).
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from benchsuite.conformance.exact.enumerator import Shape, chain, completions
from benchsuite.conformance.exact.exact_runs import one, run_distance
from benchsuite.conformance.exact.keys import in_common
from benchsuite.conformance.exact.shared_noise import Noise
from benchsuite.conformance.exact.table_target import TableDraft
from benchsuite.conformance.models.tiny import policy_named
from benchsuite.judge.sources import Always
from benchsuite.tests import faulty_noise
from benchsuite.tests.rig import POLICIES, slow_after
from benchsuite.workshop.machines.keyed_runs import (
    OneDraft,
    OneTable,
    chance_apart,
    chance_of_tokens,
    degrees_of_freedom,
    keyed_power,
    keyed_tokens,
)
from specdec import Context, Engine, Policy, Request, SamplingParams, Window
from specdec.sampling import mix
from specdec_kernels.reference import Reference
from specdec_plugins.chain import Chain


class ChainedTable(TableDraft):
    """A table whose chains are drawn by ``Chain``."""

    def propose(self, context: Context) -> Window:
        texts = [context.history[row, :end].tolist() for row, end in enumerate(context.length_host)]
        drawn = Chain(context, len(self.distribution(tuple(texts[0]))))
        for _ in range(min(int(context.max_proposals_host.max()), len(self.shape.parents) - 1)):
            logits = torch.tensor([self.distribution(tuple(text)) for text in texts], dtype=torch.float64).log()
            for text, token in zip(texts, drawn.propose(logits[:, None])[:, 0].tolist(), strict=True):
                text.append(token)
        return drawn.window()


def case_name(value: object) -> str | None:
    """The name of a class as the test's id."""
    return getattr(value, "__name__", None)


ALARM = 1e-8
ROWS, LENGTH = 128, 96
"""Requests of each of two seeds, and tokens of each."""

SURE, SPREAD, NARROW = (9, 9, 3), (4, 4, 6), (9, 1, 4)
"""Weights of three tokens. A draft of the last has refused tokens and residuals of several tokens beside the second."""

RUNS: list[tuple[str, tuple[int, ...], tuple[int, ...], Shape]] = [
    ("rejection", SPREAD, NARROW, chain(3)),
    ("block", SURE, (1, 9, 3), chain(3)),
    ("tree_rejection", SPREAD, NARROW, Shape((-1, 0, 0, 1))),
    ("match", SPREAD, SPREAD, chain(3)),
]
"""Policy, target, draft, proposals."""

P, Q = [Fraction(part, 12) for part in (5, 4, 2, 1)], [Fraction(part, 12) for part in (1, 3, 1, 7)]
FORK = Shape((-1, 0, 0))


def test_two_draws_of_one_key_agree_as_often_as_is_derived() -> None:
    """Both give i with probability 1 / sum_j max(p_j / p_i, q_j / q_i): Daliri, Musco, Suresh 2408.07978."""
    for i in range(4):
        both = Noise.of(4).after(i, P).after(i, Q).volume
        assert both == 1 / sum(max(p / P[i], q / Q[i]) for p, q in zip(P, Q, strict=True))


@pytest.mark.slow
def test_the_noise_of_the_engine_is_shared_as_enumeration_takes_it_to_be() -> None:
    """200,000 keys, three draws by each and two coins: every count within six standard deviations."""
    keys, ops, third = mix(torch.arange(200_000)), Reference(), [Fraction(1, 4)] * 4
    drawn = [ops.sample(torch.tensor(list(map(float, w))).log().expand(len(keys), 4), keys) for w in (P, Q, third)]
    counts = torch.bincount(drawn[0] * 16 + drawn[1] * 4 + drawn[2], minlength=64).view(4, 4, 4).tolist()
    for i, j, k in ((i, j, k) for i in range(4) for j in range(4) for k in range(4)):
        due = float(Noise.of(4).after(i, P).after(j, Q).after(k, third).volume) * len(keys)
        assert abs(counts[i][j][k] - due) <= 6 * due**0.5, (i, j, k)
    assert sum(counts[0][1]) > 0, "the draws never differ: nothing was shown"
    low, high = (ops.accept(torch.full(keys.shape, share), keys) for share in (0.25, 0.75))
    assert bool((low <= high).all()), "a coin that falls below a quarter falls below three quarters"


def test_a_key_is_not_that_of_a_coin_and_of_a_draw() -> None:
    with pytest.raises(AssertionError, match="a key's noise is that of a draw and of a coin"):
        completions(lambda s: (s.decide([0.5, 0.5], "draw", 7), s.decide([0.5, 0.5], "coin", 7)))


FAULTS: list[tuple[type[Policy] | str, type[TableDraft], int, Shape, int]] = [
    (faulty_noise.SharedCoin, TableDraft, 3, FORK, 3),
    (faulty_noise.StaleCoins, TableDraft, 2, chain(2), 0),
    (faulty_noise.Echo, TableDraft, 4, chain(1), 0),
    ("block", faulty_noise.StaleTable, 2, chain(2), 0),
]
"""Policy, draft, vocabulary, proposals, and a seed of tables that show it."""


@pytest.mark.parametrize(("policy", "draft", "vocabulary", "shape", "seed"), slow_after(1, FAULTS), ids=case_name)
def test_noise_that_is_used_twice_is_seen_by_enumeration(
    policy: type[Policy] | str, draft: type[TableDraft], vocabulary: int, shape: Shape, seed: int
) -> None:
    """And nothing else is wrong: if every draw and coin had noise of its own, the distribution would be right."""
    built = policy_named(policy) if isinstance(policy, str) else policy(None)  # type: ignore[call-arg]
    far, right = (
        run_distance(built, vocabulary, shape, one(len(shape.parents)), draft=draft, seed=seed, fresh=fresh)
        for fresh in (False, True)
    )
    print(f"total variation {far:.5f}")
    assert far > 5e-4
    assert right < 1e-12


@pytest.mark.parametrize("policy", slow_after(3, POLICIES))
def test_two_seeds_and_two_requests_share_no_noise(policy: str) -> None:
    built = policy_named(policy)
    for shape in (chain(3), *([Shape((-1, 0, 0, 1))] if built.trees else [])):
        assert in_common(built, shape) == {"another seed": 0, "another request": 0}


@pytest.mark.slow
@pytest.mark.parametrize("policy", slow_after(1, ["rejection", "block", "tree_rejection", "match"]))
def test_a_chain_as_models_draw_it_leaves_the_distribution_the_targets(policy: str) -> None:
    """Proposals come from ``Chain``, which draws for every draft that is a model; noise of its own is in the key."""
    assert run_distance(policy_named(policy), 2, chain(2), one(3), draft=ChainedTable) < 1e-12
    assert run_distance(policy_named(policy), 4, chain(1), one(2, temperature=0.5), draft=ChainedTable) < 1e-12


def unlikeliest(policy: Policy, target: tuple[int, ...], draft: tuple[int, ...], shape: Shape) -> dict[str, float]:
    """The chances of tokens given those before them, of a request's two seeds side by side, and of two requests'."""
    one_seed, other = (keyed_tokens(policy, target, draft, shape, ROWS, LENGTH, seed) for seed in (3, 4))
    return {
        "tokens": chance_of_tokens(torch.cat([one_seed, other]), target),
        "seeds": chance_apart(one_seed, other, target),
        "requests": chance_apart(one_seed[::2], one_seed[1::2], target),
    }


@pytest.mark.parametrize(
    ("policy", "target", "draft", "shape"),
    slow_after(1, RUNS),
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_run_with_the_engines_own_noise_has_the_targets_distribution(
    policy: str, target: tuple[int, ...], draft: tuple[int, ...], shape: Shape
) -> None:
    found = unlikeliest(policy_named(policy), target, draft, shape)
    assert min(found.values()) > ALARM, found


@pytest.mark.parametrize("policy", ["conf_threshold(tau=1.0)", "topk_agree(k=1)"])
def test_what_a_lossy_policy_draws_after_its_last_proposal_is_plain_decodings_draw(policy: str) -> None:
    """A proposal that is never good enough leaves the target's own tokens."""
    target, draft = SPREAD, (5, 9, 0.001)  # the likeliest token is hardly ever proposed
    tokens = [keyed_tokens(policy_named(name), target, draft, chain(2), 4, 24) for name in (policy, "match")]
    assert torch.equal(*tokens)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["rejection", "block", "tree_rejection"])
def test_the_noise_of_a_row_does_not_depend_on_the_rows_beside_it(policy: str) -> None:
    """Requests of different lengths, a batch of four and one by one: the same tokens."""
    ops, prompts = Reference(), ((0, 1), (1,), (1, 1, 0), (2, 2, 0, 1, 0))
    engines = [
        Engine(
            OneTable(torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64), ops),
            draft=OneDraft(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64), chain(3)),
            policy=policy_named(policy),
            controller=Always(3),
            ops=ops,
            max_rows=rows,
            max_length=40,
        )
        for rows in (4, 1)
    ]
    params = SamplingParams(temperature=1.0, seed=3, max_new_tokens=24)
    together, alone = (e.run([Request(i, prompt, params) for i, prompt in enumerate(prompts)]) for e in engines)
    assert [done.tokens for done in together] == [done.tokens for done in alone]


def test_tokens_that_are_0_035_from_the_target_are_found_with_probability_0_99() -> None:
    tokens = 2 * ROWS * (LENGTH - 2)
    assert keyed_power(tokens, 0.035, degrees_of_freedom(3), ALARM) > 0.99
    assert keyed_power(tokens, 0.015, degrees_of_freedom(3), ALARM) < 0.1, "what is claimed is not sharp"
    assert keyed_power(tokens, 1e-9, degrees_of_freedom(3), ALARM) == pytest.approx(ALARM, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "place", "test"),
    [
        (faulty_noise.Echo, 0, "tokens"),
        (faulty_noise.StaleCoins, 1, "tokens"),
        (faulty_noise.SharedCoin, 2, "tokens"),
        (faulty_noise.SeedlessPolicy, 0, "seeds"),
        (faulty_noise.Unnumbered, 0, "requests"),
    ],
    ids=case_name,
)
def test_noise_that_is_used_twice_is_seen_in_whole_runs(policy: type[Policy], place: int, test: str) -> None:
    found = unlikeliest(policy(None), *RUNS[place][1:])  # type: ignore[call-arg]
    print(found)
    assert found[test] < ALARM


@pytest.mark.slow
def test_a_drafts_stale_noise_is_seen_in_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "step", faulty_noise.Frozen.step)
    assert unlikeliest(policy_named("block"), *RUNS[1][1:])["tokens"] < ALARM
