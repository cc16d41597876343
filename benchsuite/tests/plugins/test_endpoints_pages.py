"""Pages of servers letter by letter: every name is read and written; no sample and no half of a page is taken."""

from __future__ import annotations

import math

import pytest

from specdec.errors import SpecdecError
from specdec_plugins.endpoints import server_metrics
from specdec_plugins.endpoints.exposition import PageError, PageSample, read_samples, write_samples
from specdec_plugins.endpoints.server_metrics import Speculation

HALF = "half a page. Fetch it again"

VLLM = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1700000001.5
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4
vllm:spec_decode_num_drafts_created{engine="1",model_name="m"} 1700000000.5
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 4
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 8
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 3
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 3
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 19
vllm:generation_tokens_total{engine="1",model_name="m"} 8
"""

LLAMA_CPP = """\
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 10
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 20
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 8
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 19
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 2.5
"""

SGLANG = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m"} 2.5
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{model_name="m"} 0.75
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total 40
"""

TGI = """\
# TYPE tgi_request_skipped_tokens_sum gauge
tgi_request_skipped_tokens_sum 70
# TYPE tgi_request_skipped_tokens_count gauge
tgi_request_skipped_tokens_count 100
"""

SAID = {
    VLLM: Speculation(
        "vllm page",
        "since start",
        14,
        24,
        11,
        (9, 2),
        emitted=27,
        began=1700000001.5,
        engines={
            '{engine="0",model_name="m"}': Speculation(
                "vllm page", "since start", 10, 20, 8, (6, 2), emitted=19, began=1700000001.5
            ),
            '{engine="1",model_name="m"}': Speculation(
                "vllm page", "since start", 4, 4, 3, (3,), emitted=8, began=1700000000.5
            ),
        },
    ),
    LLAMA_CPP: Speculation("llama.cpp page", "since start", 10, 20, 8, (6, 2), emitted=19, decode_s=2.5),
    SGLANG: Speculation(
        "sglang page",
        "last interval",
        emitted=40,
        said_rate=0.75,
        said_length=2.5,
        engines={'{model_name="m"}': Speculation("sglang page", "last interval", said_rate=0.75, said_length=2.5)},
    ),
    TGI: Speculation(
        "tgi page",
        "since start",
        accepted=70,
        emitted=170,
        notes=("100 steps, prefills and steps without proposals among them: TGI counts neither drafts nor proposals",),
    ),
}


@pytest.mark.parametrize("page", SAID, ids=["vllm", "llama.cpp", "sglang", "tgi"])
def test_a_page_with_every_name_is_read_whole_and_written_letter_by_letter(page: str) -> None:
    assert server_metrics.read_page(page) == SAID[page]
    assert server_metrics.write_page(SAID[page]) == page


def test_the_whole_says_without_labels_what_no_engine_says_for_itself() -> None:
    alone = Speculation("vllm page", "since start", 3, 6, 2, began=5.5)
    assert server_metrics.write_page(alone) == (
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        "vllm:spec_decode_num_drafts_total 3\n"
        "vllm:spec_decode_num_drafts_created 5.5\n"
        "# TYPE vllm:spec_decode_num_draft_tokens_total counter\n"
        "vllm:spec_decode_num_draft_tokens_total 6\n"
        "# TYPE vllm:spec_decode_num_accepted_tokens_total counter\n"
        "vllm:spec_decode_num_accepted_tokens_total 2\n"
    )
    rate = "# TYPE sglang:spec_accept_rate gauge\nsglang:spec_accept_rate 0.3333333333333333\n"
    length = "# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length 1.6666666666666665\n"
    assert server_metrics.write_page(alone, "sglang page") == length + rate, "made of the counts"


@pytest.mark.parametrize(
    ("accepted", "emitted", "lines"),
    [(3, 5, ["sum 3", "count 2"]), (3, None, ["sum 3"]), (None, 5, []), (3, 3, ["sum 3", "count 0"])],
)
def test_tgis_steps_are_the_emitted_tokens_that_were_not_accepted(
    accepted: int | None, emitted: int | None, lines: list[str]
) -> None:
    page = server_metrics.write_page(Speculation("tgi page", "since start", accepted=accepted, emitted=emitted))
    assert [line for line in page.splitlines() if line[0] != "#"] == [
        f"tgi_request_skipped_tokens_{line}" for line in lines
    ]


def test_tgis_pairs_of_several_models_are_summed_and_half_of_one_is_refused() -> None:
    several = "".join(
        f'tgi_request_skipped_tokens_{name}{{m="{model}"}} {value}\n'
        for name, model, value in (("sum", "a", 3), ("sum", "b", 4), ("count", "a", 5), ("count", "b", 6))
    )
    said = server_metrics.read_page(f"tgi_request_count 9\n{several}")
    assert (said.accepted, said.emitted) == (7, 18)
    with pytest.raises(PageError) as refused:
        server_metrics.read_page("tgi_request_skipped_tokens_sum 3\ntgi_request_count 9\n")
    assert str(refused.value) == f"the page has tgi_request_skipped_tokens_sum and not its pair: {HALF}"
    assert server_metrics.read_page("tgi_request_count 3\n") == Speculation(
        "tgi page", "since start", notes=("tgi_request_skipped_tokens is not on the page: no request yet",)
    )


def _counters_page(**changed: str | None) -> str:
    """A page of vLLM without labels, with some lines left out or changed, and others behind it."""
    lines: dict[str, str | None] = {
        "num_drafts_total": "3",
        "num_draft_tokens_total": "6",
        "num_accepted_tokens_total": "2",
        **changed,
    }
    return "".join(f"vllm:spec_decode_{name} {value}\n" for name, value in lines.items() if value is not None)


NOT_READ = "is a name that is not known here; it was not read"


@pytest.mark.parametrize(
    ("page", "notes"),
    [
        (_counters_page(), ()),
        (_counters_page(num_dreams="3"), (f"vllm:spec_decode_num_dreams {NOT_READ}",)),
        (
            _counters_page(num_dreams="3") + "vllm:spec_decode_num_dreams 4\n",
            (f"vllm:spec_decode_num_dreams {NOT_READ}",),
        ),
        (_counters_page(num_accepted_tokens_created="5"), ()),
        (_counters_page() + "vllm:num_requests_running 4\n", ()),
        (
            _counters_page(num_drafts_total="0", num_draft_tokens_total="0", num_accepted_tokens_total="0"),
            ("nothing has been proposed since the server began",),
        ),
        (
            "vllm:generation_tokens_total 3\n",
            ("the page says nothing of speculation: vllm:spec_decode_num_draft_tokens_total is absent",),
        ),
        (
            _counters_page() + 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1\n',
            ("1 accepted by position, 2 in all",),
        ),
    ],
)
def test_a_page_of_counters_notes_what_it_says_besides_and_nothing_else(page: str, notes: tuple[str, ...]) -> None:
    assert server_metrics.read_page(page).notes == notes


@pytest.mark.parametrize("name", ["num_emitted_tokens_total", "draft_acceptance_rate", "efficiency"])
def test_any_name_of_vllms_first_engine_says_that_no_drafts_are_counted(name: str) -> None:
    said = server_metrics.read_page(_counters_page(num_drafts_total=None, **{name: "0.5"}))
    assert said == Speculation(
        "vllm page",
        "since start",
        proposed=6,
        accepted=2,
        notes=("vLLM's first engine: it counts no drafts, so there is no mean acceptance length",),
    )


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            _counters_page(num_drafts_total=None),
            "the page has no vllm:spec_decode_num_drafts_total, but its other counts: " + HALF,
        ),
        (
            _counters_page(num_drafts_total=None, num_accepted_tokens_total=None),
            "the page has no vllm:spec_decode_num_drafts_total, vllm:spec_decode_num_accepted_tokens_total, "
            "but its other counts: " + HALF,
        ),
        (
            _counters_page(num_drafts_total=None, num_accepted_tokens_total=None, efficiency="1"),
            "the page has no vllm:spec_decode_num_accepted_tokens_total, but its other counts: " + HALF,
        ),
        (
            'vllm:spec_decode_num_drafts_total{engine="1"} 3\nvllm:spec_decode_num_draft_tokens_total{engine="1"} 3\n',
            'the page has no vllm:spec_decode_num_accepted_tokens_total of engine {engine="1"}, '
            "but its other counts: " + HALF,
        ),
        (
            'vllm:generation_tokens_total 1\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1\n',
            "the page has no vllm:spec_decode_num_drafts_total, vllm:spec_decode_num_draft_tokens_total, "
            "vllm:spec_decode_num_accepted_tokens_total, but its other counts: " + HALF,
        ),
        (
            _counters_page()
            + "".join(
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} 1\n'
                for position in (0, 2, 4)
            ),
            f"vllm:spec_decode_num_accepted_tokens_per_pos_total lacks position 1: {HALF}",
        ),
        (
            "z 1\nd 1\nc 1\nb 1\na 1\ne 1\na 2\n",
            "the page is none of llama.cpp page, sglang page, tgi page, vllm page: "
            "it has a, b, c, d, e. Was another program's port named?",
        ),
        (
            "# nothing\n",
            "the page is none of llama.cpp page, sglang page, tgi page, vllm page: "
            "it has no sample at all. Was another program's port named?",
        ),
        (
            "sglang:spec_accept_rate NaN\n",
            "sglang:spec_accept_rate is 'NaN'; expected a finite number of 0 or more. "
            "Look at the server's page (said_rate)",
        ),
    ],
)
def test_a_page_that_is_not_whole_is_refused_by_what_it_lacks(page: str, says: str) -> None:
    with pytest.raises(PageError) as refused:
        server_metrics.read_page(page)
    assert str(refused.value) == says


def test_engines_that_do_not_speculate_are_no_part_of_the_sums_of_those_that_do() -> None:
    speaking = "".join(
        f'vllm:{name}{{engine="1"}} {value}\n'
        for name, value in (
            ("spec_decode_num_drafts_total", 3),
            ("spec_decode_num_draft_tokens_total", 6),
            ("spec_decode_num_accepted_tokens_total", 2),
            ("generation_tokens_total", 7),
        )
    )
    said = server_metrics.read_page('vllm:generation_tokens_total{engine="0"} 90\n' + speaking)
    one = Speculation("vllm page", "since start", 3, 6, 2, emitted=7)
    assert said.engines == {'{engine="1"}': one}
    assert (said.emitted, said.notes) == (7, ())
    silent = server_metrics.read_page(
        'vllm:generation_tokens_total{engine="0"} 90\nvllm:generation_tokens_total{engine="1"} 7\n'
    )
    assert (silent.emitted, len(silent.engines)) == (97, 2)
    twice = server_metrics.read_page(_counters_page() + _counters_page())
    assert (twice.drafts, twice.proposed, twice.accepted) == (6, 12, 4), "lines with the same labels are summed"


def test_the_gauges_of_several_schedulers_are_kept_apart_and_their_tokens_summed() -> None:
    lines = "".join(
        f'sglang:{name}{{dp_rank="{rank}"}} {value}\n'
        for name, rank, value in (
            ("spec_accept_length", 0, 2.5),
            ("spec_accept_length", 1, 3.5),
            ("generation_tokens_total", 0, 40),
            ("generation_tokens_total", 1, 2),
            ("spec_mood", 0, 1),
            ("spec_mood", 1, 1),
            ("num_queue_reqs", 0, 1),
        )
    )
    assert server_metrics.read_page(lines) == Speculation(
        "sglang page",
        "last interval",
        emitted=42,
        engines={
            f'{{dp_rank="{rank}"}}': Speculation("sglang page", "last interval", said_length=length)
            for rank, length in ((0, 2.5), (1, 3.5))
        },
        notes=(
            f"sglang:spec_mood {NOT_READ}",
            "several schedulers: their mean lengths have no weights to be averaged with",
        ),
    )
    assert server_metrics.read_page("sglang:spec_accept_rate 0\n") == Speculation(
        "sglang page",
        "last interval",
        notes=("the page says nothing of speculation: sglang:spec_accept_length is absent or 0",),
    )


NUMBERS = {"0": 0.0, "-0": 0.0, "2.5": 2.5, "1e3": 1000.0, "1e-3": 0.001, "+3": 3.0}


@pytest.mark.parametrize("value", [*NUMBERS, "-1e-9", "NaN", "inf", "-inf", "1_0", "many", ""])
def test_a_figure_is_a_finite_number_of_zero_or_more(value: str) -> None:
    if value in NUMBERS:
        assert PageSample("n", value).number() == NUMBERS[value]
        return
    with pytest.raises(PageError) as refused:
        PageSample("n", value).number()
    assert str(refused.value) == (f"n is {value!r}; expected a finite number of 0 or more. Look at the server's page")


def test_a_count_is_a_whole_number_and_an_int() -> None:
    counts = [PageSample("n", value).count() for value in ("0", "7.0", "2e3")]
    assert counts == [0, 7, 2000]
    assert {type(count) for count in counts} == {int}
    with pytest.raises(PageError) as refused:
        PageSample("n", "2.5").count()
    assert str(refused.value) == "n is '2.5'; expected a whole number. Look at the server's page"


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("a 1", PageSample("a", "1")),
        ("  a\t1  ", PageSample("a", "1")),
        ("a:b_9 NaN", PageSample("a:b_9", "NaN")),
        ("a 1 1700000000", PageSample("a", "1")),
        ("a{} 1", PageSample("a", "1")),
        ('a{b="c"} 1', PageSample("a", "1", {"b": "c"})),
        ('a{b="c"}1', PageSample("a", "1", {"b": "c"})),
        ('a{b="c",} 1', PageSample("a", "1", {"b": "c"})),
        ('a{ b = "c" , d="e"} 1', PageSample("a", "1", {"b": "c", "d": "e"})),
        ('a{b="}, #"} 1', PageSample("a", "1", {"b": "}, #"})),
        (r'a{b="\\n\n\"\t"} 1', PageSample("a", "1", {"b": '\\n\n"\\t'})),
        ('a{b="c"} 1 # {trace_id="x # y"} 0.7', PageSample("a", "1", {"b": "c"})),  # OpenMetrics: an exemplar
        ("a_total 1 1700000000 # {} 1", PageSample("a_total", "1")),
        ('a{"my.label"="b",c="d"} 3', PageSample("a", "3", {"my.label": "b", "c": "d"})),  # Prometheus 3
        ('{"my.metric",c="d"} 3', PageSample("my.metric", "3", {"c": "d"})),
        ('{"my.metric"} 3', PageSample("my.metric", "3")),
        ('a{b="\u2028\x0b\x85"} 1', PageSample("a", "1", {"b": "\u2028\x0b\x85"})),  # no ends of lines
    ],
)
def test_a_line_is_a_name_labels_and_a_value(line: str, sample: PageSample) -> None:
    assert read_samples(f"# HELP a 1 {{\n\n  # b 2\n{line}\nz 1\n") == [sample, PageSample("z", "1")]


@pytest.mark.parametrize(
    "line", ["a", "9 1", "a 1 2 3", 'a{b="c" 1', 'a{b="c"', "a{b=c} 1", 'a{b="c" d="e"} 1', "a{ 1", "a{b 1", "\u00e9 1"]
)
def test_a_line_that_is_no_sample_is_refused_by_its_number_and_its_first_sixty_letters(line: str) -> None:
    with pytest.raises(PageError) as refused:
        read_samples(f"ok 1\n\n{line}{' ' * 60}x y z\n")
    shown = (line + " " * 60)[:60]
    assert str(refused.value) == (f"line 3 of the page is no sample: {shown!r}; expected NAME{{LABELS}} VALUE")


@pytest.mark.parametrize(("start", "kind"), [("<", "HTML"), (" \n<", "HTML"), ('{"a":', "JSON"), ("\t[", "JSON")])
def test_a_page_of_another_kind_is_refused_by_its_kind_and_its_first_sixty_letters(start: str, kind: str) -> None:
    text = start + "x" * 70
    with pytest.raises(PageError) as refused:
        read_samples(text)
    assert str(refused.value) == (
        f"expected a Prometheus page and got {kind}: {text.strip()[:60]!r}. Ask the server's own port for "
        "/metrics, not a proxy's; llama.cpp needs --metrics, SGLang --enable-metrics"
    )
    assert len(text.strip()[:60]) == 60


@pytest.mark.parametrize("line", ["what is this?", "other_total{le=} 5", "9 1", "{} 1"])
def test_a_line_of_others_that_is_no_sample_costs_nothing_but_itself(line: str) -> None:
    counts = (("num_drafts", 10), ("num_draft_tokens", 40), ("num_accepted_tokens", 30))
    ours = "".join(f'vllm:spec_decode_{name}_total{{engine="0"}} {count}\n' for name, count in counts)
    assert server_metrics.read_page(f"{line}\n{ours}").accepted == 30
    for name in ("vllm:spec_decode_num_drafts_total", "vllm_spec", '{"vllm:x"'):
        with pytest.raises(PageError, match="line 1 of the page is no sample"):
            server_metrics.read_page(f"{name}{{ 1\n{ours}")


def test_a_page_that_is_cut_off_shows_its_last_line() -> None:
    with pytest.raises(PageError) as refused:
        read_samples("a 1\nb 2\n" + "c" * 70)
    assert str(refused.value) == f"the page ends in the middle of a line: {'c' * 60!r}. Fetch it again"
    assert read_samples("") == []


def test_samples_are_written_with_their_types_once_and_their_labels_escaped() -> None:
    samples = [
        PageSample("a", "1", {"b": 'C:\\new\n"x"', "c": ""}),
        PageSample("a", "2"),
        PageSample("d", "3"),
        PageSample("a", "4"),
        PageSample("e", "5"),
    ]
    text = write_samples(samples, {"a": "counter", "e": "gauge", "unused": "gauge"})
    assert text == ('# TYPE a counter\na{b="C:\\\\new\\n\\"x\\"",c=""} 1\na 2\nd 3\na 4\n# TYPE e gauge\ne 5\n')
    assert read_samples(text) == samples
    assert write_samples([], {"a": "counter"}) == ""


EVERYTHING = Speculation(
    "vllm page", "since start", 3, 6, 2, (2,), (1, 2), emitted=5, decode_s=0.5, said_rate=0.5, said_length=2.0
)


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        ("vllm page", ["histogram", "decode_s", "said_rate", "said_length"]),
        ("llama.cpp page", ["histogram", "said_rate", "said_length"]),
        ("sglang page", ["drafts", "proposed", "accepted", "accepted_by_position", "histogram", "decode_s"]),
        ("vllm body", ["emitted", "accepted_by_position", "decode_s"]),
        ("sglang body", ["accepted_by_position", "decode_s"]),
        ("llama.cpp body", ["accepted_by_position", "histogram", "said_rate", "said_length"]),
        (
            "sglang info",
            [*server_metrics.COUNTS, "accepted_by_position", "histogram", "decode_s", "said_rate"],
        ),
    ],
)
def test_every_figure_that_a_source_has_no_name_for_is_listed(source: str, lost: list[str]) -> None:
    assert server_metrics.unsaid(EVERYTHING, source) == lost
    assert server_metrics.unsaid(Speculation("vllm page", "since start"), source) == []


def test_a_zero_is_a_figure_that_can_be_lost_and_an_unknown_source_is_refused() -> None:
    assert server_metrics.unsaid(Speculation("vllm page", "since start", 0, decode_s=0.0), "vllm page") == ["decode_s"]
    with pytest.raises(SpecdecError, match="unknown source 'vllm pge'; did you mean 'vllm page'"):
        server_metrics.unsaid(EVERYTHING, "vllm pge")


@pytest.mark.parametrize("word", ["drafts", "proposed", "accepted", "said_length"])
def test_any_one_of_four_figures_says_that_a_server_speculates(word: str) -> None:
    assert Speculation("s", "request", **{word: 1}).speculates  # type: ignore[arg-type]
    assert not Speculation("s", "request", **{word: 0}, emitted=3, said_rate=0.5).speculates  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counted", "accepted", "rate", "length"),
    [(4, 2, 0.5, 1.5), (4, 0, 0.0, 1.0), (0, 0, None, None), (None, 2, 9.0, 8.0), (4, None, 9.0, 8.0)],
)
def test_a_servers_own_means_are_believed_only_where_it_does_not_say_both_counts(
    counted: int | None, accepted: int | None, rate: float | None, length: float | None
) -> None:
    said = Speculation("s", "request", counted, counted, accepted, said_rate=9.0, said_length=8.0)
    assert said.acceptance_rate == rate
    assert said.mean_acceptance_length == length
    assert said.figures()["counters.num_draft_tokens"] == counted


def test_figures_have_the_names_of_rows_and_steps_that_did_not_happen_are_left_out_of_the_histogram() -> None:
    assert Speculation("s", "request", 4, 8, 5, (3, 2), (1, 1, 2, 0)).figures() == {
        "acceptance_rate": 5 / 8,
        "mean_acceptance_length": 2.25,
        "acceptance_histogram": {"0": 1, "1": 1, "2": 2},
        "counters.num_drafts": 4,
        "counters.num_draft_tokens": 8,
        "counters.num_accepted_tokens": 5,
        "counters.num_accepted_tokens_per_pos": [3, 2],
    }
    assert set(Speculation("s", "request").figures().values()) == {None}
    assert math.isclose(Speculation("s", "request", 3, 6, 2).figures()["acceptance_rate"], 1 / 3)
