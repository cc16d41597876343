"""Traces in other benchmarks' forms: what their documentation shows, what is refused by name, and written ones back."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.measure.conversations import read_trace, workload_conversations
from benchsuite.measure.conversations.filler import BLOCK, WORDS, hashed_text, new_text, nonce_text
from benchsuite.measure.conversations.form import Conversation, ConversationTurn
from benchsuite.measure.workloads import load_workload
from specdec import SpecdecError, catalog

Row = dict[str, Any]


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def trace_of(folder: Path, form: str, *rows: object) -> list[Conversation]:
    """What is read of a file with a line for each row."""
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace(f"{form}:{file}")


def texts_of_turns(conversation: Conversation) -> list[list[tuple[str, str]]]:
    return [[(one["role"], one["content"]) for one in turn.messages] for turn in conversation.turns]


def test_aiperfs_conversations_are_what_its_documentation_shows(tmp_path: Path) -> None:
    """Of multi_turn.py: simple, on a schedule, and with a system prompt that is no request of its own."""
    simple = {
        "session_id": "session_123",
        "turns": [{"text": "Hello", "delay": 0}, {"text": "Hi there", "delay": 1000}],
    }
    [found] = trace_of(tmp_path, "aiperf", simple)
    assert (found.name, found.begins) == ("session_123", None)
    assert texts_of_turns(found) == [[("user", "Hello")], [("user", "Hi there")]]
    assert [turn.delay_s for turn in found.turns] == [0, 1.0]
    assert not any(turn.whole for turn in found.turns), "each behind the live answer"
    assert trace_of(tmp_path, "aiperf/multi_turn", simple) == [found], "as when its type is named"
    turns = [{"timestamp": 500, "text": "What is deep learning?"}, {"timestamp": 1500, "text": "Who are you?"}]
    [scheduled] = trace_of(tmp_path, "aiperf", {"session_id": "session_123", "turns": turns})
    assert [turn.at_s for turn in scheduled.turns] == [0.0, 1.0]
    system = {"role": "system", "text": "You are a helpful assistant."}
    rows = {"turns": [system, {"text": "What is deep learning?"}, {"text": "For a child.", "delay": 1000}]}
    [prompted] = trace_of(tmp_path, "aiperf", rows)
    assert texts_of_turns(prompted) == [
        [("system", "You are a helpful assistant."), ("user", "What is deep learning?")],
        [("user", "For a child.")],
    ]


def test_aiperfs_single_turns_stand_by_themselves(tmp_path: Path) -> None:
    rows = [{"timestamp": n * 1000, "text": f"Question {n}"} for n in range(3)]
    found = trace_of(tmp_path, "aiperf", *rows)
    assert [(one.begins, len(one.turns)) for one in found] == [(0.0, 1), (1.0, 1), (2.0, 1)]
    [shared] = trace_of(tmp_path, "aiperf", *({"text": f"{n}", "session_id": "s"} for n in range(2)))
    assert [turn.whole for turn in shared.turns] == [True, True], "without the answers before them"


def test_a_mooncake_traces_messages_are_recorded_or_new_ones(tmp_path: Path) -> None:
    """Both examples of AIPerf's trace-replay.md."""
    hello, reply, how = user("Hello"), {"role": "assistant", "content": "Hi!"}, user("How are you?")
    recorded = trace_of(
        tmp_path,
        "aiperf",
        {"session_id": "sess-1", "messages": [hello], "output_length": 50, "timestamp": 0},
        {"session_id": "sess-1", "messages": [hello, reply, how], "output_length": 30, "timestamp": 2000},
    )
    [one] = recorded
    assert [(t.at_s, t.max_tokens, t.whole, len(t.messages)) for t in one.turns] == [
        (0.0, 50, True, 1),
        (2.0, 30, True, 3),
    ]
    delta = {"session_id": "sess-1", "message_mode": "delta", "output_length": 512}
    system = {"role": "system", "content": "You are helpful."}
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    [live] = trace_of(
        tmp_path,
        "aiperf",
        {**delta, "messages": [system, hello], "timestamp": 0, "tools": tools},
        {**delta, "messages": [how], "delay": 2000},
    )
    assert [(t.at_s, t.delay_s, t.whole, len(t.messages)) for t in live.turns] == [
        (0.0, 0, False, 2),
        (None, 2.0, False, 1),
    ]
    assert [list(turn.tools) for turn in live.turns] == [tools, tools], "later turns inherit them"


def test_recorded_calls_of_tools_are_read(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    said = [user("Look"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "blue"}]}
    [one] = trace_of(tmp_path, "aiperf", {"messages": [*said, result]})
    assert [dict(message) for message in one.turns[0].messages] == [*said, {**result, "content": "blue"}]


def test_hash_ids_are_equal_blocks(tmp_path: Path) -> None:
    """The custom trace of AIPerf's trace-replay.md: lengths in words, and prompts share what their ids share."""
    rows = [
        {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]},
        {"timestamp": 105, "input_length": 1800, "output_length": 26, "hash_ids": [0, 3, 4, 5]},
        {"timestamp": 274, "input_length": 1300, "output_length": 52, "hash_ids": [1, 4, 6]},
    ]
    found = trace_of(tmp_path, "aiperf", *rows)
    words = [one.turns[0].messages[0]["content"].split() for one in found]
    assert list(map(len, words)) == [1200, 1800, 1300]
    assert words[0][:BLOCK] == words[1][:BLOCK]
    assert words[0][BLOCK : 2 * BLOCK] == words[2][:BLOCK]
    assert words[1][2 * BLOCK : 3 * BLOCK] == words[2][BLOCK : 2 * BLOCK]
    assert words[0][BLOCK] != words[1][BLOCK] or words[0][: 2 * BLOCK] != words[1][: 2 * BLOCK]
    assert [(one.begins, one.turns[0].max_tokens) for one in found] == [(0.0, 52), (0.105, 26), (0.274, 52)]


@pytest.mark.parametrize(("form", "second"), [("aiperf", 1000), ("guidellm", 1)])
def test_one_benchmarks_times_are_a_thousand_of_the_others(form: str, second: int, tmp_path: Path) -> None:
    """GuideLLM's example begins at any zero point."""
    rows = [{"timestamp": (1234500 + n) * second, "input_length": 20, "output_length": 4} for n in range(3)]
    found = trace_of(tmp_path, form, *reversed(rows))
    assert [one.begins for one in found] == pytest.approx([0.0, 1.0, 2.0])
    assert len({one.turns[0].messages[0]["content"] for one in found}) == 3, "no two prompts are alike"


def test_guidellms_columns_are_turns(tmp_path: Path) -> None:
    """The columns of its multiturn.md, with the times of its schemas; a delay is behind its own turn."""
    row = {
        "prefix": "Be brief.",
        "prompt_0": "One",
        "output_tokens_count_0": 11,
        "prompt_1": "Two",
        "output_tokens_count_1": 12,
        "relative_timestamp_0": 3.5,
        "requeue_delay_0": 0.25,
        "prompt_tokens_count_0": 1,
    }
    [one] = trace_of(tmp_path, "guidellm", row)
    assert texts_of_turns(one) == [[("system", "Be brief."), ("user", "One")], [("user", "Two")]]
    assert [(t.at_s, t.delay_s, t.max_tokens) for t in one.turns] == [(0.0, 0, 11), (None, 0.25, 12)]
    [plain] = trace_of(tmp_path, "guidellm", {"question": "What is your name?", "completion_tokens_count": 3})
    assert texts_of_turns(plain) == [[("user", "What is your name?")]]
    assert plain.turns[0].max_tokens == 3
    [raw] = trace_of(tmp_path, "guidellm", {"chat_messages": [user("Hi")], "functions": [FUNCTION]})
    assert (texts_of_turns(raw), raw.turns[0].tools) == ([[("user", "Hi")]], (FUNCTION,))


def file_of_guidellm(folder: Path, name: str, text: str) -> list[Conversation]:
    """What GuideLLM's form reads of a file of this name and text."""
    (folder / name).write_text(text)
    return read_trace(f"guidellm:{folder / name}")


def test_guidellms_files_of_text_csv_and_json_are_one_trace(tmp_path: Path) -> None:
    """The examples of its datasets.md; a line of text keeps its break, as its test_file.py has it."""
    asked = [("Hello, how are you?", 5), ("What is your name?", 3)]
    rows = [{"prompt": text, "output_tokens_count": most} for text, most in asked]
    files = {
        "a.csv": 'prompt,output_tokens_count\n"Hello, how are you?",5\nWhat is your name?,3\n',
        "a.json": json.dumps(rows, indent=2),
        "b.json": "\n".join(map(json.dumps, rows)),
        "a.jsonl": "\n".join(map(json.dumps, rows)),
    }
    for name, text in files.items():
        found = [one.turns for one in file_of_guidellm(tmp_path, name, text)]
        assert found == [(ConversationTurn((user(said),), max_tokens=most),) for said, most in asked], name
    lines = file_of_guidellm(tmp_path, "a.txt", "hello\nworld\n")
    assert [texts_of_turns(one) for one in lines] == [[[("user", "hello\n")]], [[("user", "world\n")]]]


def test_long_prompts_are_read_from_csv_and_from_first_lines(tmp_path: Path) -> None:
    """Longer than the cells that Python's csv reads, whose limit stays what it was."""
    limit, text = csv.field_size_limit(), "word " * 40_000
    assert len(text) > limit
    [cell] = file_of_guidellm(tmp_path, "a.csv", f"prompt\n{text}\n")
    [line] = trace_of(tmp_path, "aiperf", {"text": text})
    assert cell.turns[0].messages == line.turns[0].messages == (user(text),)
    assert csv.field_size_limit() == limit


def test_cells_of_csv_are_texts_numbers_and_lists_as_their_columns_want_them(tmp_path: Path) -> None:
    """A text that looks like a number stays one; 5.0 stands where other rows have no number; empty cells are none."""
    text = 'prompt_0,output_tokens_count_0,relative_timestamp_0,prompt_1,tools\n"12\n""x""",5.0,1.5,,\n7,,4,2,{}\n'
    cell = json.dumps([FUNCTION]).replace('"', '""')
    first, second = file_of_guidellm(tmp_path, "a.csv", text.format(f'"{cell}"'))
    assert texts_of_turns(first) == [[("user", '12\n"x"')]]
    assert [(t.max_tokens, t.at_s, t.tools) for t in first.turns] == [(5, 0.0, ())]
    assert texts_of_turns(second) == [[("user", "7")], [("user", "2")]]
    assert [(t.max_tokens, t.at_s, t.tools) for t in second.turns] == [(None, 2.5, (FUNCTION,)), (None, None, ())]
    [row] = file_of_guidellm(tmp_path, "b.csv", "timestamp,input_length,output_length\n1234500.5,20,4\n")
    assert (row.name, row.begins, row.turns[0].max_tokens) == ("line 2", 0.0, 4)
    assert len(row.turns[0].messages[0]["content"].split()) == 20


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "prompt\nHello, how are you?\n", "a.csv, line 2: it has 2 cells; expected 1"),
        ("a.csv", 'prompt,n\n"one\ntwo",1\n"three\n', "a.csv, line 4: it is no CSV (unexpected end of data)"),
        ("a.csv", "prompt,prompt\na,b\n", "line 1: the column 'prompt' stands twice"),
        ("a.csv", "prompt\n", "has no lines; expected a header and a row"),
        ("a.csv", "prompt,output_tokens_count\nHi,five\n", "line 2: output_tokens_count is 'five'; expected a whole"),
        ("a.csv", "prompt,output_tokens_count\nHi,2.5\n", "line 2: output_tokens_count is 2.5; expected a whole"),
        ("a.csv", "prompt,relative_timestamp\nHi,1e999\n", "line 2: relative_timestamp is inf; expected a number"),
        ("a.csv", "prompt,additional_column\nHi,foo\n", "the key 'additional_column' is not read; remove it"),
        ("a.csv", "prompt,tools\nHi,look\n", "tools is 'look'; expected a list of objects"),
        ("a.json", '[{"prompt": "Hi"}, 3]', "a.json, object 2: it is 3; expected an object"),
        ("a.json", '[{"prompt": "Hi"}', "is no JSON (Expecting ',' delimiter"),
        ("a.json", "[]", "has no lines; expected an array of objects"),
        ("a.json", '{"data": [{"prompt": "Hi"}]}', "the key 'data' is not read"),
        ("a.txt", "one\n\ntwo\n", "a.txt, line 2: text is '\\n'; expected some text"),
        ("a.txt", "", "has no lines; expected a prompt a line"),
        ("a.parquet", "PAR1", "ends in '.parquet'; of GuideLLM's files .jsonl, .json, .csv, .txt, .text are read"),
    ],
)
def test_damaged_files_of_guidellm_are_refused_by_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError) as refused:
        file_of_guidellm(tmp_path, name, text)
    assert said in str(refused.value)


CHAT = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "output_length": 132}
FIRST_CHAT: Row = {**CHAT, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091, 6326, 13148]}
SECOND_CHAT: Row = {
    **{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 400, "output_length": 80},
    **{"type": "text", "turn": 2, "hash_ids": [1089, 1090]},
}
"""The example of AIPerf's bailian_trace.py, and the request after it of its models.py."""


def test_bailians_requests_have_their_chat_among_their_own_tokens(tmp_path: Path) -> None:
    """Blocks of 16 tokens are shared, and what no id stands for is new; no answer of the replay stands between."""
    [chat] = trace_of(tmp_path, "aiperf", SECOND_CHAT, FIRST_CHAT)
    assert (chat.name, chat.label) == ("chat 159", "bailian_trace")
    assert [(t.at_s, t.max_tokens, t.whole) for t in chat.turns] == [
        (0.0, 132, True),
        (pytest.approx(1.386), 80, True),
    ]
    first, second = (turn.messages[0]["content"].split() for turn in chat.turns)
    assert (len(first), len(second)) == (521, 400)
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]
    named = trace_of(tmp_path, "aiperf/bailian_trace", {**CHAT, "hash_ids": [1089]})
    assert named[0].turns[0].messages[0]["content"].split()[:16] == first[:16]


@settings(max_examples=25)
@given(st.data())
def test_bailians_chats_are_what_their_links_join(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """By a walk up the links of each request: a parent that is not in the file is none."""
    ids = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True))
    parents = {one: data.draw(st.sampled_from([-1, 10**7, *ids[:place]])) for place, one in enumerate(ids)}
    rows = [
        {"chat_id": one, "parent_chat_id": parents[one], "timestamp": place, "input_length": 1, "output_length": 1}
        for place, one in enumerate(ids)
    ]

    def root(one: int) -> int:
        return root(parents[one]) if parents[one] in parents else one

    expected = {f"chat {root(one)}": [n for n, other in enumerate(ids) if root(other) == root(one)] for one in ids}
    found = trace_of(
        tmp_path_factory.mktemp("chats"),
        "aiperf",
        *({**row, "type": "file"} for row in data.draw(st.permutations(rows))),
    )
    assert {one.name: [turn.at_s for turn in one.turns] for one in found} == expected


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
"""The columns of BurstGPT's README, without the two that came later."""


def test_burstgpts_rows_are_requests_by_themselves(tmp_path: Path) -> None:
    file = tmp_path / "BurstGPT_1.csv"
    file.write_text(f"{BURST}\n45,GPT-4,12,230,242,API log\n5,ChatGPT,7,18,25,Conversation log\n")
    found = read_trace(f"aiperf:{file}")
    assert found == read_trace(f"aiperf/burst_gpt_trace:{file}")
    assert [(one.name, one.label, len(one.turns)) for one in found] == [
        ("line 3", "burst_gpt_trace", 1),
        ("line 2", "burst_gpt_trace", 1),
    ]
    assert [(one.begins, one.turns[0].max_tokens) for one in found] == [(0.0, 18), (40.0, 230)]
    assert [len(one.turns[0].messages[0]["content"].split()) for one in found] == [7, 12]
    file.write_text("Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n0.5,17,2.25,3,4\n")
    assert read_trace(f"aiperf:{file}")[0].turns[0].max_tokens == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{BURST}\n5,ChatGPT,472,0,472,API log\n",
            "line 2: Response tokens is 0: the request failed; expected answered",
        ),
        (f"{BURST}\n5,ChatGPT,,18,18,API log\n", "line 2: it lacks one of Timestamp, Request tokens, Response tokens"),
        (f"{BURST}\nsoon,ChatGPT,4,1,5,API log\n", "line 2: Timestamp is 'soon'; expected a number of 0 or more"),
        (f"{BURST},Price\n5,ChatGPT,4,1,5,API log,3\n", "the key 'Price' is not read"),
        ("Timestamp,Model\n5,ChatGPT\n", "line 1: 'Timestamp,Model' is no JSON"),
    ],
)
def test_damaged_rows_of_burstgpt_are_refused_by_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SpecdecError) as refused:
        read_trace(f"aiperf:{tmp_path / 'a.csv'}")
    assert said in str(refused.value)


FUNCTION: Mapping[str, Any] = {"type": "function", "function": {"name": "look"}}
GOOD = {"turns": [{"text": "Hello"}]}
REFUSED: Sequence[tuple[str, object, str]] = [
    ("aiperf", {"text": "What is it?", "image": "/a.png"}, "the key 'image' is not read: texts alone are replayed"),
    (
        "aiperf",
        {"turns": [{"text": "Hi", "extra": {"a": 1}}]},
        "turns 1: the key 'extra' is not read: fields of single",
    ),
    ("aiperf", {"turns": [{"text": "Hi", "dely": 5}]}, "the key 'dely' is not read; remove it"),
    ("aiperf", {"texts": ["one", "two"]}, "the key 'texts' is not read: a batch of texts is several requests"),
    ("aiperf", {"payload": {"prompt": "Hi"}}, "the key 'payload' is not read: requests are not sent as they were"),
    ("aiperf", {"prompt": "Hi"}, "it has prompt; expected one of turns, input_length"),
    ("aiperf", {"text": "Hi", "timestamp": 5, "delay": 5}, "it has timestamp and delay; expected one"),
    ("aiperf", {"text": "Hi", "timestamp": -1}, "timestamp is -1; expected a number of 0 or more"),
    ("aiperf", {"text": "Hi", "output_length": 0}, "output_length is 0; expected a whole number from 1 to"),
    ("aiperf", {"input_length": 10**12}, "input_length is 1000000000000; expected a whole number from 1 to 10,000,000"),
    ("aiperf", {"input_length": 600, "hash_ids": [1, 2, 3]}, "is 600 and there are 3 hash_ids; expected at most 2"),
    ("aiperf", CHAT, "it has chat_id, as lines of bailian_trace, and no type, as lines of mooncake_trace"),
    ("aiperf", {**CHAT, "type": "mooncake_trace"}, "the key 'chat_id' is not read"),
    ("aiperf", {**CHAT, "type": "single_turn"}, "type is 'single_turn'; expected mooncake_trace"),
    ("aiperf", {**CHAT, "type": 3}, "type is 3; expected some text"),
    ("aiperf", {**FIRST_CHAT, "output_length": None}, "it lacks one of chat_id, timestamp, input_length"),
    ("aiperf", {**FIRST_CHAT, "chat_id": "a"}, "chat_id is 'a'; expected a whole number"),
    ("aiperf", {**FIRST_CHAT, "chat_id": -1}, "chat_id is -1; expected another number"),
    ("aiperf", {**FIRST_CHAT, "user": 3}, "the key 'user' is not read"),
    (
        "aiperf",
        {**FIRST_CHAT, "hash_ids": [1] * 34},
        "is 521 and there are 34 hash_ids; expected at most 33: one for 16",
    ),
    ("aiperf/bailian_trace", {"text": "Hi"}, "it lacks one of chat_id"),
    ("aiperf/single_turn", {"text": "Hi", "type": "multi_turn"}, "type is 'multi_turn'; expected single_turn"),
    (
        "guidellm",
        {"timestamp": 3, "input_length": 600, "output_length": 1, "hash_ids": [1]},
        "input_length is 600 and there are 1 hash_ids; expected 2",
    ),
    ("aiperf", {"text_input": "Hi", "hash_ids": [1]}, "it has hash_ids without input_length"),
    ("aiperf", {"text_input": "Hi", "input_length": 3}, "it has input_length and text_input; expected one of"),
    ("aiperf", {"text_input": "Hi", "tools": [FUNCTION]}, "it has tools or a message_mode without messages"),
    (
        "aiperf",
        {"messages": [user("Hi"), {"role": "assistant", "content": "Ho"}]},
        "the last message is the assistant's",
    ),
    ("aiperf", {"messages": [{"role": "poet", "content": "Hi"}]}, "role is 'poet'; expected system or developer"),
    ("aiperf", {"messages": [{**user("Hi"), "mood": "good"}]}, "messages 1: the key 'mood' is not read"),
    ("aiperf", {"messages": [user([{"type": "image_url"}])]}, "content has the part {'type': 'image_url'}"),  # type: ignore[arg-type]
    ("aiperf", {"messages": [{"role": "user", "tool_calls": [{}]}]}, "the user has tool_calls"),
    ("aiperf", {"turns": []}, "turns is []; expected a list of objects, at least one"),
    ("aiperf", [1], "it is [1]; expected an object"),
    ("guidellm", {"prompt": "Hi", "image": "a.png"}, "the key 'image' is not read: texts alone are replayed"),
    ("guidellm", {"prompt_0": "Hi", "tool_response_0": "{}"}, "the key 'tool_response_0' is not read: the model would"),
    ("guidellm", {"prompt": "Hi", "additional_column": "foo"}, "the key 'additional_column' is not read; remove it"),
    ("guidellm", {"prompt": "Hi", "question": "Ho"}, "prompt and question are two columns of one kind"),
    ("guidellm", {"prompt_0": "Hi", "prompt-0": "Ho"}, "prompt_0 and prompt-0 are one column of turn 0"),
    ("guidellm", {"prompt_0": "Hi", "output_tokens_count_1": 3}, "the turn of output_tokens_count_1 has no text"),
    ("guidellm", {"prompt_0": "Hi", "prompt_1": "Ho", "relative_timestamp_1": 3}, "its turns have the times [3.0]"),
    ("guidellm", {"input_length": 3, "output_length": 3}, "it lacks one of timestamp, input_length and output_length"),
    ("guidellm", {"id": "x"}, "the key 'id' is not read"),
]


@pytest.mark.parametrize(("form", "row", "said"), REFUSED, ids=[said[:40] for _, _, said in REFUSED])
def test_what_is_not_replayed_is_refused_by_its_name(form: str, row: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError) as refused:
        trace_of(tmp_path, form, row)
    assert f"{tmp_path / 'trace.jsonl'}, line 1" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [GOOD, {"text": "Hi"}],
            "line 2: it is of another kind than the first line; expected all lines to be multi_turn",
        ),
        ([{"text": "a", "timestamp": 1}, {"text": "b"}], "give every conversation a time, or none"),
        (
            [{"text": t, "timestamp": 3 - n, "session_id": "s"} for n, t in enumerate("ab")],
            "rising ones: sort the lines",
        ),
        (
            [{"session_id": "s", "messages": [user("a")], "message_mode": mode} for mode in ("delta", "history")],
            "one message_mode in all its lines",
        ),
        ([FIRST_CHAT, FIRST_CHAT], "line 2: chat_id is 159, as in line 1; expected an id of its own"),
        (
            [FIRST_CHAT, {**SECOND_CHAT, "timestamp": 3}],
            "line 2: its timestamp is 3.0 and its parent's, line 1, 61.114",
        ),
        ([{**FIRST_CHAT, "parent_chat_id": 159}], "line 1: its timestamp is 61.114 and its parent's, line 1, 61.114"),
        (
            [FIRST_CHAT, {**SECOND_CHAT, "turn": 1}],
            "line 2: its turn is 1 and its parent's, line 1, 1; expected a higher",
        ),
        (
            [FIRST_CHAT, {"text": "Hi"}],
            "line 2: it is of another kind than the first line; expected all .* bailian_trace",
        ),
    ],
)
def test_lines_that_do_not_fit_together_are_refused(rows: list[Row], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match=said):
        trace_of(tmp_path, "aiperf", *rows)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trace.jsonl", "expected aiperf:FILE or guidellm:FILE"),
        ("mooncake:trace.jsonl", "expected aiperf:FILE or guidellm:FILE"),
        ("aiperf/weka_trace:trace.jsonl", "aiperf/mooncake_trace:FILE, .*, aiperf/burst_gpt_trace:FILE"),
        ("aiperf:absent.jsonl", "the trace absent.jsonl cannot be read: No such file"),
    ],
)
def test_a_trace_without_a_form_or_a_file_is_refused(name: str, said: str) -> None:
    with pytest.raises(SpecdecError, match=said):
        read_trace(name)


def test_lines_that_are_no_json_are_refused_by_their_number(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for text, said in (('{"text": "a"}\n\n{"text"\n', "line 3: '{\"text\"' is no JSON"), ("\n", "has no lines")):
        file.write_text(text)
        with pytest.raises(SpecdecError) as refused:
            read_trace(f"aiperf:{file}")
        assert said in str(refused.value)


SOME_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)
TURNS = st.lists(st.tuples(SOME_TEXT, st.integers(0, 5000), st.integers(1, 99)), min_size=1, max_size=4)


def as_aiperf(name: str, at: int, turns: Sequence[tuple[str, int, int]]) -> Row:
    rows = [{"text": text, "delay": delay, "output_length": most} for text, delay, most in turns]
    rows[0] = {**rows[0], "timestamp": at, "delay": None}
    return {"session_id": name, "turns": rows}


def as_mooncake(name: str, at: int, turns: Sequence[tuple[str, int, int]]) -> list[Row]:
    rows: list[Row] = [
        {"session_id": name, "text_input": text, "delay": delay, "output_length": most} for text, delay, most in turns
    ]
    return [{**rows[0], "timestamp": at, "delay": None}, *rows[1:]]


def as_guidellm(at: int, turns: Sequence[tuple[str, int, int]]) -> Row:
    row: Row = {"relative_timestamp_0": at / 1000}
    for number, (text, _, most) in enumerate(turns):
        row |= {f"prompt_{number}": text, f"output_tokens_count_{number}": most}
        if number + 1 < len(turns):
            row[f"requeue_delay_{number}"] = turns[number + 1][1] / 1000
    return row


def csv_of(rows: Sequence[Row]) -> str:
    file = io.StringIO()
    table = csv.DictWriter(file, [*dict.fromkeys(key for row in rows for key in row)])
    table.writeheader()
    table.writerows(rows)
    return file.getvalue()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 10**6), TURNS), min_size=1, max_size=4, unique_by=lambda one: one[0]))
def test_a_trace_that_is_written_in_each_form_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, list[tuple[str, int, int]]]]
) -> None:
    folder, first = tmp_path_factory.mktemp("written"), min(at for at, _ in written)
    expected = [
        tuple(
            ConversationTurn(
                (user(text),), None if number else (at - first) * 1e-3, delay * 1e-3 if number else 0.0, most
            )
            for number, (text, delay, most) in enumerate(turns)
        )
        for at, turns in sorted(written)
    ]
    files = {
        "aiperf": [as_aiperf(f"s{n}", at, turns) for n, (at, turns) in enumerate(written)],
        "aiperf ": [row for n, (at, turns) in enumerate(written) for row in as_mooncake(f"s{n}", at, turns)],
        "guidellm": [as_guidellm(at, turns) for at, turns in written],
    }
    read = {form: trace_of(folder, form.strip(), *rows) for form, rows in files.items()}
    for name, text in {"a.csv": csv_of(files["guidellm"]), "a.json": json.dumps(files["guidellm"])}.items():
        (folder / name).write_text(text, newline="")
        read[name] = read_trace(f"guidellm:{folder / name}")
    for found in read.values():
        assert len(found) == len(expected)
        for one, turns in zip(found, expected, strict=True):
            assert [t.messages for t in one.turns] == [t.messages for t in turns]
            assert [(t.max_tokens, t.whole) for t in one.turns] == [(t.max_tokens, t.whole) for t in turns]
            assert [t.delay_s for t in one.turns] == pytest.approx([t.delay_s for t in turns])
            assert one.begins == pytest.approx(turns[0].at_s)
            assert [t.at_s for t in one.turns[1:]] == [None] * (len(turns) - 1)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 99), st.integers(1, 99)),
        min_size=1,
        max_size=4,
        unique_by=lambda one: one[0],
    )
)
def test_lengths_that_are_written_in_each_form_are_read_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int, int]]
) -> None:
    folder, first = tmp_path_factory.mktemp("lengths"), min(at for at, _, _ in written)
    names = ["timestamp", "input_length", "output_length"]
    rows: list[Row] = [dict(zip(names, one, strict=True)) for one in written]
    burst = [dict(zip(["Timestamp", "Request tokens", "Response tokens"], one, strict=True)) for one in written]
    texts = {
        "guidellm:a.jsonl": "\n".join(map(json.dumps, rows)),
        "guidellm:a.csv": csv_of(rows),
        "aiperf:mooncake.jsonl": "\n".join(json.dumps({**row, "timestamp": row["timestamp"] * 1000}) for row in rows),
        "aiperf:chats.jsonl": "\n".join(
            json.dumps({**row, "chat_id": n, "type": "text"}) for n, row in enumerate(rows)
        ),
        "aiperf:burst.csv": csv_of(burst),
    }
    for name, text in texts.items():
        form, _, file = name.partition(":")
        (folder / file).write_text(text, newline="")
        turns = [turn for one in read_trace(f"{form}:{folder / file}") for turn in one.turns]
        due = sorted(written)
        assert [turn.at_s for turn in turns] == pytest.approx([at - first for at, _, _ in due]), name
        found = [(len(turn.messages[0]["content"].split()), turn.max_tokens) for turn in turns]
        assert found == [(size, most) for _, size, most in due], name


def test_workloads_are_conversations_without_times() -> None:
    found = workload_conversations([load_workload("multi_turn").first(2), load_workload("chat").first(1)])
    assert [(one.label, len(one.turns), one.begins) for one in found] == [
        ("multi_turn", 3, None),
        ("multi_turn", 3, None),
        ("chat", 1, None),
    ]
    with pytest.raises(SpecdecError, match="has text before its questions"):
        workload_conversations([load_workload("chat@2k")])


def test_reading_a_trace_imports_no_torch(cold: Any, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(GOOD))
    code = "import sys; from benchsuite.measure.conversations import read_trace; read_trace('aiperf:t.jsonl'); "
    assert cold("-c", code + "sys.exit('torch' in sys.modules)").returncode == 0


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m"])
def test_equally_many_words_are_equally_many_tokens(name: str) -> None:
    """Also where each token is a byte; a filler of so many words is so many tokens of SmolLM2's."""
    tokenizer: Any = catalog.load_tokenizer(name)
    assert len(WORDS) == len(set(WORDS)) >= 128
    one_each = [len(tokenizer.encode(f" {word}", add_special_tokens=False)) for word in WORDS]
    assert len(set(one_each)) == 1
    nonces = {nonce_text(Random(seed)) for seed in range(200)}
    assert len(nonces) == 200
    assert len({len(tokenizer.encode(f"{one}What is it?")) for one in nonces}) == 1
    if name != "tiny":
        assert set(one_each) == {1}
        assert abs(len(tokenizer.encode(new_text("line 1", 700))) - 700) <= 1
        assert abs(len(tokenizer.encode(hashed_text([3, 4], 700))) - 700) <= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(1, BLOCK))
def test_a_shorter_last_block_is_the_beginning_of_the_whole_one(ids: list[int], last: int) -> None:
    cut = hashed_text(ids, BLOCK * (len(ids) - 1) + last)
    whole = hashed_text(ids, BLOCK * len(ids))
    assert whole.startswith(cut)
    assert len(cut.split()) == BLOCK * (len(ids) - 1) + last
