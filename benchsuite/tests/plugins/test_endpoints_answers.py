"""Answers of servers, object by object: each is read for what it says, or refused by its kind."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.characters import whole_characters
from specdec_plugins.endpoints.answers import (
    LONGEST_TOKEN,
    AnswerError,
    AnswerReader,
    choice_tokens,
    models_of,
    self_reported,
)
from specdec_plugins.endpoints.events import LONGEST_LINE, EventStream, ServerEvent
from specdec_plugins.endpoints.replies import Reply, Token

RECORDED = Path(__file__).parents[1] / "recorded"
DONE = b"data: [DONE]\n\n"


def streamed_reply(*objects: dict[str, Any], most: int = 4, echo: bool = False, done: bool = True) -> Reply:
    """The reply made of a stream of these objects, which come a second apart."""
    reader = AnswerReader(most, echo)
    for seconds, one in enumerate(objects, 1):
        reader.feed(b"data: " + json.dumps(one).encode() + b"\n\n", float(seconds))
    if done:
        reader.feed(DONE, float(len(objects)))
    return reader.reply(9.0)


def whole_reply(found: object, most: int = 4) -> Reply:
    """The reply made of one object."""
    reader = AnswerReader(most)
    reader.whole(found if isinstance(found, bytes) else json.dumps(found).encode(), 1.0)
    return reader.reply(1.0)


def completion(text: str, tokens: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An object of a completion with so many tokens, of a letter each."""
    logprobs = {"tokens": ["a"] * tokens, "token_logprobs": [-1.0] * tokens} if tokens else None
    return {"choices": [{"text": text, "logprobs": logprobs, "finish_reason": finish}], **more}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """An object of a chat's stream."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage_of(tokens: object) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": ', "truncated"),
        ('{"a": "b', "truncated"),
        ('{"a": "b  ', "truncated"),
        ("", "truncated"),
        ('{"a": }', "invalid"),
        ("<html>", "invalid"),
        ("[1]", "invalid"),
        ("[" * 99_999, "invalid"),
        ('{"choices": [], "own": ' + "[" * 900 + "]" * 900 + "}", "invalid"),
        ('{"choices": [], "own": ' + "[" * 100 + "]" * 100 + "}", "invalid"),
        ('{"choices": [], "usage": null, "own": ' + "[" * 99 + "]" * 99 + "}", "cut_off"),
        ('{"choices": [], "usage": null, "own": ' + "[{}, [], 1]," * 99 + "2}", "invalid"),
        ('{"choices": [], "usage": null, "own": [' + "[{}, [], 1]," * 99 + "2]}", "cut_off"),
        ('{"usage": [1]}', "invalid"),
        ('{"usage": 3}', "invalid"),
        ('{"error": "no"}', "server_error"),
        ('{"object": "error", "message": "no"}', "server_error"),
        ('{"hello": 1}', "invalid"),
        ('{"choices": [], "error": {}, "usage": null}', "cut_off"),
    ],
)
def test_a_text_that_is_no_answer_has_its_kind(text: str, kind: str) -> None:
    with pytest.raises(AnswerError) as failed:
        whole_reply(text.encode())
    assert failed.value.kind == kind


@pytest.mark.parametrize(
    ("objects", "kind"),
    [
        ([completion("aaaa", 4, "length")], ""),
        ([completion("aaaaa", 5, "length")], "endless"),
        ([completion("a")] * 4 * LONGEST_TOKEN + [completion("", finish="length")], ""),
        ([completion("a")] * 4 * LONGEST_TOKEN + [completion("a", finish="length")], "endless"),
        ([completion("")] * 99 + [completion("a", finish="length")], ""),
        ([completion("a")], "cut_off"),
        ([completion("a", finish="")], ""),
        ([completion("aa", 2, "length", usage={"completion_tokens": 2})], ""),
        ([completion("aa", 2, "stop", usage={"completion_tokens": 2.0})], ""),
        ([completion("aa", 2, "stop", usage={"completion_tokens": 3})], ""),
        ([completion("aa", 2, "length", usage={"completion_tokens": 3})], "usage"),
        ([completion("aa", 2, "stop", usage={"completion_tokens": 4})], "usage"),
        ([completion("aa", 2, "stop", usage={"completion_tokens": 1})], "usage"),
        ([completion("ab", 2, "length")], "usage"),
        ([completion("a", 2, "length")], "usage"),
        ([completion("a", 2, "stop")], ""),
        ([completion("a", finish="length", usage={"completion_tokens": 4})], ""),
        ([completion("a", finish="length", usage={"completion_tokens": 5})], "usage"),
        ([completion("a", finish="stop", usage={"completion_tokens": 0})], "usage"),
        ([completion("", finish="stop", usage={"completion_tokens": 0})], ""),
        ([completion("a", finish="stop"), usage_of(-1)], "invalid"),
        ([completion("a", finish="stop"), usage_of("1")], "invalid"),
        ([completion("a", finish="stop"), usage_of(True)], "invalid"),
        ([completion("a", finish="stop"), usage_of(1.5)], "invalid"),
        ([completion("a", finish="stop"), usage_of(math.inf)], "invalid"),
        ([completion("a", finish="stop"), usage_of(None)], ""),
        ([completion("a", finish="length"), {"usage": {"completion_tokens": 1}}], ""),
        ([{"choices": ["a"]}], "invalid"),
        ([{"choices": "a"}], "invalid"),
        ([{"choices": [{"text": "a"}, {"text": "b", "index": 1}]}], "invalid"),
        ([{"choices": [{"text": "a", "index": 1}]}], "invalid"),
        ([{"choices": [{"text": "a", "finish_reason": 3}]}], "invalid"),
        ([{"choices": [{"text": 3}]}], "invalid"),
        ([{"choices": [{"delta": "a"}]}], "invalid"),
        ([chat(content=[{"type": "image_url"}])], "invalid"),
        ([chat(content="a", text="b")], "invalid"),
        ([chat(reasoning="a", reasoning_content="b")], "invalid"),
        ([chat("tool_calls", tool_calls=[{"index": 0}])], "invalid"),
        ([{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1, -1]}}]}], "invalid"),
    ],
)
def test_an_answer_of_at_most_four_tokens_is_whole_or_has_its_kind(objects: list[dict[str, Any]], kind: str) -> None:
    if not kind:
        streamed_reply(*objects)
        return
    with pytest.raises(AnswerError) as failed:
        streamed_reply(*objects)
    assert failed.value.kind == kind


@pytest.mark.parametrize(
    ("sent", "counted", "most", "fits"), [(3, 4, 4, 1), (1, 9, 9, 1), (1, 10, 10, 0), (3, 4, 5, 0)]
)
def test_a_whole_answer_may_lack_the_tokens_of_a_character_that_was_cut(
    sent: int, counted: int, most: int, fits: int
) -> None:
    """llama.cpp counts them and holds them back: honest samples of it could not be read. In a stream more tokens than
    were sent would be speed."""
    answer = completion("a" * sent, sent, "length", usage={"completion_tokens": counted})
    if fits:
        assert len(whole_reply(answer, most).tokens) == sent
    else:
        with pytest.raises(AnswerError, match="came with log-probabilities"):
            whole_reply(answer, most)
    with pytest.raises(AnswerError, match="came with log-probabilities"):
        streamed_reply(answer, most=most)


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"content": "Hi"}, "Hi"),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]}, "Hi!"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm", "content": "Hi"}, "hmHi"),
        ({"reasoning": "hm", "reasoning_content": None, "content": ""}, "hm"),
        ({"role": "assistant", "content": "Hi", "tool_calls": []}, "Hi"),
    ],
)
def test_a_text_is_read_from_every_field_that_the_api_has_for_it(delta: dict[str, Any], text: str) -> None:
    assert streamed_reply(chat("stop", **delta)).text == text
    assert whole_reply({"choices": [{"message": delta, "finish_reason": "stop"}]}).text == text


def test_a_delta_that_is_empty_is_no_call_for_the_message_beside_it() -> None:
    last = {"choices": [{"delta": {}, "message": {"content": "ab"}, "finish_reason": "stop"}]}
    assert streamed_reply(chat(content="a"), chat(content="b"), last).text == "ab"


def test_a_reply_is_all_that_came() -> None:
    first = completion("a", 1, own=1, other=None)
    first["choices"][0] |= {"token_ids": [7], "meta_info": {"x": 1}, "prompt_token_ids": None}
    second = {"choices": [{"delta": {"reasoning_content": "r", "content": "c", "reasoning": None}}], "own": 2}
    third = completion("", 0, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2})
    found = streamed_reply(first, second, third)
    assert (found.text, found.seconds, found.finish_reason, found.attempts) == ("arc", 3.0, "stop", 1)
    assert [(chunk.seconds, chunk.text, chunk.tokens) for chunk in found.chunks] == [(1.0, "a", 1), (2.0, "rc", None)]
    assert (found.prompt_tokens, found.completion_tokens, found.counted) == (5, 2, 2)
    assert found.body == {"own": 2, "token_ids": [7], "meta_info": {"x": 1}}
    assert found.tokens == (), "the second piece has no log-probabilities: the server names some tokens alone"
    assert streamed_reply(first, third | {"usage": None}).tokens == (Token("a", 7, -1.0),)
    assert streamed_reply(completion("ab", finish="length", usage={"completion_tokens": 1})).counted == 1
    assert streamed_reply(completion("ab", finish="length")).counted is None
    sent_back = streamed_reply(completion("aaaa", 4, "length", usage={"completion_tokens": 1}), most=1, echo=True)
    assert len(sent_back.tokens) == 4


def test_a_stream_ends_with_its_mark_or_with_a_reason() -> None:
    assert streamed_reply(completion("a", finish="length"), done=False).text == "a", "some servers send no [DONE]"
    reader = AnswerReader(4)
    reader.feed(DONE + b'data: {"choices": [{"text": "b"}]}\n\n', 1.0)
    assert reader.done
    for objects, done, kind in (
        ([completion("a")], False, "truncated"),
        ([completion("a", finish="")], False, "truncated"),
        ([completion("a")], True, "cut_off"),
    ):
        with pytest.raises(AnswerError) as failed:
            streamed_reply(*objects, done=done)
        assert failed.value.kind == kind


def test_usage_on_every_piece_counts_the_choice_tokens_each() -> None:
    def so_far(text: str, tokens: int, finish: str | None = None) -> dict[str, Any]:
        return completion(text, 0, finish, usage={"completion_tokens": tokens})

    found = streamed_reply(so_far("abc", 3), so_far("d", 4, "stop"), usage_of(4))
    assert [chunk.tokens for chunk in found.chunks] == [3, 1]
    found = streamed_reply(so_far("abc", 3), so_far("", 4), so_far("de", 4, "stop"), usage_of(5), most=8)
    assert [chunk.tokens for chunk in found.chunks] == [3, 1], "the end token is counted and has no text"
    for objects in (
        (completion("abc"), so_far("d", 4, "stop")),
        (so_far("a", 1), so_far("b", 1), so_far("c", 1, "stop"), usage_of(3)),
        (so_far("a", 3), so_far("b", 2, "stop")),
    ):
        assert {chunk.tokens for chunk in streamed_reply(*objects).chunks} == {None}, (
            "not the tokens so far, or not always"
        )


def test_token_ids_count_the_choice_tokens_a_piece_also_of_those_without_a_text_yet() -> None:
    parts = [("a", [1]), ("", [2]), ("é", [3]), ("b", [4])]
    objects = [{"choices": [{"text": text, "token_ids": ids, "finish_reason": None}]} for text, ids in parts]
    found = streamed_reply(*objects, usage_of(4), completion("", finish="stop"))
    assert [(chunk.text, chunk.tokens) for chunk in found.chunks] == [("a", 1), ("é", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("names", "text", "finish", "kept"),
    [
        (["a", "b"], "ab", "length", True),
        (["a", "x", "b"], "ab", "length", False),
        (["a", "x", "b"], "ab", "stop", False),
        (["a", "b", "x"], "ab", "length", False),
        (["a", "b", "x"], "ab", "stop", True),  # the last was the end, or part of a stop string
        (["a", "b", "<|im_end|>"], "ab", "stop", True),
        (["a", "<|channel|>", "b"], "ab", "stop", True),  # a special token in the middle: not judged
        ([" a", "b\n"], "ab", "length", True),  # servers strip blanks
        (["Ã", "\ufffd"], "é", "length", True),  # parts of a character: not judged
        (["token_id:7", "token_id:9"], "ab", "length", True),
    ],
)
def test_tokens_that_do_not_spell_the_text_are_refused(names: list[str], text: str, finish: str, kept: bool) -> None:
    found = {"choices": [{"text": text, "logprobs": {"tokens": names}, "finish_reason": finish}]}
    if kept:
        assert [token.text for token in whole_reply(found).tokens] == names
        return
    with pytest.raises(AnswerError, match="spell") as failed:
        whole_reply(found)
    assert failed.value.kind == "usage"


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({}, ()),
        ({"logprobs": {}}, ()),
        ({"logprobs": {"content": None}}, ()),
        ({"logprobs": {"content": None, "refusal": None}}, ()),
        ({"logprobs": {"tokens": None}}, ()),
        ({"logprobs": {"content": []}}, ()),
        ({"logprobs": {"tokens": ["a"]}}, (Token("a"),)),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [0.001]}}, (Token("a", None, 0.001),)),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-math.inf]}}, (Token("a"),)),
        (
            {"logprobs": {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [{"b": -2, "a": -1}]}},
            (Token("a", None, None, (("a", -1.0), ("b", -2.0))),),
        ),
        (
            {"logprobs": {"tokens": ["a"], "top_logprobs": [{"a": -1, "b": None, "c": -math.inf}]}},
            (Token("a", None, None, (("a", -1.0),)),),
        ),
        ({"logprobs": {"tokens": ["a"], "top_logprobs": [None]}}, (Token("a"),)),
        (
            {"logprobs": {"tokens": ["a"], "top_logprobs": [[{"token": "a", "logprob": -1}]]}},
            (Token("a", None, None, (("a", -1.0),)),),
        ),
        (
            {
                "logprobs": {
                    "content": [
                        {"token": "a", "id": 3, "logprob": -1, "top_logprobs": [{"token": "b", "logprob": -0.5}]},
                        {"token": "c", "top_logprobs": [{"token": "d", "logprob": None}, {"token": "e"}]},
                    ]
                }
            },
            (Token("a", 3, -1.0, (("b", -0.5),)), Token("c")),
        ),
        ({"logprobs": {"tokens": ["a"]}, "token_ids": [9]}, (Token("a", 9),)),
        # An echo's token_ids are those of the answer alone.
        (
            {"logprobs": {"tokens": ["a", "b", "c"]}, "prompt_token_ids": [7, 8], "token_ids": [9]},
            (Token("a", 7), Token("b", 8), Token("c", 9)),
        ),
    ],
)
def test_tokens_are_read_from_lists_side_by_side_and_from_content(choice: Any, tokens: Any) -> None:
    assert choice_tokens(choice) == tokens


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [0.0011]}}, "the token 'a' has the log-probability 0.0011"),
        ({"logprobs": {"tokens": ["a"], "top_logprobs": [{"b": 0.01}]}}, "the token 'b' has the log-probability 0.01"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [math.nan]}}, "the token 'a' has the log-probability nan"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": ["-1"]}}, "the token 'a' has the log-probability '-1'"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [False]}}, "the token 'a' has the log-probability False"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-1, -1]}}, "1 tokens, 2 token_logprobs, 1 top_logprobs"),
        ({"logprobs": {"tokens": ["a"], "top_logprobs": [None, None]}}, "1 tokens, 1 token_logprobs, 2 top_logprobs"),
        ({"logprobs": {"tokens": ["a", "b"]}, "token_ids": [1]}, "2 tokens .* 1 token_ids"),
        ({"logprobs": {"tokens": ["a", "b"]}, "prompt_token_ids": [1, 2], "token_ids": [1]}, "2 tokens .* 3 token_ids"),
        ({"logprobs": {"tokens": ["a"]}, "token_ids": ["9"]}, "token_ids is '9'"),
        ({"logprobs": {"tokens": [None]}}, "token is None in .*; expected a text"),
        ({"logprobs": {"token_logprobs": [1]}}, "0 tokens, 1 token_logprobs"),
        ({"logprobs": {"content": "a"}}, "content is 'a'; expected a list"),
        ({"logprobs": {"content": ["a"]}}, "a token is 'a'; expected an object"),
        ({"logprobs": ["a"]}, "logprobs are .*; expected an object"),
    ],
)
def test_lists_that_are_no_tokens_are_refused(choice: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        choice_tokens(choice)


def test_what_a_server_reports_of_itself_is_all_but_the_apis_fields_and_can_be_written() -> None:
    names = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "timings", "empty")
    assert self_reported({name: None if name == "empty" else 1 for name in names}) == {"timings": 1}
    odd = {"timings": {"a": [math.inf, 1.5], "b": math.nan, "c": "\ud83d", "\ud83d": 1}}
    assert json.dumps(self_reported(odd), allow_nan=False, ensure_ascii=False).encode()
    assert self_reported(odd)["timings"]["a"] == [None, 1.5]


@pytest.mark.parametrize(
    "page", ['{"data": [{"id": 3}]}', '{"models": []}', '{"data": "m"}', '{"data": ["m"]}', "[]", "<html>", "{"]
)
def test_a_page_that_is_no_list_of_models_is_refused(page: str) -> None:
    with pytest.raises(AnswerError):
        models_of(page)


def test_a_page_of_models_has_their_names() -> None:
    assert models_of('{"data": [{"id": "m"}, {"id": "n"}], "models": []}') == ["m", "n"]
    assert models_of('{"data": []}') == []


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8")))
def test_characters_that_json_cuts_in_two_are_joined_again(text: str) -> None:
    halves = [half.decode("utf-16-le", "surrogatepass") for half in _units(text)]
    assert whole_characters("".join(halves)) == text
    objects = [completion(half) for half in halves]
    assert streamed_reply(*objects, completion("", finish="stop"), most=99_999).text == text


def _units(text: str) -> list[bytes]:
    """The two bytes of each unit of UTF-16."""
    data = text.encode("utf-16-le")
    return [data[at : at + 2] for at in range(0, len(data), 2)]


@pytest.mark.parametrize(
    ("text", "found"), [("a\ud83d", "a\ufffd"), ("\ude00b", "\ufffdb"), ("\ud83dx\ude00", "\ufffdx\ufffd")]
)
def test_half_a_character_is_shown_as_one_that_is_missing(text: str, found: str) -> None:
    assert whole_characters(text) == found
    reply = streamed_reply(completion(text), completion("", finish="stop"))
    assert (reply.text, "".join(chunk.text for chunk in reply.chunks) in (found, found[:-1])) == (found, True)


EVENTS = [
    ServerEvent('{"a": 1}'),
    ServerEvent('{"b":\n2}'),
    ServerEvent("no", error=True),
    ServerEvent("oops", error=True),
    ServerEvent("[DONE]"),
]


@pytest.mark.slow
@given(
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    space=st.sampled_from([b"", b" "]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_events_are_the_same_wherever_a_stream_is_cut_and_however_its_lines_end(
    end: bytes, space: bytes, mark: bytes, cuts: list[int]
) -> None:
    lines = [
        b": a comment",
        b'data:%s{"a": 1}' % space,
        b"",
        b"id: 7",
        b'data:%s{"b":' % space,
        b"data:%s2}" % space,
        b"",
        b"event: error",
        b"data:%sno" % space,
        b"",
        b"error:%soops" % space,
        b"",
        b"data",
        b"data: [DONE]",
        b"",
    ]
    data = mark + b"".join(line + end for line in lines)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream, found = EventStream(), list[ServerEvent]()
    for start, stop in itertools.pairwise(places):
        found += stream.feed(data[start:stop])
    assert [*found, *stream.end()] == EVENTS


def test_events_without_an_empty_line_between_them_are_several_and_a_bare_object_is_one() -> None:
    stream = EventStream()
    assert stream.feed(b'data: {"a": 1}\ndata: [DONE]\n{"error": "no"}\n') == [
        ServerEvent('{"a": 1}'),
        ServerEvent("[DONE]"),
        ServerEvent('{"error": "no"}'),
    ]


def test_a_line_without_an_end_is_too_long_at_last() -> None:
    stream = EventStream()
    assert stream.feed(b"x" * LONGEST_LINE) == []
    with pytest.raises(OverflowError, match="1 MiB"):
        stream.feed(b"x")


@pytest.mark.parametrize(
    ("file", "named", "pieces", "text"),
    [
        ("llama-b11549-stream-plain.txt", 16, 16, "The months of the year are: January"),
        # Its usage is right, and steps that speculated have no log-probabilities in a stream.
        ("llama-b11549-stream-ngram.txt", 0, 16, "The months of the year are: January"),
        ("llama-b11549-stream-draft.txt", 0, 16, "The months of the year are: January"),
        ("vllm-0.32-stream-ngram.txt", 24, 20, " four five six seven eight."),
    ],
)
def test_recorded_streams_are_read_whole_reply(file: str, named: int, pieces: int, text: str) -> None:
    reader = AnswerReader(24)
    for piece in (RECORDED / file).read_bytes().partition(b"ring"):
        reader.feed(piece, 1.0)
    reply = reader.reply(1.0)
    assert (len(reply.tokens), len(reply.chunks), reply.finish_reason) == (named, pieces, "length")
    assert reply.counted == reply.completion_tokens
    assert reply.text.startswith(text)


def test_a_recorded_answer_that_ended_by_itself_names_its_end_token_and_does_not_show_it() -> None:
    reply = whole_reply((RECORDED / "vllm-0.32-stop.json").read_bytes(), most=16)
    assert (reply.text, len(reply.tokens), reply.completion_tokens) == ("\nThe answer is 6.", 8, 8)
    assert reply.tokens[-1].text == "<|im_end|>"
