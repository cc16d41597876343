"""Conversations over made-up servers and the tiny engine: what is asked, what is said of caches, figures made anew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.conversations.bench import ENDPOINT, ConversationBench, ConversationPlan, EngineRows
from benchsuite.benches.conversations.over_http import turn_ask
from benchsuite.benches.conversations.over_queue import ChatRendering
from benchsuite.benches.conversations.progress import ConversationProgress, Nonces, Prefix
from benchsuite.benches.conversations.prompt_cache import cached_prompt
from benchsuite.benches.serving.load import Sent
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.conversations import workload_conversations
from benchsuite.measure.conversations.filler import nonce_text
from benchsuite.measure.conversations.form import Conversation, ConversationTurn
from benchsuite.measure.workloads import load_workload
from benchsuite.report.conversations import conversations_document, turns_tables, write_conversations
from benchsuite.report.renderers import WIDTH, terminal
from benchsuite.tests import prefix_servers
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers, made_up_reply
from benchsuite.tests.our_server import OurServer
from benchsuite.tests.prefix_servers import PrefixServer
from benchsuite.tests.rig import Make
from specdec import SpecdecError, catalog
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

BOTH = (Prefix.WARM, Prefix.COLD)


def talk(number: int, turns: int = 3, words: int = 20) -> Conversation:
    """A conversation of so many turns of so many words."""
    said = [({"role": "user", "content": " ".join(f"q{number}t{t}w{n}" for n in range(words))},) for t in range(turns)]
    return Conversation(f"talk {number}", "made up", tuple(map(ConversationTurn, said)))


def served_bench(
    *servers: MadeUpServer,
    conversations: Sequence[Conversation] = tuple(map(talk, range(8))),
    prefixes: tuple[Prefix, ...] = BOTH,
    at_once: int | None = 1,
    **more: Any,
) -> ConversationBench:
    """A benchmark of servers named e0, e1, …, asked for chats."""
    endpoints = tuple(Endpoint(f"e{n}", f"http://e{n}", f"m{n}") for n, _ in enumerate(servers))
    plan = ConversationPlan(
        tuple(conversations), endpoints, Ask("", 5, chat=True), at_once, prefixes, dice=Random(7), **more
    )
    running = MadeUpServers({one.name: server for one, server in zip(endpoints, servers, strict=True)})
    return ConversationBench(plan, servers=running)


def report_text(bench: ConversationBench) -> str:
    return "\n".join(terminal(conversations_document(bench, [])))


SAID = st.lists(st.text("ab ", min_size=1), min_size=1, max_size=3)


@given(st.lists(st.tuples(SAID, st.booleans(), st.text("xy", min_size=1)), min_size=1, max_size=5))
def test_a_request_has_all_that_was_said_behind_a_nonce(turns: list[tuple[list[str], bool, str]]) -> None:
    """By a twin that keeps the whole text: a whole turn has its own messages alone."""
    made = tuple(
        ConversationTurn(tuple({"role": "user", "content": text} for text in said), whole=whole)
        for said, whole, _ in turns
    )
    progress = ConversationProgress(4, Conversation("it", "it", made), lambda turn: f"n{turn}:")
    transcript = list[str]()
    for number, (said, whole, answer) in enumerate(turns):
        assert progress.turn is made[number]
        texts = [*said] if whole else [*transcript, *said]
        texts[0] = f"n{number}:{texts[0]}"
        assert [one["content"] for one in progress.messages] == texts
        progress.answered(Sent(4, number, number + 0.5, made_up_reply(answer)))
        transcript += [*said, answer]
    assert progress.turn is None


def test_a_turn_is_due_at_its_time_and_no_sooner_than_its_delay_after_the_answer() -> None:
    one = {"role": "user", "content": "x"}
    turns = (
        ConversationTurn((one,), at_s=2.0),
        ConversationTurn((one,), delay_s=1.0),
        ConversationTurn((one,), at_s=9.0),
        ConversationTurn((one,), at_s=9.5, delay_s=1.0),
    )
    progress, due = ConversationProgress(0, Conversation("it", "it", turns), lambda turn: ""), list[float]()
    for ended in (3.0, 5.0, 9.2, 11.0):
        due.append(progress.due_s)
        progress.answered(Sent(0, progress.due_s, ended, made_up_reply("x")))
    assert due == [2.0, 4.0, 9.0, 10.2]


def test_a_failed_turn_ends_its_conversation() -> None:
    bench = served_bench(prefix_servers.FailsAtTheSecondTurn(), conversations=[talk(0), talk(1)])
    rows = {(one.prefix, one.turn): one for one in bench.measure() if one.row == ENDPOINT + "e0"}
    for prefix in BOTH:
        assert [rows[prefix, turn].served.asked for turn in ("1", "2", "3", "all")] == [2, 2, 0, 4]
        assert [rows[prefix, turn].planned for turn in ("1", "2", "3", "all")] == [2, 2, 2, 6]
        assert rows[prefix, "2"].served.failed == {"server_error": 2}
    assert "endpoint e0, warm: 2 server_error" in report_text(bench)


def test_nonces_are_new_as_often_as_a_prefix_says() -> None:
    """In every request, in every conversation, or in every round; one run has none of another's."""
    every = [(turn, place, number) for turn in range(2) for place in range(3) for number in range(2)]
    nonces = Nonces(Random(1))
    for prefix, distinct in ((Prefix.COLD, 12), (Prefix.WARM, 6), (Prefix.RECORDED, 2)):
        found = [nonces.of(prefix, "first", one) for one in every]
        assert len(set(found)) == distinct
        assert found == [nonces.of(prefix, "first", one) for one in every]
        assert not set(found) & {nonces.of(prefix, "again", one) for one in every}
        assert not set(found) & {Nonces(Random(2)).of(prefix, "first", one) for one in every}


def test_every_turn_follows_the_servers_own_answer() -> None:
    """Warm: behind one nonce; cold: behind a new one each time. Other than that both are the same requests."""
    server = PrefixServer()
    bench = served_bench(server, conversations=[talk(0), talk(1)])
    bench.measure()
    asked = [one for one in server.asked if one.max_tokens > 1]
    assert len(asked) == 2 * 2 * 2 * 3, "conversations, prefixes, rows (the server and again), turns"
    for first, second, third in zip(asked[::3], asked[1::3], asked[2::3], strict=True):
        assert [len(one.messages) for one in (first, second, third)] == [1, 3, 5]
        assert second.messages[1] == {"role": "assistant", "content": "a1w0 a1w1 a1w2 a1w3 a1w4"}
        assert second.messages[2]["content"] == third.messages[2]["content"]
        nonces = {one.messages[0]["content"].partition("\n")[0] for one in (first, second, third)}
        assert len(nonces) in (1, 3)
    heads = [one.messages[0]["content"].partition("\n")[0] for one in asked]
    assert len(set(heads)) == 4 + 4 * 3, "no conversation and no cold request shares one, not even with `again`"
    assert all(len(one.split()) == len(heads[0].split()) for one in heads)


FOUND: Mapping[type[PrefixServer], tuple[bool, str]] = {
    prefix_servers.PrefixServer: (False, ""),
    prefix_servers.KeepsNothing: (False, "it had nothing of the warm prefix in a cache: its warm turns are cold ones"),
    prefix_servers.SaysNoCache: (False, "it says nothing of its cache: whether the warm prefix was in it"),
    prefix_servers.DeniesItsCache: (False, "its warm first tokens came "),
    prefix_servers.BoastsOfACache: (False, "and their first tokens came no sooner for certain"),
    prefix_servers.CachesAnyPart: (True, "prompt tokens from a cache, and at most"),
    prefix_servers.CountsTooMany: (False, "what it says of its cache is not believed: usage "),
    prefix_servers.NamesTwoNumbers: (False, "it names two numbers of cached tokens: usage "),
}


@pytest.mark.parametrize("kind", FOUND, ids=lambda kind: kind.__name__)
def test_what_a_server_says_of_its_cache_is_held_against_what_it_does(kind: type[PrefixServer]) -> None:
    """The planted fault is named, and no other server has its line."""
    bench = served_bench(kind())
    bench.measure()
    finding = bench.findings()[ENDPOINT + "e0"]
    refused, line = FOUND[kind]
    assert bool(finding.refused) == refused
    text = " ".join([finding.refused, *finding.lines])
    assert line in text
    for other, (_, others) in FOUND.items():
        if (
            others
            and other is not kind
            and (kind, other) != (prefix_servers.DeniesItsCache, prefix_servers.KeepsNothing)
        ):
            assert others not in text
    assert bool(bench.wrong()) == refused
    cold = turns_tables(bench.figures(), bench.findings())[Prefix.COLD].rows
    assert len(cold) == 8
    for row in cold:
        assert (row[5] == "refused") == refused
        assert (set(row[6:]) == {"-"}) == refused


def test_a_warm_prefix_is_read_once_and_a_cold_one_each_time() -> None:
    """Of the honest server: the share that is cached, and how much sooner first tokens come, by its own arithmetic."""
    bench = served_bench(PrefixServer())
    rows = {(one.prefix, one.turn): one for one in bench.measure() if one.row == ENDPOINT + "e0"}
    finding = bench.findings()[ENDPOINT + "e0"]
    nonce = len(nonce_text(Random(0)).split())
    sizes = [len(prefix_servers.HEAD) + nonce + 1 + 21 * n + 6 * (n - 1) - (n > 0) + 1 for n in (1, 2, 3)]
    for turn, size in zip("123", sizes, strict=True):
        assert rows[Prefix.COLD, turn].prompt == rows[Prefix.WARM, turn].prompt
        assert rows[Prefix.COLD, turn].prompt == size
        cold, warm = rows[Prefix.COLD, turn], rows[Prefix.WARM, turn]
        assert cold.cached is not None
        assert cold.cached <= len(prefix_servers.HEAD) + 3
        assert cold.served.ttft_ms[0] == pytest.approx(1e3 * prefix_servers.READ_S * ((cold.prompt or 0) - cold.cached))
        assert warm.served.ttft_ms[0] == pytest.approx(
            1e3 * prefix_servers.READ_S * ((warm.prompt or 0) - (warm.cached or 0))
        )
    assert finding.sooner is not None
    first = {
        (block.prefix, one.sent.prompt, one.turn): one.sent.reply.chunks[0].seconds
        for block in bench.blocks
        if block.row == finding.row
        for one in block.turns
        if one.sent.reply
    }
    gains = [first[Prefix.COLD, place, turn] / first[Prefix.WARM, place, turn] for place in range(8) for turn in (1, 2)]
    assert finding.sooner.ratio == pytest.approx(exp(fmean(map(log, gains))))
    assert finding.sooner.units == 8
    assert finding.cached == pytest.approx(
        fmean((rows[Prefix.WARM, turn].cached or 0) / (rows[Prefix.WARM, turn].prompt or 1) for turn in "23"), rel=0.02
    )


@pytest.mark.parametrize(
    ("more", "tokens", "wrong"),
    [
        ({}, None, ""),
        ({"cached_tokens": 2}, 2, ""),
        ({"body": {"timings": {"cache_n": 1, "prompt_n": 2}}}, 1, ""),
        ({"cached_tokens": 1, "body": {"timings": {"cache_n": 1, "prompt_n": 2}}}, 1, ""),
        ({"body": {"meta_info": {"cached_tokens": 3}}}, 3, ""),
        ({"cached_tokens": 4}, None, "usage 4 of a prompt of 3 tokens"),
        ({"cached_tokens": 2, "body": {"timings": {"cache_n": 1, "prompt_n": 2}}}, None, "it names two numbers"),
        ({"body": {"timings": {"cache_n": 1, "prompt_n": 3}}}, None, "timings.prompt_n 3 of a prompt of 3 tokens"),
        ({"body": {"timings": {"cache_n": "many"}}}, None, ""),
        ({"body": {"timings": [1]}}, None, ""),
    ],
)
def test_what_is_cached_is_read_wherever_servers_say_it(more: dict[str, Any], tokens: int | None, wrong: str) -> None:
    found = cached_prompt(made_up_reply("abc", **more))
    assert found.tokens == tokens
    assert wrong in found.wrong
    assert bool(wrong) == bool(found.wrong)


def test_requests_have_the_turns_tools_and_no_more_tokens_than_the_run() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    turn = ConversationTurn(messages, max_tokens=9, tools=(tool,))
    body = turn_ask(Ask("", 7, chat=True, extra={"x": 1}), turn, messages).body("m")
    assert (body["messages"], body["tools"], body["tool_choice"], body["x"]) == ([*messages], [tool], "none", 1)
    assert body["max_tokens"] == 7
    assert "tools" not in turn_ask(Ask("", 7, chat=True), ConversationTurn(messages), messages).body("m")
    assert turn_ask(Ask("", 70), ConversationTurn(messages, max_tokens=9), messages).max_tokens == 9
    assert turn_ask(Ask("", 7), ConversationTurn(messages), messages).body("m")["prompt"] == "a\nb"
    with pytest.raises(SpecdecError, match="which a completion cannot have; ask for chats"):
        turn_ask(Ask("", 7), turn, messages)
    with pytest.raises(SpecdecError, match="messages are those of a chat"):
        Ask("", 7, messages=messages).body("m")


def timed_talks() -> list[Conversation]:
    """Two that begin at 0 and 60 ms, the second with a turn 30 ms after its answer."""

    def turn(text: str, **more: Any) -> ConversationTurn:
        return ConversationTurn(({"role": "user", "content": text},), **more)

    return [
        Conversation("a", "trace", (turn("one", at_s=0.0), turn("two", at_s=0.05))),
        Conversation("b", "trace", (turn("three", at_s=0.06), turn("four", delay_s=0.03))),
    ]


def sent_when_due(block: Any) -> dict[tuple[int, int], Any]:
    """The requests of a block of ``timed_talks`` by conversation and turn: none was sent before it was due."""
    first = {(one.sent.prompt, one.turn): one.sent for one in block.turns}
    assert first.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert first[1, 0].sent_s >= 0.06
    assert first[0, 1].sent_s >= max(0.05, first[0, 0].ended_s)
    assert first[1, 1].sent_s >= first[1, 0].ended_s + 0.03
    return first


def test_a_trace_is_asked_of_a_server_when_it_is_due() -> None:
    server = PrefixServer()
    bench = served_bench(server, conversations=timed_talks(), prefixes=(Prefix.RECORDED,), at_once=None, rounds=2)
    rows = bench.measure()
    for block in bench.blocks:
        first = sent_when_due(block)
        assert first[1, 0].late_s == pytest.approx(first[1, 0].sent_s - 0.06)
    assert {one.prefix for one in rows} == {Prefix.RECORDED}
    assert [block.round for block in bench.blocks] == [0, 0, 1, 1]
    asked = [one for one in server.asked if one.max_tokens > 1]
    heads = {one.messages[0]["content"].partition("\n")[0] for one in asked}
    assert len(heads) == 4, "one for each replay"


def test_a_server_with_a_cache_of_prefixes_is_warm_where_it_says_so(assemble: Make) -> None:
    """Over HTTP, with a recorded call of a tool in the second conversation's first turn."""
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = (
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "blue"},
    )
    asked = ConversationTurn(({"role": "user", "content": "And now?"},))
    with OurServer(assemble(max_length=1024).engine(None, k=0), prefix_cache=True) as server:
        plan = ConversationPlan(
            (talk(0, 3, 4), Conversation("tools", "made up", (ConversationTurn(said), asked))),
            (Endpoint("ours", server.url),),
            Ask("", 4, chat=True),
            1,
            BOTH,
        )
        bench = ConversationBench(plan)
        rows = {(one.row, one.prefix, one.turn): one for one in bench.measure()}
    for name in bench.families[0]:
        assert rows[name, Prefix.WARM, "all"].served.failed == {}
        assert bench.findings()[name].lines == ()
        assert bench.findings()[name].refused == ""
        assert rows[name, Prefix.WARM, "1"].prompt == rows[name, Prefix.COLD, "1"].prompt
        for turn in "23":
            warm, cold = (rows[name, prefix, turn] for prefix in BOTH)
            assert (warm.cached or 0) > (bench.common[bench.families[0][0]] or 0) > (cold.cached or 0)


SETTING = Setting("tiny", "auto", "cpu", "auto", 1, "chat")
ARMS = [Arm(SETTING), Arm(SETTING, again=True), Arm(SETTING, "ngram", k=3)]
NAMES = ["plain", "plain again", "ngram"]


def engine_bench(
    conversations: Sequence[Conversation], prefixes: tuple[Prefix, ...], at_once: int | None, servers: int = 0
) -> ConversationBench:
    """A benchmark over the tiny model, with so many made-up servers beside it."""
    from benchsuite.conformance.models.tiny import registry
    from specdec.model import ArenaModel

    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    endpoints = tuple(Endpoint(f"e{n}", f"http://e{n}", f"m{n}") for n in range(servers))
    plan = ConversationPlan(tuple(conversations), endpoints, Ask("", 6, chat=True), at_once, prefixes, dice=Random(3))
    engine = EngineRows("tiny", loaded, ArenaModel(loaded.model, registry().backend()), ARMS, plan, rows=2)
    running = MadeUpServers({one.name: PrefixServer() for one in endpoints})
    return ConversationBench(plan, engine, running)


@pytest.fixture(scope="module")
def live_talks() -> ConversationBench:
    """Two conversations of three turns over the engine and a server, warm and cold."""
    bench = engine_bench(workload_conversations([load_workload("multi_turn").first(2)]), BOTH, 1, servers=1)
    bench.measure()
    return bench


def test_the_engine_goes_on_behind_a_warm_prefix_and_reads_a_cold_one_whole(live_talks: ConversationBench) -> None:
    """Warm: all tokens that the text before shares with the prompt, its last apart, are in place. Outputs are plain's
    of the whole prompt alone, and every answer stands in the next prompt."""
    engine = live_talks.engine
    assert engine is not None
    names = list(engine.arms)
    assert names[:2] == NAMES[:2]
    for block in [block for block in live_talks.blocks if block.row in names]:
        before = dict[int, tuple[int, ...]]()
        for one in block.turns:
            reply = one.sent.reply
            assert reply is not None
            request = next(iter(made_requests(one.prompt, engine)))
            assert tuple(reply.body["token_ids"]) == engine.assembly.plain(request)
            known = before.get(one.sent.prompt, ())[:-1]
            shared = next(
                (n for n, pair in enumerate(zip(known, one.prompt, strict=False)) if len({*pair}) > 1), len(known)
            )
            assert reply.cached_tokens == (min(shared, len(one.prompt) - 1) if block.prefix is Prefix.WARM else 0)
            assert one.turn == 0 or block.prefix is Prefix.COLD or shared > 0
            before[one.sent.prompt] = (*one.prompt, *reply.body["token_ids"])
    for name in names:
        stats = engine.replay(name).engine.stats.counts
        said = sum(
            one.sent.reply.cached_tokens or 0
            for block in live_talks.blocks
            if block.row == name
            for one in block.turns
            if one.sent.reply
        )
        assert stats["kv_reused_tokens"] == said, "what is said is what the engine counts"
        assert engine.replay(name).engine.kept == {}
    assert live_talks.wrong() == []


def made_requests(prompt: tuple[int, ...], engine: EngineRows) -> list[Any]:
    from specdec import Request

    return [Request(0, prompt, engine.params)]


def test_figures_of_turns_are_those_of_the_records(live_talks: ConversationBench) -> None:
    """From the JSON alone, by other formulas than the code's."""
    found = json.loads(json.dumps(live_talks.as_json()))
    for row in found["figures"]:
        turns = [
            turn
            for block in found["blocks"]
            if (block["row"], block["prefix"]) == (row["row"], row["prefix"])
            for turn in block["turns"]
            if row["turn"] in ("all", str(turn["turn"] + 1))
        ]
        assert len(turns) == row["planned"] == row["served"]["asked"]
        assert row["prompt"] == median(turn["usage"][0] for turn in turns)
        assert row["cached"] == median(turn["cached"] for turn in turns)
        firsts = [turn["chunks"][0][0] for turn in turns]
        assert row["served"]["ttft_ms"][0] == pytest.approx(1e3 * median(firsts))
        assert row["prefill"] == pytest.approx(sum(firsts) / sum(turn["seconds"] for turn in turns))
        tokens = [sum(count for _, _, count in turn["chunks"]) for turn in turns]
        assert row["per_s"] == pytest.approx(sum(tokens) / sum(turn["seconds"] for turn in turns))
        counted = [turn["counts"] for turn in turns if turn["counts"]]
        if row["turn"] != "all":
            assert (row["counts"] or {}).get("drafts") == (sum(one["drafts"] for one in counted) if counted else None)
            assert (row["counts"] or {}).get("accepted") == (
                sum(one["accepted"] for one in counted) if counted else None
            )
        base = "plain" if not row["row"].startswith("endpoint") else "endpoint e0"
        texts = {
            (turn["conversation"], turn["turn"]): turn["text"]
            for block in found["blocks"]
            if (block["row"], block["prefix"]) == (base, row["prefix"])
            for turn in block["turns"]
        }
        if row["row"] == "endpoint e0 again":
            assert row["equal"] is None
        else:
            assert row["of"] == len(turns)
            assert row["equal"] == sum(turn["text"] == texts[turn["conversation"], turn["turn"]] for turn in turns)


def test_the_report_has_a_line_for_each_row_prefix_and_turn(live_talks: ConversationBench, tmp_path: Path) -> None:
    tables = turns_tables(live_talks.figures(), live_talks.findings())
    lines = Counter((str(row[0]), prefix.value) for prefix, table in tables.items() for row in table.rows)
    assert lines == {(name, prefix.value): 4 for rows in live_talks.families for name in rows for prefix in BOTH}
    assert max(map(len, report_text(live_talks).splitlines())) <= WIDTH
    text = " ".join(report_text(live_talks).split())
    assert "prompts begin with 6 words of one token each" in text
    assert "2 conversations (multi_turn), 6 turns" in text
    assert "a request of a nonce alone has" in text
    folder = write_conversations(tmp_path, "tiny", live_talks, ["a card"], complete=True)
    assert {file.name for file in folder.iterdir()} == {"conversations.json", "conversations.md", "MANIFEST.json"}


def test_an_engine_answers_a_trace_when_it_is_due() -> None:
    bench = engine_bench(timed_talks(), (Prefix.RECORDED,), None)
    rows = bench.measure()
    for block in bench.blocks:
        sent_when_due(block)
        later = [one.sent.reply for one in block.turns if one.turn and one.sent.reply]
        assert all((reply.cached_tokens or 0) > 0 for reply in later)
    assert {(one.turn, one.planned) for one in rows} == {("1", 2), ("2", 2), ("all", 4)}
    assert bench.wrong() == []


def test_a_request_that_the_engine_does_not_take_is_a_failure_by_name() -> None:
    long = Conversation("long", "trace", (ConversationTurn(({"role": "user", "content": "x" * 9000},)),))
    bench = engine_bench([talk(0, 1, 2), long], BOTH, 1)
    rows = {(one.row, one.turn): one for one in bench.measure() if one.prefix is Prefix.WARM}
    assert rows["plain", "all"].served.failed == {"refused_request": 1}
    assert rows["plain", "all"].served.asked == 2


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m"])
def test_what_a_template_does_not_show_of_tools_stands_as_text(name: str) -> None:
    rendering = ChatRendering(catalog.load_tokenizer(name))
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Gaze"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "blue"},
    ]
    tool = {"type": "function", "function": {"name": "look", "description": "Looks up"}}
    text = rendering.tokenizer.decode(rendering.ids(said, [tool]))
    assert '<tool_call>{"name": "look", "arguments": "{}"}</tool_call>' in text
    assert "Looks up" in text
    assert text.index("Looks up") < text.index("Gaze") < text.index("<tool_call>") < text.index("blue")
    assert len(rendering.said) == 2
    bare = ChatRendering(rendering.tokenizer)
    chat = [{"role": "user", "content": "Hi"}]
    assert bare.ids(chat) == tuple(catalog.chat_ids(rendering.tokenizer, "Hi"))
    assert bare.said == []


def test_a_run_of_nothing_is_refused() -> None:
    plan = ConversationPlan((talk(0),), (), Ask("", 5, chat=True), 1, BOTH)
    with pytest.raises(SpecdecError, match="neither a target nor a server is given"):
        ConversationBench(plan)
