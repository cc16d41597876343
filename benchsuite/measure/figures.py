"""The figures of a row: every key of a benchmark's ``extra_info`` with its type, unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from benchsuite.measure.arms import SAMPLED
from specdec.request import SamplingParams


@dataclass(frozen=True, kw_only=True)
class RowFigures:
    """The figures of one arm over one workload, or over several. None: unknown, or it does not apply.

    Names are public: ``as_json`` writes the fields under them, in this order, to every file. Names that end in ``_s``
    are seconds and in ``_ms`` milliseconds; a share is of 1.

    What the row is. ``setting``: its id; ``draft``: of a strategy, else the name of a peer or of a control, and None
    for plain decoding; ``backend``: of the ops, or the engine of a peer; ``batch``: requests at once;
    ``num_speculative_tokens``: K, None for a controller or a peer that takes none.

    Speed. ``tokens_per_s``: decoded per second of decoding, prefill excluded. ``baseline``: the label of the arm that
    speedups are relative to. ``speedup``, with a 95 % interval from ``speedup_low`` to ``speedup_high``: over all
    ``units``, which are prompts or batches. ``verdict``: ``SpeedVerdict.label``, or ``FAILED``. ``marks``: what must be
    known of the speedup, ``learns``, ``replays``, ``one prompt``, or of all times from the prompt on, ``warm``.
    ``not_comparable``: why it may not be compared.
    ``e2e_s``: the median from prompt to last token; ``e2e_speedup``, with its interval from ``e2e_low`` to
    ``e2e_high``: of that time, per token.

    Acceptance. ``tau``: emitted tokens / target forwards of a row. ``mean_acceptance_length``: 1 + accepted / drafts.
    ``acceptance_rate``: accepted / proposed, and ``acceptance_by_position`` the same at each depth, from 1.
    ``acceptance_histogram``: steps that proposed, by the number accepted.

    Costs (``with_parts``), in times of the target's forward over one slot: ``draft_cost`` per proposal; ``verify_cost``
    of a window. ``sum_of_parts``: the speedup if only target and draft took time. Shares of the decoding time, and
    ``overhead``, that of none of them.

    Latency. ``ttft_ms``: to the first token, with ``ttft_draft_ms`` in the draft; ``tpot_ms``: per token after the
    first emission, both medians over requests; ``itl_*``: percentiles of the gaps between emissions.

    Machine. ``mbu``: bytes read per second / the machine's bandwidth; above 1 that was no limit, and this no share
    (``shown_mbu``). ``peak_memory_bytes``: of the process or, on CUDA, of the device; ``memory``: the most bytes of
    each kind after any run.

    Outputs. ``judged_perplexity`` of ``judged_tokens``, under the run's judge. ``set_up_s``: building and compiling.
    ``contract``: what was promised; ``contract_checked``: how many outputs were compared, and with what result.
    ``failed``: the kind of failure. ``counters``: sums over the runs, with calls of each backend by op in ``ops``.
    ``emitted_digest``: of all emitted ids. ``sampling``: written as the fields that a setting names.
    """

    setting: str
    draft: str | None = None
    policy: str | None = None
    controller: str | None = None
    backend: str
    device: str
    dtype: str
    batch: int
    workload: str
    num_speculative_tokens: int | None = None
    tokens_per_s: float | None = None
    plain_tokens_per_s: float | None = None
    baseline: str
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    units: int | None = None
    verdict: str | None = None
    marks: tuple[str, ...] | None = None
    not_comparable: str | None = None
    e2e_s: float | None = None
    e2e_speedup: float | None = None
    e2e_low: float | None = None
    e2e_high: float | None = None
    tau: float | None = None
    mean_acceptance_length: float | None = None
    acceptance_rate: float | None = None
    acceptance_by_position: tuple[float, ...] | None = None
    acceptance_histogram: Mapping[str, int] | None = None
    draft_cost: float | None = None
    verify_cost: float | None = None
    sum_of_parts: float | None = None
    control_share: float | None = None
    draft_share: float | None = None
    target_share: float | None = None
    accept_share: float | None = None
    commit_share: float | None = None
    overhead: float | None = None
    ttft_ms: float | None = None
    ttft_draft_ms: float | None = None
    tpot_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p90_ms: float | None = None
    itl_p99_ms: float | None = None
    mbu: float | None = None
    peak_memory_bytes: int
    memory: Mapping[str, int] = field(default_factory=dict)
    judged_perplexity: float | None = None
    judged_tokens: int | None = None
    set_up_s: float | None = None
    contract: str
    contract_checked: str | None = None
    failed: str | None = None
    counters: Mapping[str, Any] | None = None
    emitted_digest: str | None = None
    sampling: SamplingParams

    def as_json(self) -> dict[str, Any]:
        """Return every figure by its public name, in the order of ``KEYS``, as JSON has it."""
        found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        del found["sampling"]
        found |= {name: getattr(self.sampling, name) for name in SAMPLED}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


KEYS = (*(one.name for one in fields(RowFigures) if one.name != "sampling"), *SAMPLED)
"""The public names, which are the keys of every benchmark's ``extra_info``; an unknown value is null."""
