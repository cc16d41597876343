"""Attacks on the figures of servers, planted: ways to look faster than one is, and what a table says of each."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from benchsuite.benches.serving.bench import AGAIN, ServingBench, ServingPlan
from benchsuite.benches.serving.figures import EndpointFigures, Slo
from benchsuite.benches.serving.load import Sent, Traffic, send
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.tests import attacking_servers as attacks
from benchsuite.tests.faulty import DONE, event
from benchsuite.tests.made_up_servers import MadeUpServer, MadeUpServers
from benchsuite.tests.made_up_time import MadeUpTime, in_made_up_time
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.replies import Reply

AT_ONCE = Traffic(concurrency=1)
TOKENS = 32


def attacked(
    attack: Callable[[Ask], Reply], *loads: Traffic, slo: Slo | None = None, rounds: int = 1
) -> list[list[EndpointFigures]]:
    """The rows of a plain server, of itself once more and of an attacking one, under each load: 24 prompts of two
    workloads for each."""
    loads = loads or (AT_ONCE,)
    endpoints = tuple(Endpoint(name, f"http://{name}", "m") for name in ("plain", "spec"))
    prompts = tuple((f"workload {n % 2}", f"prompt {n}") for n in range(24 * len(loads)))
    plan = ServingPlan(endpoints, prompts, Ask("", TOKENS), rounds, slo, loads=loads)
    servers = {"plain": MadeUpServer(attacks.PlainServer()), "spec": MadeUpServer(attack)}
    bench = ServingBench(plan, servers=MadeUpServers(servers))
    return [bench.measure(load) for load in loads]


def ratios(row: EndpointFigures) -> list[float | None]:
    return [found.ratio if found else None for found in (row.speed, row.decoding)]


def said_of(row: EndpointFigures) -> list[str | None]:
    """What the table says of both speeds."""
    return [SpeedVerdict(found, 0.0, row.reason).label for found in (row.speed, row.decoding)]


def test_a_plain_server_beside_itself_is_as_fast() -> None:
    [rows] = attacked(attacks.PlainServer())
    assert [row.endpoint for row in rows] == ["plain", "plain" + AGAIN, "spec"]
    assert [ratios(row) for row in rows] == [pytest.approx([1, 1])] * 3
    assert rows[2].tpot_ms[0] == pytest.approx(1e3 * attacks.EACH_S)


def test_a_suffix_memory_meets_no_prompt_of_another_load() -> None:
    """It emitted 1.04 tokens a forward with one request at a time and 8.00 with four, of the same prompts."""
    for rows in attacked(attacks.SuffixMemory(), AT_ONCE, Traffic(concurrency=4), Traffic(rate=1e6)):
        assert ratios(rows[2]) == pytest.approx([1, 1])


def test_a_suffix_memory_of_an_earlier_round_is_named_and_has_no_part_in_the_speed() -> None:
    [rows] = attacked(attacks.SuffixMemory(), rounds=3)
    assert rows[2].learns == pytest.approx(8)
    assert ratios(rows[2]) == pytest.approx([1, 1])


@pytest.mark.parametrize("attack", [attacks.HalfHeldBack, attacks.HeldBackUntilTheEnd])
def test_an_answer_that_is_held_back_is_decoded_no_faster(attack: type[attacks.PlainServer]) -> None:
    """ "decoding 1.97x" for a server that held half of its answer back: it was decoded before its first piece."""
    [[_, _, row]] = attacked(attack())
    assert ratios(row) == pytest.approx([1, 1], abs=0.01)
    assert "faster" not in said_of(row)


def test_pieces_that_come_at_once_are_one_and_have_no_time_per_token() -> None:
    """As a proxy sends them: a limit of a microsecond was kept."""
    [[_, _, row]] = attacked(attacks.AllAtOnce(), slo=Slo(tpot=1e-6))
    assert row.goodput is not None
    assert row.goodput[1] == 0
    assert (row.decoding, row.tpot_ms[0]) == (None, None)


def test_half_an_answer_in_a_first_piece_that_is_called_one_token_has_the_time_per_token_of_the_other_half() -> None:
    [[plain, _, row]] = attacked(attacks.HalfHeldBack())
    assert row.tpot_ms == pytest.approx(plain.tpot_ms)


def test_a_usage_that_is_doubled_in_streams_alone_gains_nothing() -> None:
    """It gained 1.31x: texts that are equal take the time that they take, however they are counted."""
    [[_, _, row]] = attacked(attacks.CountsTwiceInStreams())
    assert ratios(row) == pytest.approx([1, 1])
    assert said_of(row) == ["not comparable"] * 2
    assert row.reason is not None
    assert row.reason.startswith("counts: ")


def test_a_usage_that_is_a_fifth_too_high_is_found_where_no_text_is_equal() -> None:
    [[_, _, row]] = attacked(attacks.CountsAFifthMore())
    assert said_of(row) == ["not comparable"] * 2
    assert row.reason == "counts: a token of its answers has 0.84 times the text of one of the baseline's"


@pytest.mark.parametrize(("attack", "figure"), [(attacks.RepeatsAPiece, "looping"), (attacks.SaysNothing, "empty")])
def test_a_loop_or_blanks_have_no_speed_and_keep_no_limit(attack: type[attacks.PlainServer], figure: str) -> None:
    """ "14.89x", exit code 0, for a repetition."""
    [[plain, _, row]] = attacked(attack(), slo=Slo(e2e=9.0))
    assert ratios(row) == [None, None]
    assert getattr(row, figure) == 24
    assert [one.goodput and one.goodput[1] for one in (plain, row)] == [1, 0]


def test_answers_of_half_the_length_are_not_compared() -> None:
    [[_, _, row]] = attacked(attacks.EndsEarly())
    assert said_of(row) == ["not comparable"] * 2
    assert row.reason == "lengths: its outputs and the baseline's differ by 50% of their tokens"


def test_a_server_that_streams_nothing_keeps_no_limit_of_a_time_per_token_and_has_no_speed_of_decoding() -> None:
    """Its goodput was 100 % at a limit of a microsecond."""
    [[_, _, row]] = attacked(attacks.StreamsNothing(), slo=Slo(tpot=1e-6))
    assert row.goodput is not None
    assert row.goodput[1] == 0
    assert (row.decoding, row.tpot_ms[0]) == (None, None)
    assert row.speed is not None
    assert row.speed.ratio == pytest.approx(1)


@pytest.mark.parametrize("last", [(event(reason="length"), DONE), (event(reason="length"),)], ids=["done", "no mark"])
def test_a_request_ends_with_its_answer_however_long_the_server_holds_the_connection(last: tuple[bytes, ...]) -> None:
    """Counts and the mark of the end come behind it: the user had the answer before."""

    def sent_to(held_s: float) -> Sent:
        clock, sent = MadeUpTime(), list[Sent]()

        def answer(_: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=attacks.StaysOpen((event("a"), event("b"), *last), held_s))

        async def whole() -> None:
            endpoint = Endpoint("spec", "http://here", "m")
            async with Client(endpoint, transport=httpx.MockTransport(answer)) as client:
                await send(client, [(0, Ask("x", 4))], AT_ONCE, 0, sent)

        in_made_up_time(clock, whole())
        return sent[0]

    once, held = sent_to(0.0), sent_to(1.0)
    assert held == once
    assert (once.ended_s, once.reply and once.reply.seconds) == pytest.approx((3.0, 3.0))
