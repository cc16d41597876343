"""Lookup drafts: what they match, what they learn, and that their cost is linear in the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchsuite.prove import families
from benchsuite.prove.tiny import ask, prompts, requests
from benchsuite.tests.rig import Make
from specdec import Context, Request, SamplingParams, Verdict, Window, catalog
from specdec_plugins.automaton import Automaton
from specdec_plugins.drafts.ngram import Ngram
from specdec_plugins.drafts.suffix import Suffix
from specdec_plugins.lookup import merged

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
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


@given(texts)
def test_the_longest_match_is_the_longest_suffix_that_something_follows(text: list[int]) -> None:
    automaton, state = grown(text)
    match = automaton.length[automaton.longest(state)]
    by_hand = max(n for n in range(len(text)) if n == 0 or occurrences(text[:-1], text[len(text) - n :]))
    assert match == by_hand


@given(texts)
def test_counts_are_occurrences_where_they_are_in_reach(text: list[int]) -> None:
    automaton, _ = grown(text)
    state, path = Automaton.ROOT, list[int]()
    for token in text[:12]:
        state, path = automaton.after[state][token], [*path, token]
        assert automaton.count[state] == occurrences(text, path)


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


@pytest.mark.parametrize(
    ("text", "learns"),
    [
        ("suffix", True),
        ("suffix(earlier=False)", False),
        ("hybrid(sources='ngram(n_min=9, n_max=9), suffix')", True),
        ("hybrid(sources='suffix(earlier=False), ngram')", False),
    ],
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
    engine.run(requests(count=6))
    assert looked > 20
    assert len(own) > 20
    assert all(own)
