"""Level 0: compare the exact counters of two rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchsuite.gate.record import GatedRow
from benchsuite.gate.verdict import Finding, GateVerdict

MORE_IS_BETTER = {"num_accepted_tokens", "num_accepted_tokens_per_pos"}
PARTS = {
    "draft_forwards": "draft",
    "num_drafts": "draft",
    "num_draft_tokens": "draft",
    "num_accepted_tokens": "acceptance",
    "num_accepted_tokens_per_pos": "acceptance",
    "target_forwards": "acceptance",
    "prefill_forwards": "verification",
    "kv_appended_tokens_total": "K/V",
    "kv_bytes_copied": "K/V",
    "kv_rows_moved_bytes": "K/V",
    "host_reads": "host",
    "allocations": "host",
}
"""The part of a step that each counter measures; a counter that is not listed belongs to the draft."""

REFERENCE = "reference"
"""The backend in plain torch, which runs what no kernel takes."""

FIRST = ("acceptance", "K/V", "draft", "verification", "host")
"""If several parts changed, the first of these is named: fewer accepted tokens also raise all other counters."""


def compare(name: str, base: GatedRow, head: GatedRow, same_machine: bool = True) -> Finding:
    """Compare two rows at level 0, pass by pass; backends that ran each op are compared only on the ``same_machine``.

    The finding is that of the first pass with the worst verdict. INCONCLUSIVE too: a later pass of ``head`` counts
    otherwise than its first, and the base was not measured in as many passes.
    """
    common = min(base.passes, head.passes)
    beyond = sorted(int(number) for number in head.later if int(number) > common)
    numbers = sorted({1, *(int(number) for row in (base, head) for number in row.later)} - {*beyond})
    found = [_compared(name, base, head, number, same_machine) for number in numbers if number <= common]
    if beyond:
        message = f"in pass {beyond[0]} it counts otherwise than in its first, and the base has {base.passes} passes: "
        found.append(Finding(name, 0, GateVerdict.INCONCLUSIVE, message + "make the baseline again with as many"))
    order = list(GateVerdict)
    return max(found, key=lambda one: 0 if one.verdict == GateVerdict.PASS else 1 + order.index(one.verdict))


def _compared(name: str, base: GatedRow, head: GatedRow, number: int, same_machine: bool) -> Finding:
    """The finding on one pass, from 1."""
    found = _judged(name, _in_pass(base, number), _in_pass(head, number), same_machine)
    return found if number == 1 else replace(found, message=f"in pass {number}, {found.message}")


def _in_pass(row: GatedRow, number: int) -> GatedRow:
    counts = row.counted(number)
    return replace(row, digest=counts.digest, counters=counts.counters, ops=counts.ops)


def _judged(name: str, base: GatedRow, head: GatedRow, same_machine: bool) -> Finding:
    """Judge the counts of one pass.

    REGRESSED, whatever the digests: an op left a backend, or the reference runs more calls of it a forward. PASS:
    digests and counters are equal, or digests are equal and the controller of both rows reads the clock. REGRESSED:
    digests are equal and a changed counter is not better; the message has both values. IMPROVED: every changed counter
    is better. INCONCLUSIVE: digests differ, the base lacks a counter, or only one of the controllers reads the clock.
    """

    def found(verdict: GateVerdict, message: str, where: str | None = None) -> Finding:
        return Finding(name, 0, verdict, message, where=where)

    lost = sorted(_lost_kernels(base, head)) if same_machine else []
    if lost:
        return found(GateVerdict.REGRESSED, "; ".join(lost), "kernels")
    if base.digest != head.digest:
        if base.plain_digest != head.plain_digest:
            return found(
                GateVerdict.INCONCLUSIVE,
                f"numerics: plain decoding itself emits other tokens than the baseline's (digest {base.plain_digest}, "
                f"now {head.plain_digest}), as another processor, torch or set of weights may; counters cannot be "
                "compared; make the baseline again where the gate runs",
            )
        return found(
            GateVerdict.INCONCLUSIVE,
            f"numerics: plain emits the baseline's tokens and this row others (digest {base.digest}, now "
            f"{head.digest}): it draws differently, or a near-tie went the other way; counters cannot be compared",
        )
    if base.deterministic != head.deterministic:
        before, now = ("did not", "reads") if base.deterministic else ("did", "does not read")
        return found(
            GateVerdict.INCONCLUSIVE,
            f"its controller {now} the clock and {before} before: its counters cannot be compared",
        )
    unknown = sorted((head.counters.keys() - base.counters.keys()) & PARTS.keys())
    if unknown:
        return found(GateVerdict.INCONCLUSIVE, f"the base does not count {', '.join(unknown)}: make the baseline again")
    if not base.deterministic:
        return found(
            GateVerdict.PASS, "the same tokens; its controller reads the clock, so its counters need not repeat"
        )
    changes = list(_changes(base.counters, head.counters))
    if not changes:
        return found(GateVerdict.PASS, f"{len(base.counters)} counters and the emitted tokens repeat exactly")
    worse = [text for _, text, better in changes if not better]
    parts = [_part(counter) for counter, _, better in changes if not (worse and better)]
    where = min(parts, key=FIRST.index)
    message = "; ".join(worse or [text for _, text, _ in changes])
    return found(GateVerdict.REGRESSED if worse else GateVerdict.IMPROVED, message, where)


def _lost_kernels(base: GatedRow, head: GatedRow) -> Iterator[str]:
    """Ops that ran on a backend and do not any more, and ops that the reference runs more often, also in each forward.

    Other changes of the counts are no loss: an op may become a part of another, and an op that always ran on the
    reference runs more often where there are more steps. Where the controller reads the clock, the number of steps
    varies, and so do the reference's calls.
    """
    steps, more_steps = (row.counters.get("target_forwards", 1) for row in (base, head))
    for call, count in base.ops.items():
        op, _, backend = call.partition(" on ")
        if call not in head.ops and backend != REFERENCE:
            now = ", ".join(other for other in head.ops if other.startswith(f"{op} on ")) or f"no {op}"
            yield f"{call} ran {count:,} times and does not any more (now: {now})"
    for call, count in head.ops.items():
        op, _, backend = call.partition(" on ")
        before = base.ops.get(call, 0)
        known = any(other.startswith(f"{op} on ") for other in base.ops)
        grew = count > before and count * steps > before * more_steps
        if backend == REFERENCE and known and (grew if base.deterministic else not before):
            yield f"{call} ran {before:,} times and runs {count:,} times"


def _part(counter: str) -> str:
    return PARTS.get(counter, "draft")


def _changes(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield (counter, text with both values, whether it is better). A new counter of a draft is no change."""
    for counter, before in base.items():
        if counter not in head:
            yield counter, f"{counter} was {_value(before)} and is no longer counted", False
        elif head[counter] != before:
            now = head[counter]
            more = _amount(now) - _amount(before)
            better = more > 0 if counter in MORE_IS_BETTER else more < 0 and counter in PARTS
            yield counter, f"{counter} was {_value(before)} and is {_value(now)}", better


def _amount(value: int | list[int]) -> int:
    return sum(value) if isinstance(value, list) else value


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
