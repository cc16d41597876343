"""The baseline of servers: what a run of ``-m serving`` counted of each, and its times over the first endpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchsuite.benches.serving.forward_counts import ForwardCount, ForwardCounts, forward_counts
from benchsuite.benches.serving.speed import PairedLog
from benchsuite.gate.record import DECODE, FIRST, WHOLE, GateError
from benchsuite.machine.files import strict_json, write_file
from benchsuite.machine.user_files import UserFileError, parsed_json, user_text

if TYPE_CHECKING:
    from benchsuite.benches.serving.bench import ServingBench

SERVED_FORMAT, SERVED_VERSION = "specdec-gate-servers", 1
"""What a file says that it is."""

HERE = ("127.0.0.1", "localhost", "::1")
"""Hosts of servers that run on the machine that asks them."""


@dataclass(frozen=True)
class ServedBaselineRow:
    """A server under a load: its ``counts`` by prompt, and by figure the logs of its times ``over`` another server's in
    the same run; the first endpoint's are over nothing. ``poor``: rounds and prompts without an answer that counts."""

    counts: ForwardCounts
    poor: tuple[tuple[int, int], ...]
    over: str | None
    times: Mapping[str, tuple[PairedLog, ...]]


@dataclass(frozen=True)
class ServedBaseline:
    """Rows by name, ``head-c4``. ``work``: what must be equal for rows to be compared: sampling, the number of tokens,
    digests of the prompts and the seed that shares them out among loads. ``local``: whether all servers ran on the
    machine that asked them."""

    made: Mapping[str, Any]
    work: Mapping[str, Any]
    local: bool
    rows: Mapping[str, ServedBaselineRow]

    @staticmethod
    def of(bench: ServingBench, made: Mapping[str, Any]) -> ServedBaseline:
        """The baseline of what a bench has measured."""
        from benchsuite.benches.serving.paired_costs import paired_costs, poor_requests  # it imports torch

        plan = bench.plan
        ask = {
            name: value
            for name, value in vars(plan.ask).items()
            if name not in ("prompt", "messages", "extra", "logprobs")
        }
        prompts = [hashlib.sha256(f"{label} {text}".encode()).hexdigest()[:16] for label, text in plan.prompts]
        work = {**ask, "stop": list(plan.ask.stop), "prompts": prompts, "seed": plan.seed, "rounds": plan.rounds}
        work["loads"] = [load.id for load in plan.loads]
        workloads, first = [label for label, _ in plan.prompts], plan.endpoints[0].name
        rows = {}
        for load, blocks in bench.blocks.items():
            by = {one.name: [block for block in blocks if block.endpoint == one.name] for one in plan.endpoints}
            for name, mine in by.items():
                costs = paired_costs(mine, by[first], workloads, None)
                every = {DECODE: costs.decoding, FIRST: costs.first, WHOLE: costs.whole}
                times = {} if name == first else {figure: tuple(some) for figure, some in every.items()}
                over = None if name == first else first
                rows[f"{name}-{load.id}"] = ServedBaselineRow(
                    forward_counts(mine), (*poor_requests(mine),), over, times
                )
        local = all(urlsplit(one.url).hostname in HERE for one in plan.endpoints)
        return ServedBaseline(made, work, local, rows)

    def save(self, path: Path) -> None:
        """Write the file atomically. OSError if it cannot be written."""
        content = {"format": SERVED_FORMAT, "version": SERVED_VERSION, **asdict(self)}
        write_file(path, strict_json(content).encode())

    @staticmethod
    def load(path: Path) -> ServedBaseline:
        """Read a file. GateError if it does not have this format."""
        try:
            content = parsed_json(user_text(path))
            if content["version"] != SERVED_VERSION:
                raise GateError(
                    f"the baseline {path} has the version {content['version']!r}, expected {SERVED_VERSION}; make it "
                    "again with --gate-save"
                )
            rows = {name: _read_row(row) for name, row in content["rows"].items()}
            return ServedBaseline(content["made"], content["work"], content["local"], rows)
        except (UserFileError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise GateError(
                f"the baseline {path} is corrupt: {error!r}; remove it, then make it again with --gate-save"
            ) from None


def _read_row(content: Mapping[str, Any]) -> ServedBaselineRow:
    said = content["counts"]
    each = tuple(ForwardCount(**{**one, "prompts": tuple(one["prompts"])}) for one in said["counts"])
    counts = ForwardCounts(**{**said, "counts": each})
    times = {figure: tuple(PairedLog(**one) for one in some) for figure, some in content["times"].items()}
    return ServedBaselineRow(counts, tuple((turn, prompt) for turn, prompt in content["poor"]), content["over"], times)


def is_of_servers(path: Path | None) -> bool:
    """Whether a file is a baseline of servers. What cannot be read is none: who reads it says so."""
    if path is None or not path.is_file():
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == SERVED_FORMAT


def later_logs(now: Sequence[PairedLog], before: Sequence[PairedLog]) -> list[PairedLog]:
    """Return how much the logs of one run are above those of another, prompt by prompt and round by round."""
    known = {(one.prompt, one.round): one.log for one in before}
    return [
        PairedLog(one.workload, one.prompt, one.group, one.round, one.log - known[one.prompt, one.round])
        for one in now
        if (one.prompt, one.round) in known
    ]
