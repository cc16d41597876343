"""Lookup drafts: what they match, what they learn, and that their cost is linear in the text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import ask, prompts, requests
from benchsuite.tests.rig import Make, slow_after
from specdec import Context, Request, SamplingParams, Verdict, Window, catalog
from specdec_plugins.automaton import Automaton
from specdec_plugins.drafts.hybrid import Hybrid
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.drafts.suffix import Suffix
from specdec_plugins.lookup import merged

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
limits = st.integers(1, 4)
phrases = st.lists(st.tuples(st.integers(2, 3), st.integers(2, 3)), max_size=7).map(
    lambda pairs: [*(token for i, pair in enumerate(pairs) for token in (0, 1, *pair, 10 + i)), 0, 1]
)
"""Texts whose longest end seen before, 0 1, was followed by several paths."""
ENV: Any = None


def grown(*given_texts: list[int]) -> tuple[Automaton, int]:
    """An automaton of several texts, and its state after the last one."""
    automaton, state = Automaton(), Automaton.ROOT
    for text in given_texts:
        state = Automaton.ROOT
        for token in text:
            state = automaton.extend(state, token)
    return automaton, state


def occurrences(text: list[int], part: list[int]) -> int:
    return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


@pytest.mark.slow
@given(st.lists(texts, min_size=1, max_size=3))
def test_the_automaton_knows_exactly_the_substrings_and_what_follows_them(several: list[list[int]]) -> None:
    automaton, _ = grown(*several)
    known = {tuple(text[i:j]) for text in several for i in range(len(text)) for j in range(i, len(text) + 1)}
    found = set()
    waiting: list[tuple[tuple[int, ...], int]] = [((), Automaton.ROOT)]
    while waiting:
        path, state = waiting.pop()
        found.add(path)
        waiting += [((*path, token), follower) for token, follower in automaton.after[state].items()]
    assert found == known


@pytest.mark.slow
@given(texts)
def test_the_longest_match_is_the_longest_suffix_that_something_follows(text: list[int]) -> None:
    automaton, state = grown(text)
    match = automaton.length[automaton.longest(state)]
    by_hand = max(n for n in range(len(text)) if n == 0 or occurrences(text[:-1], text[len(text) - n :]))
    assert match == by_hand


@pytest.mark.slow
@given(texts)
def test_counts_are_occurrences_where_they_are_in_reach(text: list[int]) -> None:
    automaton, _ = grown(text)
    state, path = Automaton.ROOT, list[int]()
    for token in text[:12]:
        state, path = automaton.after[state][token], [*path, token]
        assert automaton.count[state] == occurrences(text, path)


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 2, 7, 0], ids=["one token", "two", "seven", "no repetition"])
def test_the_automaton_is_linear_in_its_text(period: int) -> None:
    """At most two states and three transitions a token, and inner loops that grow no faster than the text."""
    sizes, work = (2000, 8000), []
    for size in sizes:
        generator = np.random.default_rng(0)
        text = [i % period for i in range(size)] if period else generator.integers(0, 500, size).tolist()
        automaton, _ = grown(text)
        assert len(automaton.length) <= 2 * size
        assert sum(map(len, automaton.after)) <= 3 * size
        work.append(automaton.steps / size)
    assert work[1] < 1.5 * work[0] + 1, f"inner loops a token: {work}"


def propose(draft: Suffix, text: list[int], limit: int = 8) -> list[list[int]]:
    draft.admit(0, Request(0, (1,)), ())
    return draft.continuations(0, np.array(text), limit)


def ngram_by_hand(text: list[int], n_max: int, n_min: int, most: int, limit: int) -> list[list[int]]:
    """What follows the latest earlier occurrences of the longest end of ``text`` that occurs before, each once."""
    for n in range(min(n_max, len(text) - 1), n_min - 1, -1):
        after = [i + n for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if after:
            latest: dict[int, list[int]] = {}
            for place in reversed(after):
                latest.setdefault(text[place], text[place : place + limit])
            return list(latest.values())[:most]
    return []


@pytest.mark.slow
@given(st.lists(st.integers(0, 2), min_size=1, max_size=14), st.integers(1, 4), st.integers(1, 4), limits, limits)
def test_ngram_is_a_search_for_the_latest_occurrence_of_the_longest_end(
    text: list[int], n_min: int, more: int, most: int, limit: int
) -> None:
    found = Ngram(ENV, n_min + more - 1, n_min, branches=most).continuations(0, np.array(text), limit)
    assert found == ngram_by_hand(text, n_min + more - 1, n_min, most, limit)


def suffix_by_hand(
    earlier: list[list[int]], text: list[int], factor: float, least: float, min_match: int, most: int, limit: int
) -> list[list[int]]:
    """The continuations of ``text`` by counting occurrences in it and in ``earlier`` texts, oldest first."""

    def followers(part: list[int]) -> Counter[int]:
        n = len(part)
        return Counter(t[i + n] for t in [*earlier, text] for i in range(len(t) - n) if t[i : i + n] == part)

    def shares(part: list[int]) -> list[tuple[int, float]]:
        found = followers(part)  # in the order in which they were first seen, which a stable sort keeps
        return [(token, count / found.total()) for token, count in sorted(found.items(), key=lambda pair: -pair[1])]

    length = max(n for n in range(len(text) + 1) if n == 0 or followers(text[len(text) - n :]))
    if length < min_match:
        return []
    match, paths = text[len(text) - length :], []
    for token, likely in shares(match)[:most]:
        path: list[int] = []
        while likely >= least and len(path) < min(limit, max(1, int(factor * length))):
            path.append(token)
            if not followers(match + path):
                break
            token, share = shares(match + path)[0]
            likely *= share
        paths += [path] if path else []
    return paths


@pytest.mark.slow
@example([[2, 1], [1]], [1, 3, 2, 1], 1.0, 0.0, 1, 1, 1)  # where ends of several texts are equal, nothing follows
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), max_size=2),
    st.one_of(st.lists(st.integers(0, 2), min_size=1, max_size=14), phrases),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.2, 0.3, 0.5, 1.0]),
    st.integers(1, 3),
    limits,
    limits,
)
def test_suffix_is_a_count_of_what_followed_the_longest_end_seen_before(
    earlier: list[list[int]], text: list[int], factor: float, least: float, min_match: int, most: int, limit: int
) -> None:
    """Match, order, likelihood of a whole path, and length: one automaton of all texts beside counts of their parts."""
    draft = Suffix(ENV, factor, least, min_match, branches=most)
    for number, other in enumerate(earlier):
        draft.admit(0, Request(number, (1,)), tuple(other[:3]))
        draft.release(0, tuple(other))
    draft.admit(0, Request(9, (1,)), tuple(text[:2]))
    expected = suffix_by_hand(earlier, text, factor, least, min_match, most, limit)
    assert draft.continuations(0, np.array(text), limit) == expected


def test_suffix_follows_what_came_most_often() -> None:
    assert propose(Suffix(ENV), [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2], 1) == [[3]]


def test_a_proposal_is_as_long_as_its_match_allows() -> None:
    text = [7, 1, 2, 3, 4, 5, 6, 8, 9, 7, 1, 2]
    assert propose(Suffix(ENV, factor=1.0), text) == [[3, 4, 5]]
    assert propose(Suffix(ENV, factor=2.0), text) == [[3, 4, 5, 6, 8, 9]]
    assert propose(Suffix(ENV, factor=2.0), text, limit=2) == [[3, 4]]
    assert propose(Suffix(ENV, min_match=4), text) == []


def test_a_proposal_ends_where_it_has_become_unlikely() -> None:
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2]
    assert propose(Suffix(ENV, factor=9, least=0.5), text) == [[3]]
    assert propose(Suffix(ENV, factor=9, least=0.3, branches=2), [1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2], 2) == [
        [3, 9],
        [4, 9],
    ]


def test_continuations_become_one_tree_level_by_level() -> None:
    assert merged([[5, 6], [5, 7]], 8) == ([5, 6, 7], [0, 1, 1])
    assert merged([[1, 2, 3], [4]], 8) == ([1, 4, 2, 3], [0, 0, 1, 3])
    assert merged([[1, 2, 3], [4]], 2) == ([1, 4], [0, 0])
    assert merged([], 4) == ([], [])


def _work(ids: range) -> list[Request]:
    return [Request(i, prompts(1)[0], SamplingParams(max_new_tokens=40)) for i in ids]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "learns"),
    slow_after(
        2,
        [
            ("suffix", True),
            ("suffix(earlier=False)", False),
            ("hybrid(sources='ngram(n_min=9, n_max=9), suffix')", True),
            ("hybrid(sources='suffix(earlier=False), ngram')", False),
        ],
    ),
)
def test_suffix_learns_from_earlier_outputs_unless_told_not_to_and_can_forget(
    text: str, learns: bool, assemble: Make
) -> None:
    engine = assemble(max_length=160).engine(text, k=8)
    assert engine.draft is not None
    assert engine.draft.learns is learns
    lengths = []
    for forgotten in (False, False, True):
        if forgotten:
            engine.draft.forget()
        engine.run(_work(range(1)))
        lengths.append(engine.stats.tau or 0.0)
    assert (lengths[1] > 4 > lengths[0]) is learns
    assert lengths[2] == lengths[0]
    assert learns or lengths[1] == lengths[0]


def test_a_row_that_moves_or_was_not_asked_still_feeds_its_whole_text(assemble: Make) -> None:
    engine = assemble(max_rows=3, max_length=160).engine("suffix", k=4)
    ask(engine, [4, 0, 0, 4, 0] * 100)
    done = engine.run(requests(count=6))
    assert engine.stats.counts["kv_rows_moved_bytes"] > 0, "no row moved: the case is not covered"
    fed = sum(len(c.request.prompt) + len(c.tokens) for c in done)
    assert engine.stats.counts["suffix_indexed_tokens"] == fed


def test_hybrid_adds_what_its_sources_count(assemble: Make) -> None:
    engine = assemble(max_length=160).engine("hybrid(sources='suffix, suffix(min_match=9)')", k=4)
    done = engine.run(requests(count=2))
    fed = sum(len(c.request.prompt) + len(c.tokens) for c in done)
    assert engine.stats.counts["suffix_indexed_tokens"] == 2 * fed


@pytest.mark.slow
@given(st.lists(st.integers(0, 2), min_size=2, max_size=12), st.permutations(range(3)), limits)
def test_hybrid_proposes_what_the_first_of_its_sources_finds(text: list[int], order: list[int], limit: int) -> None:
    """Three lookups in any order, which know different texts; the row has room for ``limit`` proposals, or for none."""
    sources = [Ngram(ENV, n, n) for n in (1, 2, 3)]
    env: Any = SimpleNamespace(
        draft=lambda name: sources[int(name)], max_rows=1, target=SimpleNamespace(device=torch.device("cpu"))
    )
    hybrid = Hybrid(env, sources=", ".join(map(str, order)))
    for room in (limit, 0):
        lent: Any = SimpleNamespace(
            max_proposals_host=np.array([room]),
            length_host=np.array([len(text)]),
            history=np.array([text]),
            rows=1,
            tokens=torch.zeros(1),
        )
        lent.price = None
        lent.pending = torch.tensor([text[-1]])
        by_hand = [found for n in order if (found := ngram_by_hand(text, n + 1, n + 1, 1, room)) and room]
        expected = by_hand[0] if by_hand else []
        assert list(hybrid.look_up(lent, 0)) == expected
        window = hybrid.propose(lent)
        assert window.tokens[0].tolist() == [text[-1], *(expected[0] if expected else [])]


def test_hybrid_forgets_what_any_of_its_sources_has_learnt() -> None:
    learnt = [Suffix(ENV, min_match=1), Suffix(ENV, min_match=2)]
    env: Any = SimpleNamespace(
        draft=lambda name: learnt[int(name)], max_rows=1, target=SimpleNamespace(device=torch.device("cpu"))
    )
    hybrid, history = Hybrid(env, sources="0, 1"), np.array([5, 6])
    hybrid.admit(0, Request(0, (1,)), (5, 6, 7))
    hybrid.release(0, (5, 6, 7))
    for forgotten, expected in ((False, [[7]]), (True, [])):
        if forgotten:
            hybrid.forget()
        for source in learnt:
            source.admit(0, Request(1, (1,)), ())
            assert source.continuations(0, history, 4) == expected


def test_hybrid_takes_the_first_source_that_has_something(assemble: Make) -> None:
    """If suffix proposes nothing, hybrid equals n-gram; with the oracle last, rows without a match use the oracle."""
    build = assemble(max_rows=3, max_length=160)
    counts = {}
    for text in ("ngram", "hybrid(sources='suffix(min_match=99), ngram')", "hybrid(sources='ngram, oracle(1.0)')"):
        engine = build.engine(text, k=4)
        engine.run(requests(count=6))
        counts[text] = engine.stats.counts
    alone, silent, oracle = counts.values()
    assert silent["num_draft_tokens"] == alone["num_draft_tokens"]
    assert silent["num_accepted_tokens"] == alone["num_accepted_tokens"]
    assert oracle["num_accepted_tokens"] > 3 * alone["num_accepted_tokens"]
    assert oracle["num_drafts"] > alone["num_drafts"]


@pytest.mark.slow
def test_hybrid_leaves_a_model_right_after_steps_that_were_not_its_own(assemble: Make, tmp_path: Path) -> None:
    """The draft is the target: all its own proposals are kept, also after steps that verified lookups instead."""
    families.build_model("llama").save_pretrained(tmp_path)
    catalog.byte_tokenizer().save_pretrained(tmp_path)
    build = assemble(max_rows=3, max_length=160)
    text = f"hybrid(sources='ngram(n_min=1), draft_model(model={tmp_path})', model_k=3)"
    engine, lookup = build.engine(text, k=8), Ngram(ENV, n_min=1)
    own, looked = [], 0

    def watch(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        nonlocal looked
        for row in range(context.rows):
            proposed = int(window.width[row]) - 1
            if lookup.continuations(row, context.history[row, : context.length_host[row]], 8):
                looked += 1
            elif proposed:
                own.append(int(verdict.num_accepted[row]) == proposed)

    engine.trace = watch
    engine.run(requests(SamplingParams(max_new_tokens=36), count=6))
    assert looked > 20
    assert len(own) > 20
    assert all(own)
