"""Drafts whose proposals are almost never accepted still propose what their formulas give, computed again by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.conformance.exact.enumerator import context
from benchsuite.conformance.models.tiny import ask, prompts, requests
from benchsuite.tests.rig import Make, slow_after
from specdec import Context, Engine, Purpose, Request, SamplingParams, Verdict, Window
from specdec.sampling import gumbel, mix
from specdec_kernels.reference import Reference
from specdec_plugins.growth import STEP, Growth, wanted

K = 3


class States:
    """The target's hidden states of each row's text, as a draft is told of them, and whether its last window failed."""

    def __init__(self, engine: Engine) -> None:
        self.of: dict[int, list[Tensor]] = {}
        self.rejected: dict[int, bool] = {}
        draft: Any = engine.draft
        for name in ("admit", "move", "prefilled", "observe"):
            object.__setattr__(draft, name, self._watched(getattr(self, name), getattr(draft, name)))

    @staticmethod
    def _watched(mine: Any, theirs: Any) -> Any:
        def call(*given: Any) -> None:
            mine(*given)
            theirs(*given)

        return call

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        self.of[row], self.rejected[row] = [], False

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        self.of[row], self.rejected[row] = self.of[source], self.rejected[source]

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        self.of[row] += hidden[0].clone().unbind()

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor, own: bool) -> None:
        for row in range(len(verdict.next)):
            kept = int(verdict.num_accepted[row])
            self.of[row] = self.of[row] + [hidden[row, slot].clone() for slot in verdict.path[row, : kept + 1].tolist()]
            self.rejected[row] = kept < int(window.width[row]) - 1


def judged_windows(engine: Engine, work: list[Request], ks: list[int], judge: Any) -> None:
    """Run requests with these K in turn; ``judge(context, window)`` sees every window that the draft proposes."""
    draft: Any = engine.draft
    propose, judged = draft.propose, 0

    def call(context: Context) -> Window:
        nonlocal judged
        window: Window = propose(context)
        judge(context, window)
        judged += 1
        return window

    object.__setattr__(draft, "propose", call)
    ask(engine, ks * 60)
    engine.run(work)
    assert judged > 10
    assert engine.max_rows == 1 or engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: it is not covered"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "reset", "most"), slow_after(1, [(0.5, True, 0), (3.0, True, 2), (3.0, False, 0), (0.0, False, 1)])
)
def test_eagle_without_weights_extrapolates_the_last_difference_of_hidden_states(
    alpha: float, reset: bool, most: int, assemble: Make
) -> None:
    """h' = h + alpha (h - h before), again and again; after a rejection, with ``reset``, the difference is 0."""
    build = assemble(max_rows=3, backend="reference")
    engine = build.engine(f"eagle_lite(alpha={alpha}, reset={reset}, max_draft={most})", "rejection", k=K)
    states, head = States(engine), build.target.model.get_output_embeddings()
    depths = set()

    def judge(context: Context, window: Window) -> None:
        for row in range(context.rows):
            seen = [torch.zeros(head.weight.shape[1])] * 2 + states.of[row]
            last, before = seen[-1], seen[-1] if reset and states.rejected[row] else seen[-2]
            for depth, token in enumerate(window.tokens[row, 1 : int(window.width[row])].tolist(), 1):
                before, last = last, last + alpha * (last - before)
                logits = head(last)
                assert logits[token] > logits.max() - 1e-3
                depths.add(depth)

    work = [Request(i, p, SamplingParams(max_new_tokens=8 + 3 * i)) for i, p in enumerate(((7,), *prompts(5)))]
    judged_windows(engine, work, [K, K, 0, 0, 2, 1], judge)
    assert max(depths) == (most or K)


@pytest.mark.slow
@pytest.mark.parametrize("init", slow_after(1, ["tie", "copy", "random"]))
def test_untrained_heads_add_silu_of_a_product_and_read_tokens_with_the_head_that_they_were_given(
    init: str, assemble: Make
) -> None:
    build = assemble(max_rows=3, backend="reference")
    engine = build.engine(f"medusa(num_heads=2, head_init={init})", "rejection", k=K)
    states, output = States(engine), build.target.model.get_output_embeddings().weight
    size, generator = output.shape[1], torch.Generator().manual_seed(0)
    blocks, rows = torch.zeros(2, size, size), output
    if init == "random":
        blocks, rows = (torch.randn(*s, generator=generator) / math.sqrt(size) for s in (blocks.shape, rows.shape))
    depths = set()

    def judge(context: Context, window: Window) -> None:
        for row in range(context.rows):
            last = states.of[row][-1] if states.of[row] else torch.zeros(size)
            for depth, token in enumerate(window.tokens[row, 1 : int(window.width[row])].tolist()):
                logits = rows @ (last + torch.nn.functional.silu(blocks[depth] @ last))
                assert logits[token] > logits.max() - 1e-3
                depths.add(depth)

    judged_windows(engine, requests(SamplingParams(max_new_tokens=12), count=5), [K, K, 0, 1], judge)
    assert depths == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "top_p"), slow_after(1, [(1.0, 1.0), (0.5, 1.0), (2.0, 0.6), (1.0, 0.05)]))
def test_heads_draw_from_their_warped_distribution_which_is_q(temperature: float, top_p: float, assemble: Make) -> None:
    """Divided by the temperature; of that, the likeliest tokens whose likelier ones have a mass below ``top_p``."""
    build = assemble(backend="reference")
    engine = build.engine(f"medusa(temperature={temperature}, top_p={top_p})", "rejection", k=2)
    states, rows = States(engine), build.target.model.get_output_embeddings().weight

    def judge(context: Context, window: Window) -> None:
        p = (rows @ states.of[0][-1] / temperature).softmax(dim=0)
        mass = torch.stack([p[p > own].sum() for own in p])
        q = torch.where(mass < top_p, p, 0.0)
        assert window.q is not None
        torch.testing.assert_close(window.q[0], (q / q.sum()).expand(window.q.shape[1], -1), rtol=1e-4, atol=1e-6)
        assert (window.q[0].gather(1, window.tokens[0, 1:, None]) > 0).all()

    work = [Request(0, prompts(1)[0], SamplingParams(temperature=1.0, max_new_tokens=24))]
    judged_windows(engine, work, [2, 2, 0], judge)


def test_garbage_is_the_noise_of_the_drafts_own_purpose_at_each_place(assemble: Make) -> None:
    build = assemble(max_rows=3)
    engine, vocabulary = build.engine("garbage", k=K), build.target.vocabulary

    def judge(context: Context, window: Window) -> None:
        place = context.length[:, None] + torch.arange(window.tokens.shape[1] - 1)
        keys = context.ops.noise_keys(context.params.stream, place, 0)[Purpose.DRAFT]
        assert window.tokens[:, 1:].tolist() == (mix(keys + 1) % vocabulary).tolist()

    judged_windows(engine, requests(SamplingParams(max_new_tokens=12), count=5), [K, 0, 1], judge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rates"),
    slow_after(
        1,
        [
            ("rates=0.9-0.2-0.5", [0.9, 0.2, 0.5]),
            *((str(rate), [rate] * 3) for rate in (0.0, 0.4, 1.0)),
            ("length=2.6", [1, 0.6, 0]),
            ("histogram=0.2-0.4-0-0.4", [0.8, 0.5, 1]),
        ],
    ),
)
def test_the_oracle_is_right_where_a_coin_of_its_seed_request_and_place_is_below_its_rate(
    options: str, rates: Sequence[float], assemble: Make
) -> None:
    build = assemble(max_rows=3)
    engine, vocabulary = build.engine(f"oracle({options})", k=K), build.target.vocabulary
    work = requests(SamplingParams(max_new_tokens=12, seed=5), count=5)

    def judge(context: Context, window: Window) -> None:
        for row in range(context.rows):
            request, length = work[int(context.request[row])], int(context.length_host[row])
            plain = (*request.prompt, *build.plain(request))
            proposed = window.tokens[row, 1 : int(window.width[row])].tolist()
            assert len(proposed) == int(context.max_proposals_host[row])
            for place, (token, rate) in enumerate(zip(proposed, rates, strict=False), length):
                coin = random.Random(f"0 5 {request.id} {place}").random()
                assert token == (plain[place] + (coin >= rate)) % vocabulary

    judged_windows(engine, work, [K, 0, 1], judge)


def test_a_rate_of_a_coin_itself_is_wrong_there(assemble: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coin shows less than the rate, as every coin here: at the rate itself, the proposal is wrong."""
    monkeypatch.setattr(random.Random, "random", lambda self: 0.5)
    for rate, accepted in ((0.5, 0.0), (0.5001, 1.0)):
        engine = assemble().engine(f"oracle({rate})", k=K)
        engine.run(requests(count=1))
        assert engine.stats.acceptance_rate == accepted


def node_scores(
    chances: dict[tuple[int, ...], list[float]], beam: int, widths: list[int], depth: int, leaves: int
) -> Any:
    """Paths of nodes in the order in which they are made, each with its score, by the rule of ``Growth``."""
    made: list[tuple[tuple[int, ...], float]] = []
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for level in range(depth):
        new = []
        for path, score in frontier:
            logs = [math.log(chance) for chance in chances[path]]
            best = sorted(range(len(logs)), key=lambda token: -logs[token])
            children = min(widths[level] if level < len(widths) else beam + leaves, len(logs))
            new += [((*path, token), score + logs[token] - STEP) for token in best[:children]]
        made += new
        kept = sorted(range(len(new)), key=lambda i: -new[i][1])[: min(beam, len(new))]
        frontier = [new[i] for i in sorted(kept)]
    return made


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.sampled_from([(1, []), (2, []), (3, []), (4, [2, 2]), (6, [1, 3, 2])]),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.booleans(),
)
def test_a_tree_has_the_likeliest_nodes_that_growing_made(
    seed: int, shape: tuple[int, list[int]], leaves: int, depth: int, most: int, least: float, reduced: bool
) -> None:
    """Beside the rule of the class over lists: nodes, parents, how many, in which order, and what is left out."""
    (beam, widths), coins = shape, random.Random(seed)
    vocabulary = 4
    ids = torch.tensor([9, 3, 7, 1]) if reduced else None

    class Lazy(dict[tuple[int, ...], list[float]]):
        def __missing__(self, path: tuple[int, ...]) -> list[float]:
            weights = [coins.random() + 1e-3 for _ in range(vocabulary)]
            self[path] = [weight / sum(weights) for weight in weights]
            return self[path]

    chances = Lazy()
    nodes = node_scores(chances, beam, widths, depth, leaves)
    named = (lambda token: int(ids[token])) if ids is not None else int
    back = {named(token): token for token in range(vocabulary)}

    def after(paths: list[list[int]]) -> Tensor:
        found = [chances[tuple(back[token] for token in path)] for path in paths]
        return torch.tensor([found], dtype=torch.float64).log()

    growth = Growth(after([[]])[:, 0], ids, beam, widths, leaves)
    for _ in range(1, depth):
        growth.expand(after(growth.paths[0].tolist()))
    likely = [i for i, (_, score) in enumerate(nodes) if least == 0 or score > math.log(least)]
    best = sorted(sorted(likely, key=lambda i: -nodes[i][1])[:most])
    one = replace(context(Reference()), max_proposals=torch.tensor([most]))
    window = growth.window(one, most, least)
    width = int(window.width[0])
    slots: list[tuple[int, ...]] = [()]
    for token, parent in zip(window.tokens[0, 1:width].tolist(), window.parents[0, 1:width].tolist(), strict=True):
        slots.append((*slots[parent], back[token]))
    assert slots[1:] == [nodes[i][0] for i in best]
    assert window.parents[0, 0] == -1
    assert window.tokens[0, 0] == one.pending[0]
    cut = growth.window(replace(one, max_proposals=torch.tensor([1])), most, least)
    assert int(cut.width[0]) == min(1, len(best)) + 1


def test_a_child_that_is_certain_is_not_chosen_before_its_parent() -> None:
    """A node's score falls with each depth, if by little: of 0.5 and its certain child, one place has the parent."""
    half = torch.tensor([[0.5, 0.4, 0.1]]).log()
    growth = Growth(half, None, 1)
    growth.expand(torch.tensor([[[1.0, 0.0, 0.0]]]).log())
    one = replace(context(Reference()), max_proposals=torch.tensor([9]))
    assert growth.window(one, 1, 0.0).tokens.tolist() == [[0, 0]]
    torch.testing.assert_close(growth.score, torch.tensor([[math.log(0.5) - 1e-3, math.log(0.5) - 2e-3]]))
    assert int(growth.window(one, 2, 0.4985).width) == 3
    assert int(growth.window(one, 2, 0.4993).width) == 2


def greedy_beside_sampled(coupled: bool) -> Context:
    """A sampled row at temperature 0.7 with top-k 2, beside a greedy one."""
    rows = context(Reference(), torch.tensor([11, 12]))
    params = replace(
        rows.params, temperature=torch.tensor([0.7, 0.0]), top_k=torch.tensor([2, 0]), greedy=False, filtered=True
    )
    return replace(rows, params=params, coupled=coupled)


def test_a_greedy_rows_tree_has_siblings_beside_sampled_rows_and_no_noise() -> None:
    """Its own processed distribution is one-hot: of that, no node but the likeliest would ever be proposed."""
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(3))
    for depth in (0, 2, torch.tensor([0, 1, 2])):
        found, plain = (wanted(greedy_beside_sampled(coupled), logits, depth) for coupled in (True, False))
        torch.testing.assert_close(plain, logits.log_softmax(dim=-1))
        torch.testing.assert_close(found[1], logits[1].log_softmax(dim=-1))
        position = (1 + torch.as_tensor(depth)).expand(3)[None].expand(2, -1)
        keys = Reference().noise_keys(torch.tensor([11, 12]), position, 0)[Purpose.TARGET]
        top = logits[0] >= logits[0].topk(2).values[:, -1:]
        warped = torch.where(top, logits[0] / 0.7, -torch.inf) + gumbel(keys, torch.arange(8))[0]
        torch.testing.assert_close(found[0], warped.log_softmax(dim=-1))


def test_a_reduced_vocabulary_is_processed_as_part_of_the_whole_and_with_the_noise_of_its_own_tokens() -> None:
    ids, logits = torch.tensor([6, 1, 4]), torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(4))
    found = wanted(greedy_beside_sampled(True), logits, 0, ids=ids, vocabulary=8)
    keys = Reference().noise_keys(torch.tensor([11, 12]), torch.ones(2, 1).long(), 0)[Purpose.TARGET]
    noise = gumbel(keys, ids)
    top = logits[0] >= logits[0].topk(2).values[:, -1:]
    torch.testing.assert_close(found[0], (torch.where(top, logits[0] / 0.7, -torch.inf) + noise[0]).log_softmax(dim=-1))
    torch.testing.assert_close(found[1], logits[1].log_softmax(dim=-1))
