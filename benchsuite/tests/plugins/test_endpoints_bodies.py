"""What bodies say of one request, what is counted between two readings, and what several requests add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specdec import DraftCounts
from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.exposition import PageError
from specdec_plugins.endpoints.server_metrics import Speculation

UNKNOWN = "is a name that is not known here; it was not read"

VLLM = {
    "num_spec_steps": 4,
    "num_draft_tokens": 12,
    "num_accepted_draft_tokens": 3,
    "acceptance_histogram": [1, 3],
    "mean_acceptance_length": 1.75,
    "draft_acceptance_rate": 0.25,
}
STEPS = {"per_step_drafted": [3, 3, 3, 3], "per_step_accepted": [1, 0, 1, 1]}
SGLANG = {
    "spec_verify_ct": 4,
    "spec_draft_token_num": 12,
    "spec_accept_token_num": 3,
    "spec_accept_histogram": [1, 3],
    "completion_tokens": 8,
    "spec_accept_length": 2.0,
    "spec_accept_rate": 0.25,
}
LLAMA_CPP = {"draft_rounds": 4, "draft_n": 12, "draft_n_accepted": 3, "predicted_n": 8, "predicted_ms": 250.0}

WHOLE: dict[str, tuple[dict[str, Any], Speculation]] = {
    "vllm body": (
        {"metrics": {"speculative_decoding": VLLM}},
        Speculation("vllm body", "request", 4, 12, 3, (), (1, 3), said_rate=0.25, said_length=1.75),
    ),
    "vllm body, detailed": (
        {"metrics": {"speculative_decoding": {**VLLM, **STEPS}}},
        replace(
            Speculation("vllm body", "request", 4, 12, 3, (), (1, 3), said_rate=0.25, said_length=1.75),
            proposed_by_step=(3, 3, 3, 3),
            accepted_by_step=(1, 0, 1, 1),
        ),
    ),
    "sglang body": (
        {"meta_info": SGLANG},
        Speculation("sglang body", "request", 4, 12, 3, (), (1, 3), 8, said_rate=0.25, said_length=2.0),
    ),
    "llama.cpp body": (
        {"timings": LLAMA_CPP},
        Speculation("llama.cpp body", "request", 4, 12, 3, emitted=8, decode_s=0.25),
    ),
}


@pytest.mark.parametrize("source", WHOLE)
def test_a_body_with_every_name_is_read_whole_and_written_name_by_name(source: str) -> None:
    body, said = WHOLE[source]
    assert server_metrics.read_body(body) == said
    assert server_metrics.write_body(said) == body
    outer, *inner = server_metrics.BODIES[said.source]
    assert server_metrics.write_body(Speculation(said.source, "request")) == {outer: {inner[0]: {}} if inner else {}}


def test_steps_give_the_acceptance_by_position_that_a_histogram_has_only_over_all_drafts() -> None:
    [whole, summary] = [WHOLE[name][1].counts for name in ("vllm body, detailed", "vllm body")]
    assert whole == DraftCounts.of_steps([(3, 1), (3, 0), (3, 1), (3, 1)])
    assert summary == replace(whole, proposed_by_position=())
    assert WHOLE["llama.cpp body"][1].counts == DraftCounts(4, 12, 3)
    both = server_metrics.added([WHOLE["vllm body, detailed"][1]] * 2)
    assert both is not None
    assert both.counts == whole + whole
    mixed = server_metrics.added([WHOLE["vllm body, detailed"][1], WHOLE["vllm body"][1]])
    assert mixed is not None
    assert mixed.counts == replace(whole + whole, proposed_by_position=())


@pytest.mark.parametrize(
    "steps",
    [
        {"per_step_drafted": [3, 3, 3], "per_step_accepted": [1, 1, 1]},
        {"per_step_drafted": [3, 3, 3, 3], "per_step_accepted": [1, 1, 1]},
        {"per_step_drafted": [3, 3, 3, 4], "per_step_accepted": [1, 0, 1, 1]},
        {"per_step_drafted": [3, 3, 3, 3], "per_step_accepted": [1, 1, 1, 1]},
        {"per_step_drafted": [3, 3, 3, 3]},
    ],
)
def test_steps_that_are_not_those_of_the_sums_are_refused(steps: dict[str, list[int]]) -> None:
    with pytest.raises(PageError, match=r"^vllm body: steps that proposed .* beside 4 steps, 12 proposals and 3 acc"):
        server_metrics.read_body({"metrics": {"speculative_decoding": {**VLLM, **steps}}})


def test_counts_are_written_in_another_servers_names() -> None:
    said = Speculation("llama.cpp page", "since start", 3, 6, 2, (2,), emitted=4, decode_s=0.5)
    assert server_metrics.write_body(said, "sglang body") == {
        "meta_info": {
            "spec_verify_ct": 3,
            "spec_draft_token_num": 6,
            "spec_accept_token_num": 2,
            "completion_tokens": 4,
            "spec_accept_length": 4 / 3,  # tokens over steps, as SGLang counts
            "spec_accept_rate": 1 / 3,
        }
    }
    for changed in (replace(said, emitted=None), replace(said, source="sglang body", emitted=None)):
        assert server_metrics.write_body(changed, "sglang body")["meta_info"]["spec_accept_length"] == 1 + 2 / 3
    none = replace(said, drafts=0, proposed=0, accepted=0)
    assert server_metrics.write_body(none, "sglang body")["meta_info"] == {
        "spec_verify_ct": 0,
        "spec_draft_token_num": 0,
        "spec_accept_token_num": 0,
        "completion_tokens": 4,
    }
    assert server_metrics.write_body(said, "vllm body")["metrics"]["speculative_decoding"] == {
        "num_spec_steps": 3,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 2,
        "mean_acceptance_length": 1 + 2 / 3,
        "draft_acceptance_rate": 1 / 3,
    }
    assert server_metrics.write_body(said, "sglang info") == {
        "internal_states": [{"avg_spec_accept_length": 1 + 2 / 3}]
    }


@pytest.mark.parametrize(
    ("body", "notes"),
    [
        (
            {
                "metrics": {
                    "speculative_decoding": {
                        **VLLM,
                        "num_spec_tokens": 3,
                        **STEPS,
                    }
                }
            },
            (),
        ),
        ({"metrics": {"speculative_decoding": {**VLLM, "new": 1}}}, (f"new {UNKNOWN}",)),
        ({"meta_info": {**SGLANG, "e2e_latency": 1, "spec_new": 1}}, (f"spec_new {UNKNOWN}",)),
        ({"timings": {**LLAMA_CPP, "draft_kind": "mtp", "prompt_n": 3}}, ()),
        ({"timings": {**LLAMA_CPP, "draft_new": 3}}, (f"draft_new {UNKNOWN}",)),
        ({"timings": {**LLAMA_CPP, "draft_rounds": None}}, ()),
    ],
)
def test_names_of_a_body_are_known_or_noted(body: dict[str, Any], notes: tuple[str, ...]) -> None:
    said = server_metrics.read_body(body)
    assert said is not None
    assert (said.notes, said.proposed, said.accepted) == (notes, 12, 3)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metrics": 3, "choices": 3, "meta_info": 3, "timings": 3},
        {"metrics": {}, "choices": {"x": 1}, "meta_info": {}, "timings": {}},
        {"metrics": {"speculative_decoding": None}, "choices": [], "meta_info": {"completion_tokens": 3}},
        {"choices": [3], "timings": {"predicted_n": 3, "predicted_ms": 3.0}},
        {"choices": [{"meta_info": 3}, {"meta_info": SGLANG}]},
    ],
)
def test_a_body_that_says_nothing_of_speculation_is_none(body: dict[str, Any]) -> None:
    assert server_metrics.read_body(body) is None


def test_sglangs_words_stand_in_the_body_or_in_its_first_choice_under_first_or_later_names() -> None:
    expected = WHOLE["sglang body"][1]
    later = {
        "spec_verify_ct": 4,
        "spec_correct_drafts_histogram": [1, 3],
        "completion_tokens": 8,
        "spec_accept_length": 2.0,
        "spec_accept_rate": 0.25,
    }
    for proposed, accepted in (
        ("spec_num_proposed_drafts", "spec_num_correct_drafts"),
        ("spec_proposed_drafts", "spec_accepted_drafts"),
    ):
        meta = {**later, proposed: 12, accepted: 3}
        assert server_metrics.read_body({"choices": [{"meta_info": meta}]}) == expected
        assert server_metrics.read_body({"meta_info": {**SGLANG, **meta}}) == expected, "both names of one figure"
    assert server_metrics.read_body({"metrics": {}, "choices": [], "meta_info": SGLANG}) == expected
    with pytest.raises(PageError) as refused:
        server_metrics.read_body({"meta_info": {**SGLANG, "spec_accepted_drafts": 2}})
    assert str(refused.value) == "spec_accepted_drafts is 2 and spec_accept_token_num is 3; expected one figure"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_spec_steps": True}, "num_spec_steps is True; expected a number. Look at the server's answer"),
        ({"num_spec_steps": "4"}, "num_spec_steps is '4'; expected a number. Look at the server's answer"),
        (
            {"acceptance_histogram": "13"},
            "acceptance_histogram is '13'; expected a number. Look at the server's answer",
        ),
        (
            {"acceptance_histogram": 4},
            "acceptance_histogram is 4; expected a list of numbers. Look at the server's answer",
        ),
        (
            {"acceptance_histogram": [1, 2.5]},
            "acceptance_histogram is '2.5'; expected a whole number. Look at the server's page",
        ),
        (
            {"mean_acceptance_length": -1},
            "mean_acceptance_length is '-1'; expected a finite number of 0 or more. Look at the server's page",
        ),
        (
            {"num_accepted_draft_tokens": 13, "acceptance_histogram": None},
            "vllm body: 13 of 12 proposals accepted; look at the server",
        ),
        (
            {"acceptance_histogram": [1, 2]},
            "vllm body: a histogram of 3 steps and 2 accepted tokens, beside 4 and 3; look at the server",
        ),
        (
            {"acceptance_histogram": [2, 2]},
            "vllm body: a histogram of 4 steps and 2 accepted tokens, beside 4 and 3; look at the server",
        ),
        (
            {"acceptance_histogram": [3, 1, 0], "num_accepted_draft_tokens": None, "num_spec_steps": 5},
            "vllm body: a histogram of 4 steps and 1 accepted tokens, beside 5 and None; look at the server",
        ),
    ],
)
def test_figures_of_a_body_that_are_none_or_contradict_each_other_are_refused(
    changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics.read_body({"metrics": {"speculative_decoding": {**VLLM, **changed}}})
    assert str(refused.value) == says


def test_sglangs_server_info_is_one_mean_of_each_scheduler_that_says_one() -> None:
    name = "avg_spec_accept_length"

    def info(*lengths: float | None) -> Speculation:
        return server_metrics.read_server_info({"internal_states": [{"load": 1, name: length} for length in lengths]})

    def of(length: float) -> Speculation:
        return Speculation("sglang info", "since start", said_length=length)

    assert info(2.5) == replace(of(2.5), engines={"0": of(2.5)})
    assert info(None, 2.5) == replace(of(2.5), engines={"1": of(2.5)})
    none = Speculation(
        "sglang info",
        "since start",
        notes=("no avg_spec_accept_length: the server has not speculated yet, or never does",),
    )
    assert info() == info(None) == none
    assert info(2.5, 3.0) == Speculation(
        "sglang info",
        "since start",
        engines={"0": of(2.5), "1": of(3.0)},
        notes=("several schedulers: their mean lengths have no weights to be averaged with",),
    )
    with pytest.raises(PageError) as refused:
        info(2.5, -1)
    assert str(refused.value) == (
        f"{name} is '-1'; expected a finite number of 0 or more. Look at the server's page (scheduler 1)"
    )


@pytest.mark.parametrize(
    ("info", "keys"),
    [
        ({}, "none"),
        ({"internal_states": 3}, "internal_states"),
        ({"internal_states": [{}, 3]}, "internal_states"),
        (dict.fromkeys("gfedcba", 1), "a, b, c, d, e, f"),
    ],
)
def test_an_info_without_schedulers_is_refused_with_its_first_six_keys(info: dict[str, Any], keys: str) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics.read_server_info(info)
    assert str(refused.value) == f"expected SGLang's server info, with internal_states; got the keys {keys}"


def _reading(**changed: Any) -> Speculation:
    """A reading of llama.cpp's page."""
    return replace(
        Speculation("llama.cpp page", "since start", 10, 20, 8, (6, 2), emitted=19, decode_s=2.5, began=7.0), **changed
    )


def test_what_was_counted_in_between_is_the_difference_of_every_count() -> None:
    after = _reading(
        drafts=14, proposed=28, accepted=13, accepted_by_position=(9, 3, 1), emitted=30, decode_s=4.0, notes=("n", "n")
    )
    expected = Speculation(
        "llama.cpp page", "between", 4, 8, 5, (3, 1, 1), emitted=11, decode_s=1.5, began=7.0, notes=("n",)
    )
    assert server_metrics.between(_reading(), after) == expected
    same = server_metrics.between(_reading(), _reading())
    assert same == Speculation("llama.cpp page", "between", 0, 0, 0, (0, 0), emitted=0, decode_s=0.0, began=7.0), (
        "nothing fell"
    )
    empty = Speculation("llama.cpp page", "since start")
    assert server_metrics.between(empty, _reading()) == replace(_reading(), scope="between"), (
        "all of what was not there before"
    )
    assert server_metrics.between(empty, empty) == replace(empty, scope="between")


def test_each_engine_has_its_own_difference_and_a_new_one_is_kept_whole() -> None:
    one, other = _reading(), _reading(drafts=1, proposed=2, accepted=1, accepted_by_position=(1,), emitted=3)
    grown = replace(one, drafts=12, emitted=25)
    found = server_metrics.between(
        _reading(engines={"a": one}),
        _reading(drafts=13, engines={"a": grown, "b": other}),
    )
    assert found.drafts == 3
    assert found.engines == {
        "a": Speculation("llama.cpp page", "between", 2, 0, 0, (0, 0), emitted=6, decode_s=0.0, began=7.0),
        "b": replace(other, scope="between"),
    }


AGAIN = "the server was started anew in between. Measure again"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"drafts": 9}, f"llamacpp:spec_decode_num_drafts_total fell from 10 to 9: {AGAIN}"),
        ({"proposed": 19}, f"llamacpp:spec_decode_num_draft_tokens_total fell from 20 to 19: {AGAIN}"),
        ({"accepted": None}, f"llamacpp:spec_decode_num_accepted_tokens_total fell from 8 to nothing: {AGAIN}"),
        ({"emitted": 0}, f"llamacpp:tokens_predicted_total fell from 19 to 0: {AGAIN}"),
        ({"decode_s": 2.25}, f"llamacpp:tokens_predicted_seconds_total fell from 2.5 to 2.25: {AGAIN}"),
        ({"began": 8.0}, f"llamacpp:spec_decode_num_drafts_created changed: {AGAIN}"),
        ({"began": 6.0}, f"llamacpp:spec_decode_num_drafts_created changed: {AGAIN}"),
        (
            {"accepted_by_position": (6, 1)},
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total, position 1, fell: a restart. Measure again",
        ),
        (
            {"accepted_by_position": ()},
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total, position 0, fell: a restart. Measure again",
        ),
    ],
)
def test_whatever_fell_or_was_made_anew_is_a_restart_by_its_name_and_its_engine(
    changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics.between(_reading(), _reading(**changed))
    assert str(refused.value) == says
    engine = {"x": _reading()}, {"x": _reading(**changed)}
    with pytest.raises(PageError) as refused:
        server_metrics.between(_reading(engines=engine[0]), _reading(engines=engine[1]))
    name, mark, rest = says.partition("_total" if "_total" in says else "_created")
    assert str(refused.value) == f"{name}{mark} of engine x{rest}"


def test_a_page_that_says_only_once_when_it_began_tells_of_no_restart() -> None:
    for before, after in ((None, 8.0), (7.0, None), (None, None)):
        assert server_metrics.between(_reading(began=before), _reading(began=after)).began == after


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"source": "vllm page"}, "llama.cpp page (since start) and vllm page (since start)"),
        ({"scope": "request"}, {}, "llama.cpp page (request) and llama.cpp page (since start)"),
        ({}, {"scope": "between"}, "llama.cpp page (since start) and llama.cpp page (between)"),
    ],
)
def test_readings_of_two_sources_or_of_no_page_have_no_difference(
    before: dict[str, Any], after: dict[str, Any], says: str
) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics.between(_reading(**before), _reading(**after))
    assert str(refused.value) == f"expected two readings of one page; got {says}"


def test_engines_that_are_gone_are_named() -> None:
    engines = dict.fromkeys("cab", _reading())
    with pytest.raises(PageError) as refused:
        server_metrics.between(_reading(engines=engines), _reading(engines={"a": _reading()}))
    assert str(refused.value) == "llama.cpp page: engine b, c is gone from the second page; read it again"


@pytest.mark.parametrize(
    ("before", "scope", "kept"),
    [(None, "since start", True), (2.0, "since start", False), (None, "last interval", False)],
)
def test_a_servers_own_means_are_kept_only_where_nothing_had_been_counted(
    before: float | None, scope: str, kept: bool
) -> None:
    first = Speculation("sglang page", scope, said_length=before)
    second = Speculation("sglang page", scope, said_length=2.5, said_rate=0.5)
    note = "a mean since the server began, without counts, has no difference: read it on a fresh server"
    assert server_metrics.between(first, second) == Speculation(
        "sglang page",
        "between",
        said_length=2.5 if kept else None,
        said_rate=0.5 if kept else None,
        notes=() if kept else (note,),
    )
    silent = server_metrics.between(first, Speculation("sglang page", scope))
    assert silent == Speculation("sglang page", "between")


def test_several_requests_are_the_sums_of_what_each_of_them_says() -> None:
    one = _reading(histogram=(1, 2), notes=("a", "b"), said_rate=0.5, said_length=2.0)
    other = _reading(scope="other", accepted_by_position=(1, 1, 1), histogram=(0, 0, 3), notes=("b", "c"))
    assert server_metrics.added([one, other]) == Speculation(
        "llama.cpp page", "since start", 20, 40, 16, (7, 3, 1), (1, 2, 3), 38, 5.0, notes=("a", "b", "c")
    )
    less = _reading(emitted=None, decode_s=None, accepted_by_position=())
    assert server_metrics.added([one, less]) == Speculation(
        "llama.cpp page", "since start", 20, 40, 16, notes=("a", "b")
    ), "what one does not say is not known of both"
    with pytest.raises(PageError) as refused:
        server_metrics.added([replace(one, source="vllm page"), other])
    assert str(refused.value) == "expected the words of one server; got llama.cpp page, vllm page"
