"""What servers say of their own speculation: recorded pages and bodies, read, converted both ways, and refused."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchsuite.tests.our_server import OurServer
from benchsuite.tests.rig import Make
from specdec.errors import SpecdecError
from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.client import Ask, Client
from specdec_plugins.endpoints.exposition import PageError, PageSample, read_samples, write_samples
from specdec_plugins.endpoints.named import Endpoint
from specdec_plugins.endpoints.server_metrics import Speculation

RECORDED = Path(__file__).parents[1] / "recorded"
BODIES = json.loads((RECORDED / "bodies.json").read_text(encoding="utf-8"))
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in RECORDED.glob("*.txt")}

COUNTED = {
    "vllm-before": (37, 74, 16, (12, 4), 70),
    "vllm-dflash": (6274, 43918, 10130, (4214, 2532, 1350, 888, 566, 370, 210), None),
    "llamacpp": (230, 460, 142, (101, 41), 372),
    "sglang": (None, None, None, (), 2560),
    "tgi": (None, None, 70, (), 170),
}
"""Of each recorded page: drafts, proposed, accepted, accepted by position, emitted."""


def every_figure(said: Speculation) -> tuple[Any, ...]:
    """Every figure, without notes and engines."""
    return (
        *(getattr(said, name) for name in (*server_metrics.COUNTS, "accepted_by_position", "histogram")),
        said.acceptance_rate,
        said.mean_acceptance_length,
        pytest.approx(said.decode_s) if said.decode_s is not None else None,
    )


@pytest.mark.parametrize("name", COUNTED)
def test_a_recorded_page_reads_as_what_it_counts(name: str) -> None:
    said = server_metrics.read_page(PAGES[name])
    assert (said.drafts, said.proposed, said.accepted, said.accepted_by_position, said.emitted) == COUNTED[name]
    assert said.speculates


def test_rates_and_lengths_have_our_definitions() -> None:
    said = server_metrics.read_page(PAGES["vllm-dflash"])
    assert said.acceptance_rate == 10130 / 43918
    assert said.mean_acceptance_length == 1 + 10130 / 6274
    assert said.figures()["counters.num_drafts"] == 6274
    # A server that says means alone is believed, in its own words.
    sglang = server_metrics.read_page(PAGES["sglang"])
    assert (sglang.acceptance_rate, sglang.mean_acceptance_length, sglang.scope) == (0.27, 2.9, "last interval")


@pytest.mark.parametrize("name", COUNTED)
def test_a_page_written_again_keeps_every_figure(name: str) -> None:
    said = server_metrics.read_page(PAGES[name])
    again = server_metrics.read_page(server_metrics.write_page(said))
    assert every_figure(again) == every_figure(said)
    assert again.engines == said.engines
    assert again.began == said.began


@pytest.mark.parametrize("name", BODIES)
def test_a_body_written_again_keeps_every_figure(name: str) -> None:
    said = server_metrics.read_body(BODIES[name]["body"])
    assert said is not None
    again = server_metrics.read_body(json.loads(json.dumps(server_metrics.write_body(said))))
    assert again is not None
    assert every_figure(again) == every_figure(said)
    assert not said.notes


def test_bodies_read_as_what_they_count() -> None:
    said = {name: server_metrics.read_body(one["body"]) for name, one in BODIES.items()}
    counts = {name: one and (one.drafts, one.proposed, one.accepted) for name, one in said.items()}
    assert counts == {
        "vllm": (43, 129, 10),
        "llama.cpp": (None, 347, 65),
        "llama.cpp stream": (None, 604, 515),
        "mlx-vlm": (30, 90, 81),
        "sglang": (1, 5, 1),
    }
    assert said["vllm"]
    assert said["vllm"].histogram == (39, 1, 0, 3)
    assert said["llama.cpp"]
    assert said["llama.cpp"].decode_s == pytest.approx(11.082606)
    assert server_metrics.read_body({"choices": [], "usage": {}}) is None
    assert server_metrics.read_body({"timings": {"predicted_n": 5}}) is None


def test_the_length_that_sglang_says_of_a_request_counts_the_prefills_token_and_ours_does_not() -> None:
    said = server_metrics.read_body(BODIES["sglang"]["body"])
    assert said is not None
    assert (said.said_length, said.mean_acceptance_length) == (3.0, 2.0)
    assert server_metrics.write_body(said)["meta_info"]["spec_accept_length"] == 3.0
    wrong = json.loads(
        json.dumps(BODIES["sglang"]["body"]).replace('"spec_accept_length": 3.0', '"spec_accept_length": 4.0')
    )
    noted = server_metrics.read_body(wrong)
    assert noted is not None
    assert noted.notes == ("the server's mean acceptance length is 4; its counts make 2",)


def test_the_difference_of_two_pages_is_what_was_counted_between_them() -> None:
    before, after = (server_metrics.read_page(PAGES[f"vllm-{name}"]) for name in ("before", "after"))
    said = server_metrics.between(before, after)
    assert (said.drafts, said.proposed, said.accepted, said.emitted) == (20, 40, 20, 50)
    assert said.accepted_by_position == (13, 7)
    assert said.scope == "between"
    assert {engine.drafts for engine in said.engines.values()} == {0, 20}
    assert server_metrics.between(after, after).mean_acceptance_length is None


def test_a_counter_that_fell_is_a_restart_by_its_name() -> None:
    before, after = (server_metrics.read_page(PAGES[f"vllm-{name}"]) for name in ("before", "after"))
    with pytest.raises(PageError, match=r"vllm:spec_decode_num_drafts_total of engine .*\"0\".* fell from 42 to 22"):
        server_metrics.between(after, before)
    fewer = replace(after, engines={}, accepted_by_position=(99, 0))
    with pytest.raises(PageError, match="per_pos_total, position 0, fell"):
        server_metrics.between(fewer, replace(after, engines={}))


def test_a_restart_of_one_engine_does_not_hide_in_the_sum_of_two() -> None:
    before = server_metrics.read_page(PAGES["vllm-before"])
    grown = PAGES["vllm-after"].replace('drafts_total{engine="1",model_name="/home/models/Qwen3-0.6B"} 15.0', "")
    one, other = sorted(before.engines)
    after = server_metrics.read_page(PAGES["vllm-after"])
    fallen = replace(after, engines={**after.engines, other: replace(after.engines[other], drafts=1)})
    assert fallen.drafts
    assert before.drafts
    assert fallen.drafts > before.drafts
    with pytest.raises(PageError, match="fell from 15 to 1"):
        server_metrics.between(before, fallen)
    with pytest.raises(PageError, match="is gone from the second page"):
        server_metrics.between(before, replace(after, engines={one: after.engines[one]}))
    assert grown.count("drafts_total{") == 1


def test_counters_made_anew_are_a_restart_though_none_fell() -> None:
    before = server_metrics.read_page(PAGES["vllm-before"])
    after = server_metrics.read_page(PAGES["vllm-after"].replace("1.756736798733569e+09", "1.756736999e+09"))
    with pytest.raises(PageError, match=r"vllm:spec_decode_num_drafts_created .*changed"):
        server_metrics.between(before, after)


def test_a_mean_without_counts_is_kept_only_from_a_fresh_server() -> None:
    fresh = server_metrics.read_server_info({"internal_states": [{"last_gen_throughput": 0.0}]})
    first = server_metrics.read_server_info({"internal_states": [{"avg_spec_accept_length": 2.5}]})
    later = server_metrics.read_server_info({"internal_states": [{"avg_spec_accept_length": 3.5}]})
    assert not fresh.speculates
    assert server_metrics.between(fresh, first).mean_acceptance_length == 2.5
    assert server_metrics.between(first, later).mean_acceptance_length is None
    assert "has no difference" in server_metrics.between(first, later).notes[0]
    assert server_metrics.read_server_info(server_metrics.write_body(first)).mean_acceptance_length == 2.5


def test_means_of_several_schedulers_are_not_averaged() -> None:
    said = server_metrics.read_server_info(
        {"internal_states": [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}]}
    )
    assert said.mean_acceptance_length is None
    assert "no weights" in said.notes[0]
    line = 'sglang:spec_accept_length{{dp_rank="{}"}} {}\n'
    page = server_metrics.read_page(line.format(0, 2.0) + line.format(1, 3.0))
    assert page.mean_acceptance_length is None
    assert "no weights" in page.notes[0]


@pytest.mark.parametrize(
    ("page", "note"),
    [
        ('vllm:generation_tokens_total{engine="0"} 12.0\n', "vllm:spec_decode_num_draft_tokens_total is absent"),
        ("llamacpp:tokens_predicted_total 12\n", "llamacpp:spec_decode_num_draft_tokens_total is absent"),
        ('sglang:spec_accept_length{model_name="m"} 0.0\n', "sglang:spec_accept_length is absent or 0"),
        ("tgi_request_count 3\n", "no request yet"),
    ],
)
def test_a_page_without_speculation_says_so(page: str, note: str) -> None:
    said = server_metrics.read_page(page)
    assert not said.speculates
    assert any(note in one for one in said.notes)


def test_names_of_other_versions_are_read_or_named() -> None:
    bare = PAGES["vllm-dflash"].replace("_total", "")
    assert every_figure(server_metrics.read_page(bare)) == every_figure(server_metrics.read_page(PAGES["vllm-dflash"]))
    first = server_metrics.read_page(
        "vllm:spec_decode_num_accepted_tokens_total 8547\nvllm:spec_decode_num_draft_tokens_total 13311\n"
        "vllm:spec_decode_num_emitted_tokens_total 10616\nvllm:spec_decode_efficiency 0.598\n"
    )
    assert first.acceptance_rate == 8547 / 13311
    assert first.mean_acceptance_length is None
    assert any("counts no drafts" in note for note in first.notes)
    newer = server_metrics.read_page(PAGES["vllm-dflash"] + "vllm:spec_decode_num_dreams_total 3\n")
    assert any("vllm:spec_decode_num_dreams_total is a name that is not known" in note for note in newer.notes)
    said = server_metrics.read_body({"timings": {"draft_n": 4, "draft_n_accepted": 2, "draft_mood": 1}})
    assert said
    assert any("draft_mood" in note for note in said.notes)
    workers = server_metrics.read_page('sglang_spec_accept_length{worker_addr="grpc://127.0.0.1:8001"} 2.5\n')
    assert workers.mean_acceptance_length == 2.5


LINES = PAGES["vllm-after"].splitlines(keepends=True)


@pytest.mark.parametrize(
    ("page", "words_of_the_error"),
    [
        ("<!DOCTYPE html><html><body>502 Bad Gateway</body></html>", "got HTML"),
        ('{"detail": "Not Found"}', "got JSON"),
        ("", "no sample at all"),
        ("process_cpu_seconds_total 3\n", "the page is none of"),
        (PAGES["vllm-after"][:-9], "ends in the middle of a line"),
        ("".join(LINES[:-7]), "num_accepted_tokens_total of engine"),
        ("".join([*LINES[:-4], *LINES[-3:]]), "lacks position 0"),
        ("vllm:spec_decode_num_drafts_total\n", "line 1 of the page is no sample"),
        ('vllm:spec_decode_num_drafts_total{engine="0} 3\n', "line 1 of the page is no sample"),
    ],
)
def test_what_is_no_whole_page_is_refused(page: str, words_of_the_error: str) -> None:
    with pytest.raises(PageError, match=words_of_the_error):
        server_metrics.read_page(page)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e400", "-3", "many", "1_000", "2.5", ""])
@pytest.mark.parametrize("name", ["num_drafts_total{", 'num_accepted_tokens_per_pos_total{engine="0"'])
def test_a_count_that_is_none_is_refused_by_its_name(value: str, name: str) -> None:
    before, found, after = PAGES["vllm-dflash"].partition(name)
    labels, _, rest = after.partition("} ")
    number, newline, rest = rest.partition("\n")
    assert found
    assert number
    with pytest.raises(PageError, match="num_drafts_total|per_pos_total|no sample"):
        server_metrics.read_page(f"{before}{found}{labels}}} {value}{newline}{rest}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "7", True, 2.5, [1]])
def test_a_body_whose_count_is_none_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(PageError, match="draft_n is"):
        server_metrics.read_body({"timings": {"draft_n": value, "draft_n_accepted": 0}})


def test_figures_that_contradict_each_other_are_refused_or_noted() -> None:
    with pytest.raises(PageError, match="9 of 4 proposals accepted"):
        server_metrics.read_body({"timings": {"draft_n": 4, "draft_n_accepted": 9}})
    body = {"num_spec_steps": 4, "num_draft_tokens": 12, "num_accepted_draft_tokens": 3, "acceptance_histogram": [3, 1]}
    with pytest.raises(PageError, match="a histogram of 5 steps and 3 accepted"):
        server_metrics.read_body({"metrics": {"speculative_decoding": {**body, "acceptance_histogram": [2, 3]}}})
    with pytest.raises(PageError, match="a histogram of 4 steps and 1 accepted"):
        server_metrics.read_body({"metrics": {"speculative_decoding": body}})
    said = server_metrics.read_body(
        {
            "metrics": {
                "speculative_decoding": {**body, "acceptance_histogram": [1, 3, 0], "mean_acceptance_length": 2.0}
            }
        }
    )
    assert said
    assert said.notes == ("the server's mean acceptance length is 2; its counts make 1.75",)
    with pytest.raises(PageError, match="expected one figure"):
        server_metrics.read_body({"meta_info": {"spec_num_proposed_drafts": 5, "spec_draft_token_num": 6}})


def test_requests_added_up_are_their_sums() -> None:
    one = server_metrics.read_body(BODIES["vllm"]["body"])
    assert one is not None
    both = server_metrics.added([one, replace(one, histogram=(40, 0, 0, 0, 3), accepted=12)])
    assert both
    assert (both.drafts, both.accepted, both.histogram) == (86, 22, (79, 1, 0, 3, 3))
    assert server_metrics.added([]) is None
    less = server_metrics.added([one, replace(one, drafts=None)])
    assert less
    assert less.drafts is None
    other = server_metrics.read_body(BODIES["sglang"]["body"])
    assert other is not None
    with pytest.raises(PageError, match="the words of one server"):
        server_metrics.added([one, other])


@pytest.mark.slow
def test_pages_asked_before_and_after_requests_count_what_the_engine_did(assemble: Make) -> None:
    engine = assemble().engine("ngram", k=3)

    async def run(url: str) -> tuple[str, str, str]:
        async with Client(Endpoint("spec", url)) as client:
            pages = [await client.page("/metrics")]
            for _ in range(2):
                await client.complete(Ask("ab ab ab ab ab", 24))
                pages.append(await client.page("/metrics"))
        return pages[0], pages[1], pages[2]

    with OurServer(engine) as server:
        first, second, third = map(server_metrics.read_page, asyncio.run(run(server.url)))
    counts = engine.stats.counts
    said = server_metrics.between(first, third)
    assert (said.drafts, said.proposed, said.accepted) == tuple(
        counts[name] for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    assert said.proposed
    halves = server_metrics.added([server_metrics.between(first, second), server_metrics.between(second, third)])
    assert halves is not None
    assert (halves.drafts, halves.proposed, halves.accepted) == (said.drafts, said.proposed, said.accepted)
    assert said.acceptance_rate == engine.stats.acceptance_rate
    assert said.mean_acceptance_length == engine.stats.mean_acceptance_length


COUNT = st.integers(0, 10**9)


@st.composite
def spoken(draw: st.DrawFn) -> Speculation:
    """Counts that a server could have counted."""
    kept = sorted(draw(st.lists(COUNT, min_size=1, max_size=8)), reverse=True)
    drafts = kept[0] + draw(COUNT)
    proposed = sum(kept) + draw(COUNT)
    return Speculation(
        "vllm page", "since start", drafts, proposed, sum(kept), tuple(kept), emitted=sum(kept) + drafts + draw(COUNT)
    )


@pytest.mark.slow
@given(spoken(), st.sampled_from(["vllm page", "llama.cpp page"]))
def test_ours_to_theirs_to_ours_is_the_identity(said: Speculation, source: str) -> None:
    again = server_metrics.read_page(server_metrics.write_page(said, source))
    assert replace(again, source=said.source, notes=()) == said


@pytest.mark.slow
@given(spoken(), st.sampled_from([name for name in server_metrics.NAMES if name.endswith("body")]))
def test_what_a_body_has_a_name_for_comes_back_and_the_rest_is_listed(said: Speculation, source: str) -> None:
    again = server_metrics.read_body(server_metrics.write_body(said, source))
    assert again is not None
    lost = server_metrics.unsaid(said, source)
    for name in (*server_metrics.COUNTS, "accepted_by_position"):
        assert getattr(again, name) == getattr(said, name) or name in lost
        assert name not in lost or getattr(again, name) in (None, ())


@pytest.mark.slow
@given(spoken(), spoken())
def test_the_difference_undoes_the_sum(one: Speculation, other: Speculation) -> None:
    both = server_metrics.added([one, other])
    assert both is not None
    assert every_figure(server_metrics.between(one, both))[:4] == every_figure(other)[:4]


@pytest.mark.slow
@given(
    st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), st.text(max_size=8).filter(lambda t: "\r" not in t), max_size=3)
)
@example({"a": 'C:\\new\\"b"\n'})
def test_any_label_survives_a_page(labels: dict[str, str]) -> None:
    text = write_samples([PageSample("a_total", "1", labels)], {"a_total": "counter"})
    if len(text.splitlines()) == 2:  # other line ends than \n have no place in the format
        assert read_samples(text) == [PageSample("a_total", "1", labels)]


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    with suppress(SpecdecError):
        server_metrics.read_page(text)


def test_a_source_without_that_kind_of_words_is_refused_with_the_choices() -> None:
    said = server_metrics.read_page(PAGES["llamacpp"])
    with pytest.raises(SpecdecError, match="unknown page 'tgi body'.*vllm page"):
        server_metrics.write_page(said, "tgi body")
    with pytest.raises(SpecdecError, match="unknown body"):
        server_metrics.write_body(said, "tgi page")
    with pytest.raises(PageError, match="two readings of one page"):
        server_metrics.between(said, server_metrics.read_page(PAGES["vllm-after"]))
