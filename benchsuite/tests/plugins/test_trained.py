"""The shipped heads and the strategies of a real pair, on the embedded model: acceptance, measured by counters only."""

from __future__ import annotations

from functools import cache

import pytest
from torch import Tensor

from benchsuite.conformance.models.tiny import registry
from benchsuite.measure import workloads
from benchsuite.tests.rig import loaded_smollm2
from specdec import Context, Request, SamplingParams, Verdict, Window
from specdec.acceptance import stopping, survival
from specdec.assembly import Assembly
from specdec.stats import Stats

pytestmark = pytest.mark.slow
MOST = 64
"""Tokens of an output."""


@pytest.fixture
def tokens(deep: bool) -> int:
    """Tokens of an output: with --specdec-deep those of the table in docs/strategies.md, without it half of them."""
    return MOST if deep else MOST // 2


@cache
def _build(workload: str) -> tuple[Assembly, tuple[tuple[int, ...], ...]]:
    """Return engines for a workload's first three prompts at once, which no head was trained on."""
    model, target = loaded_smollm2()
    encoded = tuple(workloads.load_workload(workload).first(3).encode(model.tokenizer))
    length = max(map(len, encoded)) + MOST
    return Assembly(registry(), target, model.tokenizer, max_rows=3, max_length=length), encoded


@cache
def _chat(draft: str, k: int, tokens: int) -> Stats:
    """Return the counters of one draft on chat; a draft that several tests ask for runs once."""
    assembly, encoded = _build("chat")
    params = SamplingParams(max_new_tokens=tokens, eos=(2,))
    engine = assembly.engine(draft, k=k)
    engine.run([Request(i, prompt, params) for i, prompt in enumerate(encoded)])
    return engine.stats


@pytest.mark.parametrize(
    ("draft", "least"), [("eagle(head=trained)", 1.9), ("medusa(head_init=trained)", 1.6)], ids=["eagle", "medusa"]
)
def test_a_trained_head_reaches_its_acceptance_length_on_chat(draft: str, least: float, tokens: int) -> None:
    length = _chat(draft, 4, tokens).mean_acceptance_length
    print(f"{draft}: mean acceptance length {length:.3f} at K = 4")
    assert length is not None
    assert length >= least


@pytest.mark.parametrize(
    ("chain", "tree"),
    [
        ("eagle(head=trained)", "eagle(head=trained, beam=4, depth=4)"),
        pytest.param("medusa(head_init=trained)", "medusa(head_init=trained, beam=4)", marks=pytest.mark.deep),
    ],
    ids=["eagle", "medusa"],
)
def test_a_tree_of_16_nodes_is_a_tenth_longer_than_the_chain_of_its_depth(chain: str, tree: str, tokens: int) -> None:
    lengths = [_chat(draft, k, tokens).mean_acceptance_length or 0.0 for draft, k in ((chain, 4), (tree, 16))]
    print(f"{chain}: {lengths[0]:.3f}; {tree}, 16 nodes: {lengths[1]:.3f}")
    assert lengths[1] >= 1.1 * lengths[0]


def test_block_verification_keeps_more_than_token_wise_with_a_real_pair() -> None:
    """Both rules on the same windows, each in expectation over its coins: only the windows are sampled."""
    gains: list[float] = []

    def compare(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        if window.q is None:
            return  # nothing was proposed
        distribution = context.process(logits, window).softmax(dim=-1)
        proposals = window.tokens[:, 1:, None]
        ratio = (distribution[:, :-1].gather(2, proposals) / window.q.gather(2, proposals))[:, :, 0].clamp(max=1)
        stop = stopping(distribution, window, survival(distribution, window))
        for row, width in enumerate(window.width.tolist()):
            if width > 1:
                token_wise = float(ratio[row, : width - 1].cumprod(dim=0).sum())
                # The chance that some coin from i on shows at most h: at least i proposals are kept.
                block = float((1 - (1 - stop[row, 1:width]).flip(0).cumprod(dim=0)).sum())
                gains.append(block - token_wise)

    assembly, encoded = _build("chat")
    params = SamplingParams(temperature=1.0, seed=1, max_new_tokens=MOST)
    engine = assembly.engine("eagle(head=trained)", "rejection", k=8)
    engine.trace = compare
    engine.run([Request(i, prompt, params) for i, prompt in enumerate(encoded)])
    mean = sum(gains) / len(gains)
    print(f"block keeps {mean:+.4f} proposals a step more than token-wise rejection, over {len(gains)} windows")
    assert mean >= 0.03


def test_suffix_learns_from_recurring_questions() -> None:
    """One question, asked twice in one row: suffix copies the earlier answer, where n-gram cannot."""
    assembly, encoded = _build("recurring")
    question = encoded[0]
    assert question == encoded[2]
    taus = []
    for draft in ("suffix", "suffix(earlier=False)", "ngram"):
        engine = assembly.engine(draft, k=8, max_rows=1)
        engine.run([Request(i, question, SamplingParams(max_new_tokens=32, eos=(2,))) for i in range(2)])
        taus.append(engine.stats.tau or 0.0)
    suffix, forgetful, ngram = taus
    print(
        f"tau on a recurring question: suffix {suffix:.2f}, without earlier outputs {forgetful:.2f}, ngram {ngram:.2f}"
    )
    assert suffix >= 1.2 * ngram
    assert suffix > forgetful


def test_untrained_heads_are_accepted_about_never() -> None:
    for draft in ("medusa(head_init=tie)", "medusa(head_init=random)", "eagle(head=lite)"):
        rate = _chat(draft, 4, 8).acceptance_rate
        print(f"{draft}: {rate:.3f} accepted")
        assert rate is not None
        assert rate < 0.05
