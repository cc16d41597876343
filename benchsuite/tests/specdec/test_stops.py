"""Stops inside an accepted block: no token past them is emitted, counted or shown."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchsuite.conformance.models.tiny import assembly, past_stops, prompts
from benchsuite.tests.rig import Make
from specdec import Completion, Engine, Request, SamplingParams, SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.characters import decoded
from specdec.stops import StopWatcher

BASE = Request(0, prompts(1)[0], SamplingParams(max_new_tokens=30))


@cache
def stopped_engine() -> tuple[Assembly, Engine]:
    """A tiny target, whose plain outputs are kept, and a draft that is always right: five tokens a step."""
    build = assembly()
    return build, assembly(extra=(past_stops(build.plain(BASE)),)).engine("past_stops", k=4)


def right_and_plain(params: SamplingParams) -> tuple[Completion, tuple[int, ...], Engine]:
    """A completion with the draft that is always right, plain's output, and the engine."""
    build, engine = stopped_engine()
    request = replace(BASE, params=params)
    return engine.run([request])[0], build.plain(request), engine


@pytest.mark.parametrize("place", range(10))
def test_an_end_token_stops_wherever_it_falls_in_the_block(place: int) -> None:
    full = stopped_engine()[0].plain(BASE)
    first = full.index(full[place])
    done, plain, engine = right_and_plain(replace(BASE.params, eos=(full[place],)))
    assert done.tokens == plain == full[: first + 1]
    assert done.finish_reason == "eos"
    assert len(done.kinds) == len(done.times) == first + 1
    assert engine.stats.counts["num_emitted_tokens"] == first + 1
    assert engine.stats.counts["num_accepted_tokens"] == done.kinds.count("accepted")


@pytest.mark.parametrize("budget", range(1, 12))
def test_a_budget_stops_wherever_it_falls_in_the_block(budget: int) -> None:
    done, plain, engine = right_and_plain(replace(BASE.params, max_new_tokens=budget))
    assert done.tokens == plain
    assert len(done.tokens) == engine.stats.counts["num_emitted_tokens"] == budget
    assert done.finish_reason == "length"


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("place", range(0, 12, 2))
def test_a_stop_string_stops_at_the_token_that_completes_it(place: int, length: int) -> None:
    build, _ = stopped_engine()
    full = build.plain(BASE)
    decode = build.tokenizer.decode
    stop = decode(full[place : place + length])
    if not stop or "\ufffd" in stop:
        stop = decode(full)[place : place + length].strip("\ufffd") or decode(full)[:1]
    done, plain, _ = right_and_plain(replace(BASE.params, stop=(stop,)))
    expected = next(n for n in range(1, len(full) + 1) if stop in decode(full[:n]))
    assert done.tokens == plain == full[:expected]
    assert done.finish_reason == "stop"


TEXT = st.text(alphabet="ab€🎉", max_size=7)


@pytest.mark.slow
@given(TEXT, st.lists(TEXT.filter(bool), max_size=2), st.integers(1, 30), st.sampled_from([(), (97,), (98, 256)]))
def test_a_watcher_ends_a_text_where_a_search_of_all_of_it_does(
    text: str, stop: list[str], limit: int, eos: tuple[int, ...]
) -> None:
    """Token by token, characters of one, three and four bytes; an end token comes first, a budget last."""
    tokenizer = catalog.byte_tokenizer()
    watcher = StopWatcher(SamplingParams(stop=tuple(stop), eos=eos), limit, tokenizer)
    tokens = tokenizer.encode(text)
    for count, token in enumerate(tokens, 1):
        found = watcher.feed(token)
        whole = tokenizer.decode(tokens[:count])
        ends = {
            "eos": token in eos,
            "stop": any(part in whole for part in stop),
            "length": count == limit,
        }
        assert found == next((reason for reason, is_so in ends.items() if is_so), None)
        if found:
            break


@pytest.mark.slow
def test_a_row_that_stops_does_not_disturb_the_others(assemble: Make) -> None:
    build = assemble(max_rows=3)
    work = [Request(i, p, SamplingParams(max_new_tokens=25)) for i, p in enumerate(prompts(3))]
    end = build.plain(work[1])[6]
    work = [replace(r, params=replace(r.params, eos=(end,))) for r in work]
    assert [c.tokens for c in build.engine("oracle(0.8)", k=4).run(work)] == [build.plain(r) for r in work]


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(SpecdecError, match="need a tokenizer"):
        StopWatcher(SamplingParams(stop=("x",)), 4, None)


@pytest.mark.parametrize("sign", ["a", "é", "€", "🙂"])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("before", ["", "x", "xé", "🙂€", "é🙂€x🙂"])
def test_a_stop_string_of_characters_of_any_size_is_seen_at_its_last_byte(sign: str, length: int, before: str) -> None:
    """A token of the byte vocabulary is one byte, and a character has up to four."""
    tokenizer = catalog.byte_tokenizer()
    stop = sign * length
    tokens = tokenizer.encode(before + stop, add_special_tokens=False)
    watcher = StopWatcher(SamplingParams(stop=(stop,)), 100, tokenizer)
    seen = [watcher.feed(token) for token in tokens]
    whole = [stop in tokenizer.decode(tokens[: place + 1]) for place in range(len(tokens))]
    assert seen.index("stop") == whole.index(True)


WORDS = ("[UNK]", "hello", "x", ".", "y", ",", "n't")


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8), st.sampled_from(["x.", " .", "x .", "y,", "n't", " n", ". y"])
)
def test_a_request_stops_where_the_text_that_is_shown_has_the_stop_string(tokens: list[int], stop: str) -> None:
    """Of a tokenizer that removes blanks before punctuation unless it is told not to."""
    inner = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=True)
    watcher = StopWatcher(SamplingParams(max_new_tokens=8, stop=(stop,)), len(tokens), tokenizer)
    reasons = [watcher.feed(token) for token in tokens]
    shown = [" ".join(WORDS[token] for token in tokens[: n + 1]) for n in range(len(tokens))]
    stopped = [stop in text for text in shown]
    assert reasons.index("stop") == stopped.index(True) if any(stopped) else "stop" not in reasons
    assert decoded(tokenizer, tokens) == shown[-1]
