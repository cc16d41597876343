"""A benchmark over made-up servers: what each is asked, when, in which order, and what the results then hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.benches.serving.bench import AGAIN, CHECK, ServingBench, ServingPlan
from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.self_reported import SelfReported, self_reported_of
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers, made_up_reply
from specdec import SpecdecError
from specdec_plugins.endpoints.client import NEUTRAL, Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure, Reply, Token
from specdec_plugins.endpoints.server_metrics import Speculation, write_page

PROMPTS = (("chat", "one"), ("chat", "two"), ("code", "three"), ("code", "four"))
TEXTS = [text for _, text in PROMPTS]
ONE = Traffic(concurrency=1)

Answer = Callable[[Ask], Reply]


def counting(ask: Ask) -> Reply:
    """Says as many signs as it may, and how many these are."""
    return made_up_reply("abcdefgh"[: ask.max_tokens], counted=min(8, ask.max_tokens))


def uncounted(ask: Ask) -> Reply:
    """Counts its tokens only where its answer is no stream; the text of the last prompt is another one each time."""
    text = f"{ask.prompt} {ask.stream}" if ask.prompt == TEXTS[-1] else f"{ask.prompt} said"
    return made_up_reply(text, counted=None if ask.stream else len(text))


def benchmark(
    *answers: Answer | MadeUpServer,
    rounds: int = 1,
    seed: int = 0,
    commands: Sequence[str] = (),
    max_tokens: int = 8,
    kept: list[int] | None = None,
    slo: Slo | None = None,
) -> tuple[ServingBench, list[MadeUpServer]]:
    """A benchmark of servers named e0, e1, …; ``kept`` counts the blocks that there were each time it was kept.

    Those of ``commands`` have one address.
    """
    servers = [one if isinstance(one, MadeUpServer) else MadeUpServer(one) for one in answers]
    names = [f"e{n}" for n in range(len(servers))]
    endpoints = tuple(
        Endpoint(name, "http://one" if name in commands else f"http://{name}", f"m{n}") for n, name in enumerate(names)
    )
    ask = Ask("", max_tokens, stop=("!",), extra={"cache_prompt": False})
    plan = ServingPlan(endpoints, PROMPTS, ask, rounds, slo, seed)

    def keep(bench: ServingBench) -> None:
        if kept is not None:
            kept.append(sum(map(len, bench.blocks.values())))

    running = MadeUpServers(dict(zip(names, servers, strict=True)), commands)
    return ServingBench(plan, keep, running), servers


def orders_of(bench: ServingBench) -> dict[tuple[int, tuple[int, ...]], list[str]]:
    """The endpoints that got each prompt, or the prompts of a group, in order, by round."""
    [blocks] = bench.blocks.values()
    found = dict[tuple[int, tuple[int, ...]], list[str]]()
    for block in blocks:
        found.setdefault((block.round, tuple(one.prompt for one in block.sent)), []).append(block.endpoint)
    return found


def in_full(server: MadeUpServer) -> list[Ask]:
    """Requests for more than the one token by which a server reads a prompt, without the check."""
    return [one for one in server.asked if one.max_tokens > 1 and one.prompt != CHECK]


def test_endpoints_are_asked_for_their_health_for_a_token_of_each_prompt_and_once_for_log_probabilities() -> None:
    """Before the timing, once; the check has at most sixteen tokens, and no more than timed requests."""
    for most, checked in ((8, 8), (40, 16)):
        bench, servers = benchmark(counting, counting, max_tokens=most)
        bench.prepare()
        bench.prepare()
        for server in servers:
            health, *asks = server.heard
            assert health == "health"
            plan = bench.plan.ask
            assert asks == [
                *(replace(plan, prompt=text, max_tokens=1) for text in TEXTS),
                replace(plan, prompt=CHECK, max_tokens=checked, logprobs=1),
            ]
            assert server.open == 0
    assert not bench.blocks


def test_a_plan_asks_everything_once_unless_it_says_more() -> None:
    bench, (first, second) = benchmark(counting, counting)
    plan = ServingPlan(bench.plan.endpoints, PROMPTS, Ask("", 4))
    again = ServingBench(plan, servers=bench.servers)
    again.measure(ONE)
    assert sorted(str(one.prompt) for one in in_full(second)) == sorted(TEXTS)
    assert sorted(str(one.prompt) for one in in_full(first)) == sorted(2 * TEXTS)
    assert (plan.rounds, plan.seed, plan.slo) == (1, 0, None)


@pytest.mark.parametrize(
    ("kind", "line"), [("refused_request", True), ("server_error", True), ("timeout", False), ("usage", False)]
)
def test_a_server_that_refuses_log_probabilities_is_named_and_one_that_fails_otherwise_ends_the_run(
    kind: str, line: bool
) -> None:
    def answer(ask: Ask) -> Reply:
        if ask.logprobs:
            raise EndpointFailure(kind, "planted")
        return counting(ask)

    bench, _ = benchmark(answer)
    if line:
        bench.prepare()
        assert bench.said == ["e0 gives no log-probabilities: its usage is taken at its word"]
    else:
        with pytest.raises(EndpointFailure, match="planted"):
            bench.prepare()


def test_a_server_is_named_that_leaves_out_log_probabilities_and_not_one_that_gives_them() -> None:
    def answer(ask: Ask) -> Reply:
        return made_up_reply("a", [Token("a")] if ask.logprobs else [], 1)

    bench, _ = benchmark(answer, counting)
    bench.prepare()
    assert bench.said == ["e1 gives no log-probabilities: its usage is taken at its word"]


def test_a_server_is_named_that_refuses_fields_since_its_own_defaults_of_these_hold() -> None:
    bench, _ = benchmark(counting, counting)
    bench.servers.refused["e1"] = {"min_p", "top_k", "continuous_usage_stats"}
    bench.prepare()
    assert bench.said[-1] == "e1 refuses requests with top_k, min_p: its own defaults of these hold"
    assert not any("refuses" in line for line in bench.said[:-1])


@given(st.lists(st.sampled_from(["chat", "code"]), min_size=1, max_size=40), st.integers(1, 3))
def test_loads_share_the_prompts_of_every_workload_out(labels: list[str], count: int) -> None:
    """No prompt has two loads, every one has one, and of each workload no load has two more than another."""
    loads = tuple(Traffic(concurrency=n + 1) for n in range(count))
    prompts = tuple((label, f"text {n}") for n, label in enumerate(labels))
    if any(labels.count(label) < count for label in set(labels)):
        with pytest.raises(SpecdecError, match=rf"^{count} loads need as many different prompts of each workload"):
            ServingPlan((Endpoint("a", "http://a"),), prompts, Ask("", 4), loads=loads)
        return
    plan = ServingPlan((Endpoint("a", "http://a"),), prompts, Ask("", 4), loads=loads)
    shares = [plan.places(load) for load in loads]
    assert sorted(place for share in shares for place in share) == [*range(len(labels))]
    for label in set(labels):
        counts = [sum(labels[place] == label for place in share) for share in shares]
        assert max(counts) - min(counts) <= 1


def test_a_server_that_learns_has_seen_no_answer_of_a_later_load() -> None:
    """A suffix server emitted 1.04 tokens a forward with one request at once and 8.00 with four, of the same texts."""
    known = set[str]()

    def answer(ask: Ask) -> Reply:
        pieces = 1 if ask.prompt in known else ask.max_tokens
        if ask.stream and ask.max_tokens > 1:
            known.add(str(ask.prompt))
        return made_up_reply("a" * pieces, (), ask.max_tokens)

    bench, _ = benchmark(counting, answer)
    loads = (ONE, Traffic(concurrency=4))
    bench.plan = replace(bench.plan, prompts=tuple(("chat", f"text {n}") for n in range(6)), loads=loads)
    for load in loads:
        bench.measure(load)
        sent = [one for block in bench.blocks[load] if block.endpoint == "e1" for one in block.sent]
        assert [len(one.reply.text) for one in sent if one.reply] == [8] * 3


def test_every_prompt_goes_to_all_endpoints_in_turn_and_each_second_round_is_turned_round() -> None:
    bench, _ = benchmark(counting, counting, counting, rounds=6)
    rows = bench.measure(ONE)
    assert [row.endpoint for row in rows] == bench.names == ["e0", "e0" + AGAIN, "e1", "e2"]
    orders = orders_of(bench)
    assert [len(blocks) for blocks in bench.blocks.values()] == [6 * 4 * 4]
    assert sorted(orders) == [(turn, (prompt,)) for turn in range(6) for prompt in range(4)]
    for turn in (0, 2, 4):
        assert all(orders[turn + 1, (prompt,)] == orders[turn, (prompt,)][::-1] for prompt in range(4))
        assert len({tuple(orders[turn, (prompt,)]) for prompt in range(4)}) > 1, "random"
    assert all(sorted(order) == sorted(bench.names) for order in orders.values())
    asked = list(dict.fromkeys(orders))
    assert len({tuple(one for turn, one in asked if turn == of) for of in range(6)}) > 2, "prompts in random order"
    for blocks in bench.blocks.values():
        assert all(one.reply and one.reply.text == "abcdefgh" for block in blocks for one in block.sent)
    other, _ = benchmark(counting, counting, counting, rounds=6, seed=1)
    other.measure(ONE)
    assert orders_of(other) != orders


def test_a_prompt_is_read_again_before_it_is_timed_since_others_have_left_a_cache_of_one_prompt() -> None:
    """Of a server with such a cache `again` found the prompt there, and the other server did not."""
    bench, servers = benchmark(counting, counting)
    bench.measure(Traffic(concurrency=2))
    for server in servers:
        asks = [one for one in server.asked[len(TEXTS) + 1 :] if isinstance(one, Ask)]
        while asks:
            first, full, asks = asks[:2], asks[2:4], asks[4:]
            assert [(one.prompt, one.max_tokens) for one in first] == [(one.prompt, 1) for one in full]
            assert [one.max_tokens for one in full] == [8, 8]


def test_a_server_that_fails_to_read_a_prompt_again_is_asked_for_it_all_the_same() -> None:
    read = 0

    def answer(ask: Ask) -> Reply:
        nonlocal read
        read += ask.max_tokens == 1
        if read > len(TEXTS):
            raise EndpointFailure("server_error", "planted")
        return counting(ask)

    bench, _ = benchmark(counting, answer)
    [_, _, row] = bench.measure(ONE)
    assert (row.asked, dict(row.failed)) == (4, {"server_error": 4})


def test_what_was_measured_is_kept_after_every_group() -> None:
    """Under a rate too, and where servers run in turn, of which a round is one group."""
    for commands, each in (((), 3), (("e0", "e1"), 3)):
        kept: list[int] = []
        bench, servers = benchmark(counting, counting, rounds=2, kept=kept, commands=commands)
        load = Traffic(rate=1e5)
        bench.measure(load)
        assert kept == [*range(each, len(bench.blocks[load]) + 1, each)]
        assert len(kept) == 2 * (1 if commands else len(PROMPTS))
        assert sum(len(one.sent) for one in bench.blocks[load]) == 2 * 3 * len(PROMPTS)
        assert all(one.open == 0 for one in servers)


def test_a_stream_without_usage_is_counted_by_the_same_text_asked_for_whole_once() -> None:
    """After the timing; the answer to the last prompt is never the same text, and has no count."""
    bench, (first, second, third) = benchmark(counting, uncounted, counting)
    rows = bench.measure(ONE)
    whole = [one for one in second.asked if not one.stream]
    assert whole == second.asked[-len(TEXTS) :], "at the end"
    assert [one.prompt for one in whole] == TEXTS
    assert all(one.stream for one in (*first.asked, *third.asked))
    counts = {
        one.prompt: one.reply.counted
        for block in bench.blocks[ONE]
        if block.endpoint == "e1"
        for one in block.sent
        if one.reply
    }
    assert counts == {0: len("one said"), 1: len("two said"), 2: len("three said"), 3: None}
    assert [row.tokens_per_s is None for row in rows] == [False, False, True, False]
    said = "e1 has no usage in a stream: its tokens are counted by the same answers, asked for whole"
    assert [line for line in bench.said if "usage in" in line] == [said]
    bench.measure(Traffic(concurrency=2))
    assert len([one for one in second.asked if not one.stream]) == len(TEXTS), "what is known is not asked again"
    assert [row.tokens_per_s is None for row in bench.figures(Traffic(concurrency=2))] == [False, False, True, False]


def test_the_second_run_of_a_first_endpoint_is_counted_as_the_first_is() -> None:
    def answer(ask: Ask) -> Reply:
        if ask.prompt == "two" and ask.stream and ask.max_tokens > 1:
            raise EndpointFailure("reset", "planted")
        return replace(made_up_reply("same", counted=None if ask.stream else 4))

    bench, _ = benchmark(answer)
    rows = bench.measure(ONE)
    assert all(row.tokens_per_s is not None for row in rows)
    sent = [one for block in bench.blocks[ONE] for one in block.sent]
    assert [one.reply.counted for one in sent if one.reply] == [4] * 6
    assert [one.failure for one in sent if not one.reply] == ["reset"] * 2


def test_a_server_that_counts_nowhere_has_no_figure_per_token_and_a_line_says_so() -> None:
    bench, _ = benchmark(lambda ask: made_up_reply("text"))
    [row, again] = bench.measure(ONE)
    assert (row.tokens_per_s, row.decoding, again.decoding) == (None, None, None)
    assert again.speed is not None, "its texts are equal"
    assert row.e2e_ms[0] == 1000
    assert bench.said[1] == "e0 has no usage in a stream: its tokens are not known: no figure is per token"


def test_a_server_that_was_started_reads_every_prompt_before_it_is_timed() -> None:
    """Two share one address: a round of all prompts is one group of theirs."""
    bench, servers = benchmark(counting, counting, rounds=2, commands=["e0", "e1"])
    bench.measure(ONE)
    starts = bench.servers.starts
    assert starts["e0"] > 1, "the endpoints take turns"
    assert sum(starts.values()) <= 2 + 2 * 3, "not for every prompt"
    for place, server in enumerate(servers):
        assert "/metrics" not in server.heard, "counters begin anew with each start"
        begun = [n for n, one in enumerate(server.heard) if one == "start"]
        assert len(begun) == starts[f"e{place}"]
        for at in begun[1:]:
            heard = [one for one in server.heard[at + 1 : at + 5] if isinstance(one, Ask)]
            assert sorted((str(one.prompt), one.max_tokens) for one in heard) == [(text, 1) for text in sorted(TEXTS)]


def page_counting(drafts: int, proposed: int, accepted: int) -> str:
    return write_page(Speculation("vllm page", "since start", drafts, proposed, accepted))


def test_what_a_server_reports_of_itself_is_what_it_counted_under_one_load() -> None:
    """Its page before the load and after it, and the sum of what its answers say; the other server has no page."""

    def answer(ask: Ask) -> Reply:
        body = {"timings": {"draft_n": 8, "draft_n_accepted": 6}}
        return replace(counting(ask), body=body if ask.max_tokens > 1 else {})

    spec = MadeUpServer(answer, [page_counting(10, 40, 20), page_counting(13, 52, 29)])
    bench, _ = benchmark(counting, spec)
    bench.measure(ONE)
    [said] = bench.self_reported.values()
    assert said["e0"] == SelfReported(None, None)
    page, bodies = said["e1"].page, said["e1"].bodies
    assert page is not None
    assert (page.drafts, page.proposed, page.accepted) == (3, 12, 9)
    assert bodies is not None
    assert (bodies.proposed, bodies.accepted) == (8 * 4, 6 * 4)
    assert said["e1"].lines("e1") == [
        "e1 says of itself (vllm page): 3 drafts, 9 of 12 accepted, acceptance rate 0.75, mean acceptance length 4.00",
        "e1 says of itself (llama.cpp body): 24 of 32 accepted, acceptance rate 0.75",
    ]
    alone, _ = benchmark(answer)
    alone.measure(ONE)
    twice = alone.self_reported[ONE]["e0"].bodies
    assert twice is not None
    assert (twice.proposed, twice.accepted) == (8 * 8, 6 * 8), "the first endpoint is asked once more in each round"
    own = bench.as_json()["loads"][0]["own_words"]
    assert own == {"e0": [], "e1": [page.figures(), bodies.figures()]}


def said_by(**words: Any) -> list[str]:
    return SelfReported(Speculation("sglang page", "last interval", **words), None).lines("e")


def test_a_line_has_what_a_server_says_and_leaves_out_the_rest() -> None:
    begin = "e says of itself (sglang page): "
    assert said_by() == [], "nothing was speculated"
    assert said_by(said_length=2.345) == [begin + "mean acceptance length 2.35"]
    assert said_by(said_length=2.0, said_rate=0.5) == [begin + "acceptance rate 0.50, mean acceptance length 2.00"]
    assert said_by(drafts=1200) == [begin + "1,200 drafts"]
    assert said_by(accepted=3) == [begin]
    assert said_by(proposed=8) == [begin]
    assert said_by(drafts=4, proposed=8000, accepted=0) == [
        begin + "4 drafts, 0 of 8,000 accepted, acceptance rate 0.00, mean acceptance length 1.00"
    ]


def test_a_page_and_answers_that_cannot_be_read_are_both_named() -> None:
    wrong = [made_up_reply("a", body={"timings": {"draft_n": 2, "draft_n_accepted": 6}})]
    found = self_reported_of("<html>", "<html>", wrong)
    assert (found.page, found.bodies) == (None, None)
    [line] = found.lines("e")
    assert line.startswith("e: what it reports of itself could not be read: ")
    assert len(found.wrong.split("; ")) >= 2
    assert "6 of 2 proposals accepted" in found.wrong
    page = page_counting(1, 4, 2)
    for before, after in ((None, page), (page, None), (None, None)):
        assert self_reported_of(before, after, []) == SelfReported(None, None), "of half a pair nothing is said"


def blocks_with_a_failure(bench: ServingBench) -> list[dict[str, Any]]:
    """The blocks as a file has them, of answers ``ab`` and a failure at the prompt ``two``."""
    blocks = []
    for block in bench.blocks[ONE]:
        sent = []
        for one in block.sent:
            times = {"prompt": one.prompt, "sent_s": one.sent_s, "ended_s": one.ended_s, "late_s": 0.0}
            sent.append(
                times | {"failure": "reset", "said": one.said}
                if TEXTS[one.prompt] == "two"
                else times
                | {
                    "text": "ab",
                    "tokens": [["a", -0.5], ["b", -0.25]],
                    "chunks": [[0.5, 1, 1], [1.0, 1, 1]],
                    "seconds": 1.0,
                    "usage": [3, 2],
                    "finish_reason": "length",
                    "attempts": 1,
                    "body": {"id": TEXTS[one.prompt]},
                }
            )
        blocks.append({"endpoint": block.endpoint, "round": 0, "group": block.group, "counts": [], "sent": sent})
    return blocks


def test_the_file_of_a_run_has_all_that_was_asked_and_answered() -> None:
    """Names, texts and numbers of a run in which one request failed; the prompt and the key are no part of what was
    asked of all."""

    def answer(ask: Ask) -> Reply:
        if ask.prompt == "two" and ask.max_tokens > 1:
            raise EndpointFailure("reset", "planted")
        tokens = [Token("a", 5, -0.5), Token("b", 6, -0.25)]
        return made_up_reply("ab", tokens if ask.max_tokens > 1 else (), 2, body={"id": str(ask.prompt)})

    bench, _ = benchmark(answer, slo=Slo(e2e=2.0))
    bench.servers.refused["e0"] = {"min_p"}
    bench.measure(ONE)
    [certificate] = ServingBench(
        replace(bench.plan, endpoints=(*bench.plan.endpoints, Endpoint("e1", "http://e1"))),
        servers=MadeUpServers({"e0": MadeUpServer(answer), "e1": MadeUpServer(answer)}),
    ).certify("unknown")
    bench.certificates = [certificate]
    found = bench.as_json()
    assert all(one.reply or "planted" in one.said for block in bench.blocks[ONE] for one in block.sent)
    assert found == {
        "endpoints": [{"name": "e0", "url": "http://e0", "model": "m0"}],
        "asked": {
            "max_tokens": 8,
            "temperature": 0.0,
            **NEUTRAL,
            "seed": None,
            "logprobs": None,
            "stop": ("!",),
            "chat": False,
            "stream": True,
            "echo": False,
            "cache_prompt": False,
        },
        "refused_fields": {"e0": ["min_p"]},
        "before_new": "",
        "prompts": [{"workload": label, "text": text} for label, text in PROMPTS],
        "certificates": [
            {"endpoint": "e1", "state": "inconclusive", "lines": list(certificate.lines)},
        ],
        "loads": [
            {
                "load": {"concurrency": 1, "rate": None},
                "figures": [asdict(row) for row in bench.figures(ONE)],
                "own_words": {"e0": []},
                "blocks": blocks_with_a_failure(bench),
            }
        ],
    }
    assert found["loads"][0]["figures"][0]["goodput"][1] == 3 / 4
    empty, _ = benchmark(counting)
    assert (empty.as_json()["certificates"], empty.as_json()["loads"]) == ([], [])


def test_an_interrupt_in_a_block_leaves_what_had_ended() -> None:
    answers = 0

    def answer(ask: Ask) -> Reply:
        nonlocal answers
        answers += ask.max_tokens > 1 and ask.prompt != CHECK
        if answers == 7:
            raise KeyboardInterrupt
        return counting(ask)

    kept: list[int] = []
    bench, _ = benchmark(answer, kept=kept)
    with pytest.raises(KeyboardInterrupt):
        bench.measure(ONE)
    assert [len(block.sent) for block in bench.blocks[ONE]] == [1] * 6 + [0]
    assert kept == [2, 4, 6, 7]


def test_outputs_are_certified_once_after_the_endpoints_were_prepared() -> None:
    kept: list[int] = []
    bench, (first, second) = benchmark(counting, counting, kept=kept)
    found = bench.certify("float32")
    assert second.heard[0] == "health"
    asked = len(first.asked), len(second.asked)
    assert bench.certify("float32") is found is bench.certificates
    assert (len(first.asked), len(second.asked)) == asked
    assert [one.endpoint for one in found] == ["e1"]
    assert asked[1] == len(TEXTS) + 1 + len(TEXTS)
    assert kept == [0], "certificates are kept"
