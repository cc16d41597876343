"""Proposals of several sources in one window: chains behind chains, and trees that share their beginnings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchsuite.conformance.exact import exact_runs
from benchsuite.conformance.exact.enumerator import Shape, chain, context
from benchsuite.conformance.exact.exact_runs import one
from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import policy_named, requests
from benchsuite.tests.rig import Make, slow_after
from benchsuite.tests.steps_rig import KnownCosts, sized_env
from benchsuite.workshop.machines.joined_drafts import BRIEF, Behind, Listed, hybrid_maker, hybrid_over
from specdec import Context, Request, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.hybrid import cheap_proposals
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.joining import continued, grown_together, rows_of_either

ENV: Any = None
VOCABULARY = 5


def rows_of_text(texts: Sequence[Sequence[int]], room: int = 9) -> Context:
    """A step over these texts."""
    lent = context(Reference(), torch.arange(len(texts)) + 11)
    history = np.full((len(texts), max(map(len, texts)) + 1), 77)
    for row, text in enumerate(texts):
        history[row, : len(text)] = text
    lengths, rooms = np.array([len(text) for text in texts]), np.full(len(texts), room)
    return replace(
        lent,
        tokens=torch.tensor(history),
        history=history,
        length=torch.tensor(lengths),
        length_host=lengths,
        max_proposals=torch.tensor(rooms),
        max_proposals_host=rooms,
    )


def chains(tokens: list[list[int]], proposed: list[int], q: Tensor | None = None) -> Window:
    whole = torch.tensor(tokens)
    return Window.chain(whole[:, 0], whole[:, 1:], torch.tensor(proposed), q)


def drawn_q(rows: int, slots: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, slots, vocabulary, generator=generator, dtype=torch.float64).softmax(dim=-1)


def sure(tokens: Sequence[int], vocabulary: int = VOCABULARY) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens, dtype=torch.int64), vocabulary).double()


@pytest.mark.parametrize("wider", [0, 1])
def test_rows_of_two_chains_become_one_window_in_which_what_was_looked_up_is_certain(wider: int) -> None:
    q = drawn_q(2, 2, vocabulary=6)
    looked = chains([[0, 1, 2] + [4] * wider, [0, 0, 0] + [0] * wider], [2 + wider, 0])
    drafted = chains([[0, 3, 3], [0, 5, 4]], [2, 1], q)
    either = rows_of_either(looked, drafted, torch.tensor([False, True]))
    assert either.tokens.tolist() == [[0, 1, 2] + [4] * wider, [0, 5, 4] + [0] * wider]
    assert either.width.tolist() == [3 + wider, 2]
    assert either.q is not None
    assert either.q.shape == (2, 2 + wider, 6)
    assert torch.equal(either.q[0], sure([1, 2] + [4] * wider, 6))
    assert torch.equal(either.q[1, :2], q[1])
    assert not either.q[1, 2:].any()
    bare = rows_of_either(looked, chains([[0, 3], [0, 5]], [1, 1]), torch.tensor([False, True]))
    assert (bare.q, bare.confidence) == (None, None)
    sure_of = torch.tensor([[0.5, 0.25, 0.75], [0.125, 0.375, 0.625]])
    told = rows_of_either(looked, replace(drafted, confidence=sure_of), torch.tensor([False, True])).confidence
    assert told is not None
    assert told.tolist() == [[-1] * (3 + wider), [*sure_of[1].tolist(), *[-1] * wider]]


def test_a_row_of_a_tree_beside_one_that_was_looked_up_is_the_same_tree() -> None:
    """Wider and narrower than the chain beside it; the slots behind a row's last are nobody's."""
    tree = Window(torch.tensor([[0, 3, 4, 5]] * 2), torch.tensor([[-1, 0, 0, 1]] * 2), torch.tensor([1, 4]))
    for most in (1, 5):
        either = rows_of_either(chains([[0, *range(1, 1 + most)]] * 2, [most, 0]), tree, torch.tensor([False, True]))
        assert either.width.tolist() == [1 + most, 4]
        assert either.parents[0, : 1 + most].tolist() == [*range(-1, most)]
        assert (either.tokens[1, :4].tolist(), either.parents[1, :4].tolist()) == ([0, 3, 4, 5], [-1, 0, 0, 1])


@pytest.mark.parametrize("size", [1, 3, 6])
def test_what_goes_on_begins_behind_each_rows_last_proposal_and_is_certain(size: int) -> None:
    """Rows of two, one, no and three proposals, in a window wider or narrower than what comes of it."""
    widths = [3, 2, 1, 4]
    window = chains([[0, 1, 2, 3, 0, 0][: max(size, 4)]] * 4, [width - 1 for width in widths])
    more = torch.tensor([[4, 3, 2, 1]] * 4)
    for drawn in (False, True):
        q = drawn_q(4, window.tokens.shape[1] - 1) if drawn else None
        given = replace(window, q=q)
        room = torch.tensor([4, 2, 4, 3])
        found = continued(given, more, torch.tensor([4, 4, 1, 4]), room)
        expected = [[1, 2, 4, 3], [1, 4], [], [1, 2, 3]]
        rows = zip(found.tokens.tolist(), found.width.tolist(), strict=True)
        assert [row[1:width] for row, width in rows] == expected
        assert found.parents.tolist() == [[*range(-1, found.tokens.shape[1] - 1)]] * 4
        assert found.tokens.shape[1] == max(window.tokens.shape[1], 5)
        assert (found.q is None) is not drawn
        for row, own in enumerate(widths if drawn else ()):
            assert found.q is not None
            assert q is not None
            assert torch.equal(found.q[row, : own - 1], q[row, : own - 1])
            proposed = int(found.width[row]) - 1
            assert torch.equal(found.q[row, own - 1 : proposed], sure(expected[row])[own - 1 :])
    assert found.confidence is None
    told = torch.rand(window.tokens.shape, generator=torch.Generator().manual_seed(1))
    again = continued(replace(window, confidence=told), more, torch.tensor([4, 4, 1, 4]), room).confidence
    assert again is not None
    for row, own in enumerate(widths):
        assert again[row].tolist() == [*told[row, :own].tolist(), *[-1] * (again.shape[1] - own)]


def test_a_row_that_is_longer_than_its_room_keeps_its_length() -> None:
    window = chains([[0, 1, 2, 3]], [3])
    found = continued(window, torch.tensor([[4, 4]]), torch.tensor([2]), torch.tensor([2]))
    assert (found.tokens.tolist(), found.width.tolist()) == ([[0, 1, 2, 3]], [4])


def test_ngrams_on_the_device_find_what_they_find_on_the_host() -> None:
    """The same text in both: here with its end in the text, there with its end proposed."""
    coins = random.Random(5)
    found_some = 0
    for _ in range(150):
        n_min = coins.randint(1, 3)
        draft, most = Ngram(ENV, coins.randint(n_min, 4), n_min), coins.randint(1, 6)
        whole = [[coins.randrange(3) for _ in range(coins.randint(1, 14))] for _ in range(3)]
        ends = [coins.randint(0, min(4, len(text) - 1)) for text in whole]
        lent = rows_of_text([text[: len(text) - end] for text, end in zip(whole, ends, strict=True)])
        tokens = [text[len(text) - end - 1 :] + [1] * (4 - end) for text, end in zip(whole, ends, strict=True)]
        after, count = draft.extend(lent, chains(tokens, ends), most)
        assert after.shape == (3, most)
        for row, text in enumerate(whole):
            paths = draft.continuations(row, np.array(text), most)
            assert after[row, : int(count[row])].tolist() == (paths[0] if paths else [])
            found_some += bool(paths)
    assert found_some > 100


def tree_of(coins: random.Random, most: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of a random tree without two equal siblings, in any order in which parents come first."""
    tokens, parents, taken = [0], [-1], set[tuple[int, int]]()
    for _ in range(coins.randint(0, most)):
        node = coins.randrange(len(tokens)), coins.randrange(VOCABULARY)
        if node not in taken:
            taken.add(node)
            parents.append(node[0])
            tokens.append(node[1])
    return tokens, parents


def window_of(trees: Sequence[tuple[list[int], list[int]]], q: Tensor | None = None) -> Window:
    size = max(len(tokens) for tokens, _ in trees)
    tokens = [tokens + [3] * (size - len(tokens)) for tokens, _ in trees]
    parents = [parents + [0] * (size - len(parents)) for _, parents in trees]
    widths = [len(tokens) for tokens, _ in trees]
    return Window(torch.tensor(tokens), torch.tensor(parents), torch.tensor(widths), q)


Path = tuple[int, ...]


def paths_of(tokens: list[int], parents: list[int]) -> list[Path]:
    found: list[Path] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def union_by_hand(elder: list[Path], younger: list[Path], first: int, room: int) -> list[tuple[Path, int | None]]:
    """The elder's first nodes, then those of both in order of depth, and for one of the younger its slot there."""
    nodes: list[tuple[Path, int | None]] = [(path, None) for path in elder]
    nodes += [(path, slot) for slot, path in enumerate(younger) if path not in elder]
    return (nodes[: first + 1] + sorted(nodes[first + 1 :], key=lambda node: len(node[0])))[: room + 1]


def test_two_trees_make_the_tree_of_all_their_paths() -> None:
    """Random trees; a twin of sets and sorts says which nodes there are, where, under which parent and with which q."""
    coins, cut, both, twins = random.Random(7), 0, 0, 0
    for turn in range(120):
        elders, youngers = ([tree_of(coins, most) for _ in range(3)] for most in (5, 4))
        q = drawn_q(3, max(len(tokens) for tokens, _ in youngers) - 1, turn) if turn % 2 else None
        room = [coins.randint(0, 9) for _ in range(3)]
        whole = [coins.randrange(len(tokens)) if coins.random() < 0.5 else 0 for tokens, _ in elders]
        elder, younger = window_of(elders), window_of(youngers, q)
        told = torch.rand(younger.tokens.shape, generator=torch.Generator().manual_seed(turn)) if turn % 3 else None
        younger = replace(younger, confidence=told)
        most = min(max(room), elder.tokens.shape[1] + younger.tokens.shape[1] - 2)
        found = grown_together(elder, younger, torch.tensor(whole), torch.tensor(room), most)
        found.check(3, most + 1, VOCABULARY, "both")
        for row in range(3):
            expected = union_by_hand(paths_of(*elders[row]), paths_of(*youngers[row]), whole[row], room[row])
            width = int(found.width[row])
            got = paths_of(found.tokens[row, :width].tolist(), found.parents[row, :width].tolist())
            assert got == [path for path, _ in expected]
            assert all(int(parent) < slot for slot, parent in enumerate(found.parents[row]))
            cut += width > room[row]
            assert (found.confidence is None) == (told is None)
            if found.confidence is not None and told is not None:
                by_path = dict(zip(paths_of(*youngers[row])[1:], told[row, 1:].tolist(), strict=False))
                due = [by_path.get(path, -1) for path, _ in expected]
                assert found.confidence[row, :width].tolist() == due
                twins += sum(path in by_path for path in paths_of(*elders[row]))
            for slot, (path, own) in enumerate(expected if q is not None else ()):
                assert found.q is not None
                assert q is not None
                if slot == 0:
                    continue
                left = sure([path[-1]])[0]
                if own is not None:
                    left = q[row, own - 1].clone()
                    tried = [other[-1] for other in paths_of(*elders[row]) if other and other[:-1] == path[:-1]]
                    left[tried] = 0
                    both += bool(tried)
                torch.testing.assert_close(found.q[row, slot - 1], left / left.sum(), rtol=1e-12, atol=0)
    assert cut > 50
    assert both > 20
    assert twins > 20


def test_the_example_of_the_docstring() -> None:
    found = grown_together(chains([[5, 6, 7]], [2]), chains([[5, 8]], [1]), torch.tensor([1]), torch.tensor([9]), 3)
    assert (found.tokens.tolist(), found.parents.tolist(), found.width.tolist()) == (
        [[5, 6, 8, 7]],
        [[-1, 0, 0, 1]],
        [4],
    )


AFTER, ALWAYS = Listed([[1, 2], [2, 0]], [[1, 1]], [[0], [2, 1]]), Listed([[1]], [[1]], [[1]])
FORKED = Shape((-1, 0, 0, 1))
"""Two siblings where a hybrid lets the table draw two slots."""

SHORT = one(3, eos=(1, 2))
"""A request with room for two proposals in its first step, which ends soon."""

MERGED = (
    ("tree_rejection", 3, chain(2), SHORT, hybrid_maker(ALWAYS, model_k=1, merge=True)),
    ("match", 3, chain(2), SHORT, hybrid_maker(AFTER, model_k=2, merge=True)),
    ("tree_rejection", 3, FORKED, one(3, eos=(2,)), hybrid_maker(ALWAYS, model_k=2, merge=True)),
    pytest.param(
        *("tree_rejection", 3, chain(3), one(4, eos=(2,)), hybrid_maker(AFTER, model_k=2, merge=True)),
        marks=pytest.mark.deep,
    ),
)
EXTENDED = tuple(
    (policy, 2, chain(3), one(3), hybrid_maker(Behind(), model_k=1, extend=True))
    for policy in ("rejection", "block", "tree_rejection", "match")
)


@pytest.mark.parametrize(
    ("policy", "vocabulary", "shape", "work", "draft"),
    slow_after(3, [*EXTENDED[:2], *MERGED, *EXTENDED[2:]]),
)
def test_what_several_sources_propose_leaves_the_targets_distribution(
    policy: str, vocabulary: int, shape: Shape, work: list[Request], draft: Any
) -> None:
    """Every outcome of whole runs: certain chains beside and behind drawn ones, cut where the slots are fewer."""
    assert exact_runs.run_distance(policy_named(policy), vocabulary, shape, work, draft=draft, seed=1) < 1e-12


def test_a_merged_tree_begins_with_what_the_row_has_without_merging() -> None:
    """A long first chain leaves no slot to others, a short one some; they are filled in order of depth."""
    long, short, other = [1, 2, 1, 2, 1], [1, 1], [[2, 2, 0], [2, 1]]
    for room, slots, paths, expected in (
        (5, 3, [long, *other], ([1, 2, 1, 2, 1], [0, 1, 2, 3, 4])),
        (9, 7, [long, *other], ([1, 2, 1, 2, 1, 2, 2], [0, 1, 2, 3, 4, 0, 6])),
        (9, 4, [short, *other], ([1, 1, 2, 2], [0, 1, 0, 3])),
        (9, 5, [short, *other], ([1, 1, 2, 2, 1], [0, 1, 0, 3, 3])),
        (2, 5, [long[:2], *(path[:2] for path in other)], ([1, 2], [0, 1])),
    ):
        window = hybrid_over(Listed(paths), merge=True, slots=slots).propose(rows_of_text([[0]], room))
        width = int(window.width[0])
        assert (window.tokens[0, 1:width].tolist(), window.parents[0, 1:width].tolist()) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 1.0, 1.01, 1.01, 1.02, 1.02, 1.03, 1.03, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.1, 2.2], 7),
        ([1.0] * 16, 15),
        ([float(width) for width in range(1, 17)], 0),
        ([1.0 + 0.049 * width for width in range(16)], 15),
        ([1.0 + 0.051 * width for width in range(16)], 0),
        ([1.0, 1.5, *[1.1] * 14], 15),
        ([2.0], 0),
    ],
)
def test_a_window_is_filled_while_a_slot_brings_more_than_it_costs(seconds: list[float], expected: int) -> None:
    costs = KnownCosts(lambda width, rows, length: 3 * seconds[width - 1] * (rows, length).count(2))
    assert cheap_proposals(sized_env(costs, max_rows=2, max_length=101, max_window=len(seconds))) == expected
    ((rows, lengths, widths),) = costs.wanted
    assert (rows, lengths) == ({2}, [50])
    assert {1, len(seconds)} <= {*widths} <= {1, 2, 4, 8, 12, 16}


@pytest.mark.parametrize(
    ("text", "policy", "says"),
    [
        ("hybrid(extend=True, merge=True)", "match", "hybrid takes extend or merge, not both"),
        ("hybrid(sources=suffix, extend=True)", "match", "'suffix', none of which goes on behind another's proposals"),
        ("hybrid(merge=True, slots=3)", "rejection", "proposes trees and the policy Rejection reads chains only"),
        ("hybrid(merge=True, slots=3)", "block", "proposes trees and the policy Block reads chains only"),
        ("hybrid(sources='draft_model, ngram', merge=True)", "match", "at most one other draft, as the last"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(text: str, policy: str, says: str, assemble: Make) -> None:
    with pytest.raises(SpecdecError, match=says):
        assemble().engine(text, policy, k=4)


@pytest.fixture
def itself(tmp_path: Any) -> str:
    """A folder with the target, as its own draft."""
    families.build_model("llama").save_pretrained(tmp_path)
    catalog.byte_tokenizer().save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_after(1, [0.0, 1.0]))
@pytest.mark.parametrize("model", ["draft_model(model={path})", "tree(model={path}, widths=1-1-1)"])
def test_a_model_that_is_the_target_is_kept_whole_whatever_stands_beside_it(
    model: str, temperature: float, itself: str, assemble: Make
) -> None:
    """Its three proposals are the target's own, under the parents that they were drawn after."""
    text = f"hybrid(sources='brief, {model.format(path=itself)}', merge=True, model_k=3, slots=7)"
    engine = assemble(max_rows=3, max_length=160, extra=(BRIEF,)).engine(text, k=7)
    kept, branched = [], 0

    def watch(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        nonlocal branched
        for row, room in enumerate(context.max_proposals_host.tolist()):
            if room == 7:
                above = window.parents[row, 1 : int(window.width[row])].tolist()
                branched += len({*above}) < len(above)
                kept.append(int(verdict.num_accepted[row]))

    engine.trace = watch
    engine.run(requests(SamplingParams(max_new_tokens=36, temperature=temperature), count=6))
    assert branched > 5
    assert min(kept) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("text", slow_after(1, ["draft_model(model={path})", "draft_model"]))
def test_a_lookup_goes_on_behind_a_model(text: str, itself: str, assemble: Make) -> None:
    """What is proposed behind the model's two tokens is what n-grams find after these; the model's are its own."""
    build, alone = assemble(max_rows=3, max_length=160), Ngram(ENV, n_min=1)
    model = text.format(path=itself)
    engine = build.engine(f"hybrid(sources='ngram(n_min=1), {model}', model_k=2, extend=True, slots=6)", k=6)
    behind = 0

    def watch(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        nonlocal behind
        for row, room in enumerate(context.max_proposals_host.tolist()):
            text = context.history[row, : context.length_host[row]].tolist()
            proposed = window.tokens[row, 1 : int(window.width[row])].tolist()
            looked = alone.continuations(row, np.array(text), room) if room else []
            first = looked[0] if looked else proposed[: min(2, room)]
            assert proposed[: len(first)] == first
            more = alone.continuations(row, np.array(text + first), room - len(first)) if room > len(first) else []
            assert proposed[len(first) :] == (more[0] if more else [])
            behind += not looked and bool(more)

    engine.trace = watch
    engine.run(requests(SamplingParams(max_new_tokens=36), count=6))
    assert behind > 5
