"""Streams: text as it is generated, tokens as they are committed, and requests that leave early."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchsuite.conformance.models.tiny import prompts
from benchsuite.tests.rig import Make, pairs_in_turn, slow_after
from specdec import Draft, Engine, Request, SamplingParams, SpecdecError, StreamedToken, TextStream, catalog
from specdec.stops import FinishReason, StopWatcher
from specdec.text import shown_text

TOKENIZERS = ("tiny", pytest.param("smollm2-135m", marks=pytest.mark.slow))  # the second needs the model's files


@cache
def tokenizer_named(name: str) -> Any:
    """The tokenizer of a target: of bytes, or SmolLM2's."""
    return catalog.load_tokenizer(name)


def special_of(tokenizer: Any) -> int:
    """A special token of a tokenizer."""
    return int(tokenizer.all_special_ids[0])


def ended(tokenizer: Any, tokens: list[int], stop: tuple[str, ...]) -> tuple[list[int], FinishReason]:
    """The tokens up to the end that the engine's own watcher finds, and its reason."""
    watcher = StopWatcher(SamplingParams(stop=stop), len(tokens), tokenizer)
    for count, token in enumerate(tokens, 1):
        reason = watcher.feed(token)
        if reason:
            return tokens[:count], reason
    raise AssertionError("the limit ends every output")


def expected_text(tokenizer: Any, tokens: list[int], stop: tuple[str, ...], reason: FinishReason) -> str:
    """The whole output decoded at once: cut at the first stop string, special tokens taken out."""
    text, shown = "", []
    special = {token for token in set(tokens) if tokenizer.decode([token]) != tokenizer.decode([token], True)}
    run: list[int] = []
    for token in [*tokens, None]:
        if token is None or token in special:
            piece = tokenizer.decode(run)
            text, run = text + piece, []
            shown += [True] * len(piece)
            if token is not None:
                piece = tokenizer.decode([token])
                text += piece
                shown += [False] * len(piece)
        else:
            run.append(token)
    places = [text.find(part) for part in stop if part in text] if reason == "stop" else []
    end = min(places, default=len(text))
    return "".join(char for char, is_shown in zip(text[:end], shown, strict=False) if is_shown)


TEXTS = st.text(st.sampled_from("ab \nEND.é日本語🙂👩‍🚀\u0301\ufffd"), max_size=40) | st.text(max_size=20)


@st.composite
def drawn_output(draw: st.DrawFn, name: str) -> tuple[list[int], tuple[str, ...]]:
    """Tokens of a text, or any tokens, with special ones between; and stop strings, most of them of the text."""
    tokenizer, text = tokenizer_named(name), draw(TEXTS)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if draw(st.booleans()):
        ids = ids + draw(st.lists(st.integers(0, 255), max_size=60))
    for _ in range(draw(st.integers(0, 2))):
        ids = [*ids[: (at := draw(st.integers(0, len(ids))))], special_of(tokenizer), *ids[at:]]
    whole = tokenizer.decode(ids)
    stop = []
    for _ in range(draw(st.integers(0, 3))):
        start, length = draw(st.integers(0, len(whole))), draw(st.integers(1, 6))
        stop.append(whole[start : start + length] or draw(st.sampled_from(["END", "a", " ", "🙂"])))
    # A mark for broken bytes as a stop string is met by every part of a character, at once.
    return ids or [65], tuple(part for part in stop if "\ufffd" not in part)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_pieces_together_are_the_whole_text_cut_at_the_stop(name: str, data: st.DataObject) -> None:
    tokenizer, (tokens, stop) = tokenizer_named(name), data.draw(drawn_output(name))
    tokens, reason = ended(tokenizer, tokens, stop)
    stream = TextStream(tokenizer, stop)
    pieces = [stream.feed(token, reason if place == len(tokens) else None) for place, token in enumerate(tokens, 1)]
    assert (
        "".join(pieces) == expected_text(tokenizer, tokens, stop, reason) == shown_text(tokenizer, tokens, reason, stop)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS)
@example("👩‍🚀 日本語 é")
def test_no_part_of_a_character_is_ever_shown(name: str, text: str) -> None:
    tokenizer, shown = tokenizer_named(name), ""
    stream = TextStream(tokenizer)
    whole = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    for token in tokenizer.encode(text, add_special_tokens=False):
        shown += stream.feed(token)
        assert whole.startswith(shown)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_is_shown_as_soon_as_it_is_decided(name: str) -> None:
    tokenizer = tokenizer_named(name)
    stream, fed = TextStream(tokenizer, ("END",)), []
    shown = ""
    for token in tokenizer.encode("a bé🙂 EN. ENDx", add_special_tokens=False):
        fed.append(token)
        shown += stream.feed(token)
        whole = tokenizer.decode(fed).rstrip("\ufffd")
        unsure = next((n for n in (2, 1) if whole.endswith("END"[:n])), 0)
        if "END" not in whole:
            assert shown == whole[: len(whole) - unsure]


def test_special_tokens_are_not_shown_and_may_be_part_of_a_stop_string() -> None:
    tokenizer = tokenizer_named("tiny")
    tokens = [*tokenizer.encode("ab"), 257, *tokenizer.encode("c\n"), 256]
    assert shown_text(tokenizer, tokens, "length") == "abc\n" == tokenizer.decode(tokens, skip_special_tokens=True)
    assert shown_text(tokenizer, tokens, "stop", ("\n<|end|>",)) == "abc"


@pytest.mark.slow
def test_a_token_costs_the_same_after_ten_thousand_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = catalog.byte_tokenizer()
    stream, longest, decode = TextStream(tokenizer, ("END",)), 0, tokenizer.decode

    def watched(ids: list[int], **options: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(tokenizer, "decode", watched)
    for number in range(10_000):
        stream.feed(number * 7919 % 256)
    assert longest < 40


def joined(items: list[StreamedToken], number: int) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """The tokens, the kinds and the text that a stream gave to one request."""
    own = [item for item in items if item.request_id == number]
    assert [item.finish_reason for item in own[:-1]] == [None] * (len(own) - 1)
    return tuple(i.token for i in own), tuple(i.kind for i in own), "".join(i.text for i in own)


def work(count: int = 4, tokens: int = 12, **params: Any) -> list[Request]:
    """Requests over prompts of different lengths, each with three more new tokens than the one before."""
    return [
        Request(number, prompt, SamplingParams(max_new_tokens=tokens + 3 * number, **params))
        for number, prompt in enumerate(prompts(count))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("draft", slow_after(1, [None, "oracle(0.8)", "draft_model"]))
def test_a_stream_gives_the_tokens_kinds_and_reasons_of_a_run(draft: str | None, assemble: Make) -> None:
    build = assemble(max_rows=2)
    engine, requests = build.engine(draft, k=4), work()
    done = build.engine(draft, k=4).run(requests)
    requests[2] = Request(2, requests[2].prompt, SamplingParams(max_new_tokens=18, eos=(done[2].tokens[5],)))
    done = build.engine(draft, k=4).run(requests)
    items = list(engine.stream(requests))
    for completion in done:
        text = shown_text(build.tokenizer, completion.tokens, completion.finish_reason)
        assert joined(items, completion.request.id) == (completion.tokens, completion.kinds, text)
        assert [i for i in items if i.request_id == completion.request.id][-1].finish_reason == completion.finish_reason


def test_a_stream_ends_its_text_before_the_stop_string_within_a_block(assemble: Make) -> None:
    build = assemble()
    request = work(1)[0]
    text = build.tokenizer.decode(build.plain(request))
    stop = next(text[at : at + 2] for at in range(3, len(text)) if "\ufffd" not in text[at : at + 2])
    request = Request(0, request.prompt, SamplingParams(max_new_tokens=12, stop=(stop,)))
    items = list(build.engine("oracle(1.0)", k=5).stream([request]))
    tokens, _, shown = joined(items, 0)
    assert items[-1].finish_reason == "stop"
    assert shown == text[: text.index(stop)]
    assert stop in build.tokenizer.decode(tokens)


def test_a_stream_yields_the_tokens_of_a_step_before_it_takes_the_next(assemble: Make) -> None:
    engine = assemble().engine("oracle(1.0)", k=4)
    stream = engine.stream(work(1, tokens=11))
    steps = []
    for _ in stream:
        steps.append(len(engine.stats.steps))
    assert steps == [1] * 5 + [2] * 5 + [3]


def test_streams_that_are_open_together_each_give_their_own_tokens(assemble: Make) -> None:
    build = assemble(max_rows=3)
    engine, requests = build.engine("oracle(0.8)", k=3), work()
    first, second = engine.stream(requests[:2]), engine.stream(requests[2:])
    items: list[list[StreamedToken]] = [[], []]
    for turn in range(1000):
        for stream, got in ((first, items[0]), (second, items[1])):
            # The second reads less often, so that tokens of many steps wait for it.
            if stream is first or turn % 7 == 0:
                got.extend(item for item in [next(stream, None)] if item)
    for request in requests:
        own, other = items if request.id < 2 else reversed(items)
        assert joined(own, request.id)[0] == build.plain(request)
        assert request.id not in {item.request_id for item in other}


@pytest.mark.parametrize(
    ("request_", "message"),
    [(Request(9, ()), "the prompt of request 9 is empty"), (Request(0, (1,)), "same id, 0")],
)
def test_a_stream_refuses_at_the_call_and_changes_nothing(request_: Request, message: str, assemble: Make) -> None:
    build = assemble(max_rows=2)
    engine, requests = build.engine("ngram", k=2), work(2)
    with closing(engine.stream(requests[:1])) as stream:
        with pytest.raises(SpecdecError, match=message):
            engine.stream([requests[1], request_])
        assert len(engine.rows.live) == 1
        assert joined(list(stream), 0)[0] == build.plain(requests[0])


def calls_of(engine: Engine) -> dict[str, list[int]]:
    """Count, from now on, the requests that the engine's draft admits and releases itself."""
    calls: dict[str, list[int]] = {"admit": [], "release": []}
    draft = engine.draft
    assert isinstance(draft, Draft)
    admit, release, move = draft.admit, draft.release, draft.move

    def admitted(row: int, request: Request, prompt: tuple[int, ...]) -> None:
        calls["admit"].append(request.id)
        admit(row, request, prompt)

    def released(row: int, tokens: tuple[int, ...]) -> None:
        calls["release"].append(engine.rows.live[row].request.id)
        release(row, tokens)

    def moved(source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        kept = {name: list(ids) for name, ids in calls.items()}
        move(source, row, request, tokens)  # by default it releases and admits the same request again
        for name, ids in kept.items():
            calls[name][:] = ids

    for name, method in (("admit", admitted), ("release", released), ("move", moved)):
        object.__setattr__(draft, name, method)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "draft"), slow_after(1, pairs_in_turn([0, 2, 4], ["oracle(0.8)", "suffix", "eagle"]))
)
@pytest.mark.parametrize("after", [0, 9])
def test_a_closed_stream_leaves_the_other_requests_as_they_are_without_it(
    after: int, victim: int, draft: str, assemble: Make
) -> None:
    build = assemble(max_rows=3)
    engine, requests = build.engine(draft, k=3), work(5, temperature=0.7)
    calls = calls_of(engine)
    streams = [engine.stream([request]) for request in requests]
    items = [next(streams[victim]) for _ in range(after)]
    streams[victim].close()
    assert victim not in {live.request.id for live in engine.rows.live}
    assert len(engine.rows.live) == min(3, 4 - len(engine.finished)), "what waits takes the place at once"
    for request, stream in zip(requests, streams, strict=True):
        got = tuple(item.token for item in stream)
        assert got == (() if request.id == victim else build.plain(request))
    assert tuple(item.token for item in items) == build.plain(requests[victim])[:after]
    assert victim not in engine.finished
    assert not engine.rows.live
    assert sorted(calls["admit"]) == sorted(calls["release"])
    assert len(set(calls["admit"])) == len(calls["admit"])
    again = list(engine.stream([requests[victim]]))
    assert joined(again, victim)[0] == build.plain(requests[victim])


def test_an_error_of_the_reader_frees_its_rows_and_what_waits(assemble: Make) -> None:
    build = assemble(max_rows=2)
    engine, requests = build.engine("ngram", k=2), work(5)

    def read() -> None:
        for item in engine.stream(requests[:4]):
            if item.request_id == 1:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    engine.submit(requests[4:])
    assert [live.request.id for live in engine.rows.live] == [4]
    while engine.rows.live:
        engine.step()
    assert engine.finished.keys() == {4}
    assert engine.finished[4].tokens == build.plain(requests[4])


def test_a_request_cancelled_by_its_id_ends_its_stream_without_a_last_token(assemble: Make) -> None:
    build = assemble(max_rows=2)
    engine, requests = build.engine("ngram", k=2), work(3)
    stream = engine.stream(requests)
    items = [next(stream)]
    engine.cancel([0, 2, 77])
    again = engine.stream(requests[:1])
    items += stream
    assert {item.request_id for item in items if item.finish_reason} == {1}
    assert joined(items, 1)[0] == build.plain(requests[1])
    assert joined(list(again), 0)[0] == build.plain(requests[0])


def test_a_run_ends_the_open_streams_with_a_refusal(assemble: Make) -> None:
    build = assemble()
    engine, requests = build.engine("ngram", k=2), work(2)
    stream = engine.stream(requests[:1])
    assert engine.run(requests[:1])[0].tokens == build.plain(requests[0])
    with pytest.raises(SpecdecError, match=r"begun another run, which ended the requests \[0\] of this stream"):
        next(stream)
    assert engine.finished.keys() == {0}
