"""The words for a result's figures: ours, what each is, and where other benchmarks keep the same figure.

Sources: vllm-project/vllm, vllm/benchmarks/serve.py (the file of ``vllm bench serve --save-result``); AIPerf 0.13.0,
aiperf/common/models/export_models.py and aiperf/metrics/types (schema 1.4 of ``profile_export_aiperf.json``); GuideLLM
0.8.1, guidellm/benchmark/schemas/metrics.py and guidellm/schemas/base/request_stats.py (version 2 of
``benchmarks.json``). docs/metrics.md shows this table, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FORMATS: Mapping[str, str] = {
    "vllm": "vLLM bench serve",
    "aiperf": "AIPerf",
    "guidellm": "GuideLLM",
    "ours": "specdec-bench",
}
"""The formats of result files, and whose each is."""


@dataclass(frozen=True)
class OwnPlace:
    """Where a format keeps a figure: the keys to it joined by dots, its unit there, and its number over ours.

    ``per``: our word for what its numbers are shares of, where it keeps shares and we keep counts.
    """

    path: str
    unit: str
    factor: float
    per: str


@dataclass(frozen=True)
class Word:
    """One of our figures: its name in rows of results, its unit, what it is, and its places by format."""

    name: str
    unit: str
    meaning: str
    places: Mapping[str, OwnPlace] = field(default_factory=dict)


def placed_word(name: str, unit: str, meaning: str, vllm: str = "", aiperf: str = "", guidellm: str = "") -> Word:
    """Return a word whose places are written as ``path unit`` where the unit is not ours, as ``path /word`` for shares.

    Example: ``placed_word("e2e_s", "s", "sent to last token", "median_e2el_ms ms").places["vllm"].factor`` is 1000.
    """
    given = {"vllm": vllm, "aiperf": aiperf, "guidellm": guidellm}
    places = {}
    for format_, text in given.items():
        if text:
            path, _, theirs = text.partition(" ")
            share = theirs.startswith("/")
            factor = 1 if share else _factor(unit, theirs or unit)
            places[format_] = OwnPlace(path, "ratio" if share else theirs or unit, factor, theirs[1:] if share else "")
    return Word(name, unit, meaning, places)


SCALES: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1, "s": 1, "min": 60, "%": 0.01, "ratio": 1}
"""Units that are converted into each other, and how much of a second, or of one, each is."""

TIMES = ("ns", "us", "ms", "sec", "s", "min")
"""Those of them that are times."""


def _factor(ours: str, theirs: str) -> float:
    """What a number in our unit is multiplied with to be one in theirs."""
    if ours == theirs:
        return 1
    # Twelve digits, so that powers of ten are exact.
    return float(f"{SCALES[ours] / SCALES[theirs]:.12g}")


def unit_factor(ours: str, theirs: str) -> float | None:
    """What a number in our unit is multiplied with to be one in theirs; None if they measure different things.

    Example: ``unit_factor("s", "ms")`` is 1000.
    """
    if ours == theirs:
        return 1
    if ours not in SCALES or theirs not in SCALES or (ours in TIMES) != (theirs in TIMES):
        return None
    return _factor(ours, theirs)


_G = "metrics.{}.successful.{}"

WORDS: tuple[Word, ...] = (
    placed_word(
        "requests",
        "requests",
        "requests answered whole",
        "completed",
        "request_count.avg",
        "metrics.request_totals.successful",
    ),
    placed_word(
        "failed_requests",
        "requests",
        "requests that were not",
        "failed",
        "error_request_count.avg",
        "metrics.request_totals.errored",
    ),
    placed_word(
        "duration_s", "s", "first request sent to last answer", "duration", "benchmark_duration.avg sec", "duration"
    ),
    placed_word(
        "prompt_tokens",
        "tokens",
        "tokens of all prompts",
        "total_input_tokens",
        "total_isl.avg",
        _G.format("prompt_token_count", "total_sum"),
    ),
    placed_word(
        "output_tokens",
        "tokens",
        "tokens of all answers",
        "total_output_tokens",
        "total_osl.avg",
        _G.format("output_token_count", "total_sum"),
    ),
    placed_word(
        "requests_per_s",
        "requests/sec",
        "requests / duration",
        "request_throughput",
        "request_throughput.avg",
        _G.format("requests_per_second", "mean"),
    ),
    placed_word(
        "output_tokens_per_s",
        "tokens/sec",
        "output tokens / duration, prefills included; not `tokens_per_s`, which is of decoding alone",
        "output_throughput",
        "output_token_throughput.avg",
        _G.format("output_tokens_per_second", "mean"),
    ),
    placed_word(
        "goodput_per_s", "requests/sec", "requests within the SLO / duration", "request_goodput", "goodput.avg"
    ),
    *(
        placed_word(
            f"ttft_{name}",
            "ms",
            f"{what} of requests: sent to first token",
            f"{theirs}_ttft_ms",
            f"time_to_first_token.{aiperf}",
            _G.format("time_to_first_token_ms", guidellm),
        )
        for name, what, theirs, aiperf, guidellm in (
            ("ms", "median", "median", "p50", "median"),
            ("mean_ms", "mean", "mean", "avg", "mean"),
            ("p90_ms", "90th percentile", "p90", "p90", "percentiles.p90"),
            ("p99_ms", "99th percentile", "p99", "p99", "percentiles.p99"),
        )
    ),
    *(
        placed_word(
            f"tpot_{name}",
            "ms",
            f"{what} of requests: first token to last / tokens after the first",
            f"{theirs}_tpot_ms",
            f"inter_token_latency.{aiperf}",
        )
        for name, what, theirs, aiperf in (
            ("ms", "median", "median", "p50"),
            ("mean_ms", "mean", "mean", "avg"),
            ("p90_ms", "90th percentile", "p90", "p90"),
            ("p99_ms", "99th percentile", "p99", "p99"),
        )
    ),
    *(
        placed_word(
            f"tpot_by_token_{name}",
            "ms",
            f"{what} as above, where each request counts once for each of its tokens",
            guidellm=_G.format("inter_token_latency_ms", guidellm),
        )
        for name, what, guidellm in (("ms", "median", "median"), ("mean_ms", "mean", "mean"))
    ),
    placed_word(
        "latency_per_token_ms",
        "ms",
        "mean over tokens of a request's time, the first token's included, / its tokens; no TPOT",
        guidellm=_G.format("time_per_output_token_ms", "mean"),
    ),
    *(
        placed_word(
            f"itl_{name}",
            "ms",
            f"{what} of all gaps between emissions",
            f"{theirs}_itl_ms",
            f"inter_chunk_latency.{aiperf}",
        )
        for name, what, theirs, aiperf in (
            ("mean_ms", "mean", "mean", "avg"),
            ("p50_ms", "median", "median", "p50"),
            ("p90_ms", "90th percentile", "p90", "p90"),
            ("p99_ms", "99th percentile", "p99", "p99"),
        )
    ),
    *(
        placed_word(
            f"e2e_{name}",
            "s",
            f"{what} of requests: sent to last token",
            f"{theirs}_e2el_ms ms",
            f"request_latency.{aiperf} ms",
            _G.format("request_latency", guidellm),
        )
        for name, what, theirs, aiperf, guidellm in (
            ("s", "median", "median", "p50", "median"),
            ("mean_s", "mean", "mean", "avg", "mean"),
            ("p90_s", "90th percentile", "p90", "p90", "percentiles.p90"),
            ("p99_s", "99th percentile", "p99", "p99", "percentiles.p99"),
        )
    ),
    placed_word(
        "acceptance_rate",
        "ratio",
        "accepted / proposed, over all requests",
        "spec_decode_acceptance_rate %",
        "spec_decode_overall_draft_acceptance_rate.avg %",
    ),
    placed_word(
        "mean_acceptance_length",
        "ratio",
        "1 + accepted / drafts, over all requests",
        "spec_decode_acceptance_length",
        "spec_decode_token_weighted_acceptance_length.avg",
    ),
    placed_word(
        "counters.num_drafts",
        "count",
        "steps of a row that proposed something",
        "spec_decode_num_drafts",
        "total_spec_decode_steps.avg",
    ),
    placed_word(
        "counters.num_draft_tokens", "tokens", "proposed", "spec_decode_draft_tokens", "total_draft_tokens.avg"
    ),
    placed_word(
        "counters.num_accepted_tokens",
        "tokens",
        "accepted",
        "spec_decode_accepted_tokens",
        "total_accepted_draft_tokens.avg",
    ),
    placed_word(
        "counters.num_accepted_tokens_per_pos",
        "tokens",
        "accepted at depth 1, 2, …; vLLM: over drafts",
        "spec_decode_per_position_acceptance_rates /counters.num_drafts",
    ),
    placed_word(
        "acceptance_histogram",
        "count",
        "steps by the number of accepted proposals",
        aiperf="pooled_spec_decode_acceptance_histogram",
    ),
)
"""Every figure that is converted, in the order of tables."""

COUNTED = ("requests", "tokens", "count")
"""Units of whole numbers."""
