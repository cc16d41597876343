"""Rounds of endpoints: order, warm caches, and tokens that a stream does not count."""

from __future__ import annotations

import pytest

from benchsuite.benches.serving.bench import AGAIN, ServingBench, ServingPlan, prompts_of
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.self_reported import self_reported_of
from benchsuite.measure.workloads import Question, Workload
from benchsuite.tests.our_server import Bugs, OurServer
from benchsuite.tests.rig import Make
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import EndpointFailure

PROMPTS = (("chat", "hello there"), ("chat", "good morning"), ("code", "def f(x):"))


def planned(*servers: OurServer, rounds: int = 1) -> ServingPlan:
    endpoints = tuple(Endpoint(f"e{place}", server.url) for place, server in enumerate(servers))
    return ServingPlan(endpoints, PROMPTS, Ask("", 8), rounds)


def test_a_text_that_comes_twice_is_asked_once() -> None:
    """The second time the server's prefix cache would answer, and one prompt would count as two."""
    one = Workload("chat", (Question(("a",)), Question(("b", "more")), Question(("a",))))
    assert prompts_of([one, Workload("code", (Question(("b",)), Question(("c",))))]) == (
        ("chat", "a"),
        ("chat", "b"),
        ("code", "c"),
    )


@pytest.mark.slow
def test_every_endpoint_answers_every_prompt_once_a_round_in_orders_that_are_turned_round(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0)) as a, OurServer(assemble().engine("ngram", k=4)) as b:
        bench = ServingBench(planned(a, b, rounds=2))
        rows = bench.measure(Traffic(concurrency=1))
    assert [row.endpoint for row in rows] == ["e0", "e0" + AGAIN, "e1"]
    [blocks] = bench.blocks.values()
    for prompt in range(3):
        mine = [block for block in blocks if [one.prompt for one in block.sent] == [prompt]]
        first, second = ([block.endpoint for block in mine if block.round == turn] for turn in (0, 1))
        assert sorted(first) == ["e0", "e0" + AGAIN, "e1"]
        assert first == second[::-1]
    assert len(blocks) == 3 * 3 * 2
    assert all(one.reply and one.reply.text for block in blocks for one in block.sent)
    texts = {(one.prompt, one.reply.text) for block in blocks for one in block.sent if one.reply}
    assert len(texts) == len(PROMPTS), "greedy: plain and speculative answer alike"


@pytest.mark.slow
def test_tokens_that_a_stream_does_not_count_are_counted_by_the_same_answer_asked_for_whole(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0), Bugs(no_usage=True, no_logprobs=True)) as server:
        bench = ServingBench(planned(server))
        [row, _] = bench.measure(Traffic(concurrency=1))
    assert row.tokens_per_s is not None
    assert row.speed is not None
    [blocks] = bench.blocks.values()
    assert all(one.reply and one.reply.counted == 8 for block in blocks for one in block.sent)
    assert any("has no usage in a stream: its tokens are counted" in line for line in bench.said)
    assert any("gives no log-probabilities" in line for line in bench.said)


@pytest.mark.slow
def test_a_text_that_was_not_the_one_asked_for_whole_has_no_count(assemble: Make) -> None:
    """A server that changes tokens at random: another text has another number of tokens."""
    with OurServer(assemble().engine(None, k=0), Bugs(no_usage=True, no_logprobs=True, change=2)) as server:
        bench = ServingBench(planned(server))
        [row, _] = bench.measure(Traffic(concurrency=1))
    assert row.tokens_per_s is None
    assert row.e2e_ms[0] is not None


def test_a_usage_that_counts_more_than_was_sent_is_found_before_the_timing(assemble: Make) -> None:
    with OurServer(assemble().engine(None, k=0), Bugs(usage=2)) as server:
        bench = ServingBench(planned(server))
        with pytest.raises(EndpointFailure, match="usage says"):
            bench.prepare()
    assert not bench.blocks


@pytest.mark.slow
def test_what_a_server_says_of_itself_is_what_its_engine_counted_under_the_load(assemble: Make) -> None:
    """Counters since the start are differenced: what was asked before the timing is not in them."""
    engine = assemble().engine("oracle(0.7)", k=2)
    with OurServer(assemble().engine(None, k=0)) as a, OurServer(engine) as b:
        bench = ServingBench(planned(a, b))
        bench.prepare()
        before = engine.stats.counts["num_draft_tokens"], engine.stats.counts["num_accepted_tokens"]
        bench.measure(Traffic(concurrency=1))
        after = engine.stats.counts["num_draft_tokens"], engine.stats.counts["num_accepted_tokens"]
    [said] = bench.self_reported.values()
    page = said["e1"].page
    assert page is not None
    assert (page.proposed, page.accepted) == (after[0] - before[0], after[1] - before[1])
    [line] = said["e1"].lines("e1")
    assert line.startswith(f"e1 says of itself (vllm page): {page.drafts} drafts, {page.accepted} of {page.proposed}")
    assert said["e0"].lines("e0") == [], "plain decoding has nothing to say"


def test_a_report_of_a_server_that_cannot_be_read_is_named_and_loses_nothing() -> None:
    found = self_reported_of("<html>", "<html>", [])
    assert found.page is None
    assert "what it reports of itself could not be read" in found.lines("e1")[0]
    assert self_reported_of(None, "x 1", []).lines("e1") == []
