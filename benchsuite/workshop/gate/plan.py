"""What the validation launches: one suite, the sides that are slowed down, and where each must be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchsuite.gate.record import DECODE, FIRST, MEANS, STARTS

TOLERANCE, TTFT, COARSE, ALPHA, STAGES = 0.03, 0.1, 0.15, 0.01, (5, 8)
"""The gate's defaults, which are what is validated."""

TWICE = 2 * TOLERANCE
PAIRS = 10
WORKLOADS = ("chat", "reasoning")
DRAFTS = ("ngram", "suffix", "oracle(0.8)")
SUITE = (
    "benchsuite/test_speculation.py",
    "--specdec-target",
    "tiny",
    "--specdec-workload",
    ",".join(WORKLOADS),
    "--specdec-peer",
    "none",
    "--specdec-arm",
    ", ".join(DRAFTS),
    "--specdec-prompts",
    "3",
    "--specdec-max-new-tokens",
    "32",
    "--benchmark-quiet",
)

CONDITIONS = ("quiet", "loaded")
"""One launch on each core, and one launch while another process keeps one core busy."""

CLOCK, MEAN_CLOCK = f"{DECODE} by the clock", f"{MEANS[DECODE]} by the clock"


@dataclass(frozen=True)
class PlantedSide:
    """A side of launches: what is planted in it, and where it must be found: (part of a row's name, figure, where).

    ``conditions``: those in which it is launched.
    """

    what: str
    plant: str = ""
    found: tuple[tuple[str, str, str], ...] = ()
    conditions: tuple[str, ...] = ("quiet",)


def _everywhere(figure: str, where: str, workload: str = "-") -> tuple[tuple[str, str, str], ...]:
    return tuple((f"{workload}{draft}-", figure, where) for draft in DRAFTS)


def _requests(when: str) -> str:
    return ",".join(f"request=1.0/{when}@{draft}" for draft in DRAFTS)


CURVE = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08)
"""Slowdowns of the operating curve, besides none."""

SIDES: Mapping[str, PlantedSide] = MappingProxyType(
    {
        "A": PlantedSide("the code as it is", conditions=CONDITIONS),
        "B": PlantedSide("the same again", conditions=CONDITIONS),
        "parts": PlantedSide(
            f"{TWICE:.0%} in another part of each draft",
            f"host={TWICE}@ngram,draft={TWICE}@suffix,K/V={TWICE}@oracle(0.8)",
            (("-ngram-", DECODE, "host"), ("-suffix-", DECODE, "draft"), ("-oracle(0.8)-", DECODE, "K/V")),
            CONDITIONS,
        ),
        "prompt-2x": PlantedSide("one prompt of three, 2x", "host=1.0#1", _everywhere(DECODE, "host")),
        "prompt-1.2x": PlantedSide("one prompt of three, 1.2x", "host=0.2#1", _everywhere(DECODE, "host")),
        "workload": PlantedSide(
            f"{TWICE:.0%} in one workload of two", f"host={TWICE}~chat", _everywhere(DECODE, "host", "-chat-")
        ),
        "amount": PlantedSide("2 ms after every forward, plain's too", "pause=0.002", (("-plain", CLOCK, ""),)),
        "factor": PlantedSide("every forward 1.5 times as long, plain's too", "forward=0.5", (("-plain", CLOCK, ""),)),
        "admit": PlantedSide(f"{2 * TTFT:.0%} of TTFT in admit", f"admit={2 * TTFT}", _everywhere(FIRST, "draft")),
        "observe": PlantedSide(f"{TWICE:.0%} in observe", f"observe={TWICE}", _everywhere(DECODE, "draft")),
        "fourth": PlantedSide(
            "every fourth request of a draft 2x: 1.25x", _requests("4"), _everywhere(MEANS[DECODE], ""), CONDITIONS
        ),
        "fourth-all": PlantedSide(
            "every fourth request 2x, plain's too: 1.25x", "request=1.0/4", (("-plain", MEAN_CLOCK, ""),), CONDITIONS
        ),
        "start": PlantedSide("the first pass of a draft 2x", _requests("first"), _everywhere(STARTS[DECODE], "")),
        **{
            f"all-{p:.0%}": PlantedSide(f"{p:.0%} of every prompt", f"host={p}", _everywhere(DECODE, "host"))
            for p in CURVE
        },
        **{f"third-{p:.0%}": PlantedSide(f"{p:.0%} of one prompt of three", f"host={p}#1") for p in CURVE},
    }
)
"""Each side that is timed, by the name in its files."""

COUNTED: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "kernels": ("no kernels (SPECDEC_FORCE_PY=1)", "", "kernels"),
        "acceptance": ("5 % of the accepted proposals of one prompt rejected", "acceptance=0.05#1", "acceptance"),
    }
)
"""Sides of one launch that counters must find: what, the plant, where."""

TIMED = tuple(name for name in SIDES if name not in ("A", "B") and not name.startswith("third-"))
"""The sides whose slowdown must be found, if it is not of the curve's beginning."""
