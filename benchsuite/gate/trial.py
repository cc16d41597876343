"""Compare the records of a run and its base, and return findings. Independent of pytest."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import ceil, comb, log2
from typing import Any

from benchsuite.gate import counters, figures, speed
from benchsuite.gate.acceptance import Both, acceptance_findings, comparable_steps
from benchsuite.gate.launcher import Launcher, worktree
from benchsuite.gate.record import DECODE, STEPS, GatedRow, GateError, Record
from benchsuite.gate.rules import NEEDED, Rules
from benchsuite.gate.sides import LiveSides, Say, Sides, StoredSides
from benchsuite.gate.speed import Tolerances, staged
from benchsuite.gate.verdict import Finding, GateVerdict, worst
from specdec.amounts import amount

SUITE = "suite"
"""The row name of findings about the whole run."""


@dataclass(frozen=True)
class Limit:
    """The arguments of ``@pytest.mark.gate`` for a row: its own tolerance, and the only level at which it is gated."""

    tolerance: float | None = None
    level: int | None = None


@dataclass
class Trial:
    """Compares a run with its base.

    ``head``: the record of this process; ``findings()`` replaces it by the record of its launches, if it makes any.
    ``wanted``: the rows that the run should measure, each with the reason why it was not measured, or None.
    ``baseline``: the record of the file; None if a revision is measured live. ``anchor``: the record of the pinned
    file. ``say`` prints a line of progress. After ``findings()``: ``order``, of a revision, the seed of the launches'
    order, and the order; ``new``, the rows that the base lacks and that passed; ``clocked``, those whose acceptance no
    level compares, since their controller reads the clock.
    """

    rules: Rules
    levels: tuple[int, ...]
    launcher: Launcher
    head: Record
    wanted: Mapping[str, str | None]
    baseline: Record | None
    say: Say
    limits: Mapping[str, Limit] = field(default_factory=dict)
    anchor: Record | None = None
    order: dict[str, Any] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    clocked: list[str] = field(default_factory=list)

    def findings(self) -> list[Finding]:
        """All findings, of every row and level. A failed launch is a finding too."""
        if not self.head.rows:
            reasons = sorted({reason for reason in self.wanted.values() if reason}) or ["no row was measured"]
            return [_error(SUITE, f"nothing was measured, so nothing is shown: {'; '.join(reasons)}")]
        try:
            with ExitStack() as stack:
                return self._findings(stack)
        except GateError as error:
            self.say(f"ERROR: {error}")  # before any table
            return [_error(SUITE, str(error))]

    def _findings(self, stack: ExitStack) -> list[Finding]:
        rules = self.rules
        if rules.self_test:
            return self._self_test()
        if self.baseline:
            sides: StoredSides | LiveSides = StoredSides(self.baseline, self.launcher, self.say)
            base = self.baseline
        else:
            assert rules.base
            checkout = stack.enter_context(worktree(self.launcher.root(), rules.base))
            sides = LiveSides(self.launcher, checkout, self.say, seed=rules.order_seed)
            self.order = {"seed": sides.seed, "ran": sides.ran}
            base, self.head = sides.at_least(1)  # this process has measured what is installed
        found = {name: self._known(name, base) for name in self.wanted}
        compared = [name for name, one in found.items() if name in base.rows and one.verdict != GateVerdict.ERROR]
        timed: list[Finding] = []
        for level in self.levels:
            names = [name for name in compared if level and self._comparable(name, base.rows[name], level)]
            if names:
                timed += self._timed(sides, level, names)
                _, self.head = sides.at_least(1)
        timed += self._anchored(sides)
        zero = [one for name, one in found.items() if one.verdict != GateVerdict.PASS or self._counted(name, base)]
        zero += self._accepted(base, compared)
        self.clocked = [
            name for name in compared if not base.rows[name].deterministic and not {1, 2}.intersection(self.levels)
        ]
        every = [*zero, *self._absent(base), *self._notes(base), *timed]
        # A finding without a change is of counters, or says why something cannot be compared.
        judged = {one.row for one in every if one.change is not None or one.verdict in COMPARED}
        let = rules.inconclusive == "report" and not rules.update  # which accepts other tokens
        passing = (GateVerdict.PASS, *([GateVerdict.INCONCLUSIVE] if let else []))
        if worst(one.verdict for one in every) in passing and not judged.intersection(
            name for name in compared if self._gated(name, base)
        ):
            every.append(_error(SUITE, UNJUDGED))
        return every

    def _notes(self, base: Record) -> list[Finding]:
        """Findings on the two sides that do not fail the run: the same commit, different versions."""
        notes = []
        before, now = base.made.get("commit"), self.head.made.get("commit")
        if self.rules.base and before and before == now:
            notes.append(f"base and head are the same commit, {before[:12]}, and nothing is changed")
        ours = [base.rows[name] for name in self.wanted if name in base.rows and not base.rows[name].peer]
        if self.levels[-1] == 1 and _plain_alone(ours):
            notes.append(BLIND)
        if self.rules.own_environment:
            sides = zip(("the base", "this checkout"), self.launcher.layers, strict=True)
            notes += [f"environment of {side}: {layer}" for side, layer in sides]
        if not base.rows:
            notes.append("the base has none of the rows of this run: every row is new")
        elif self.launcher.lacking:
            notes.append(f"the base lacks {', '.join(self.launcher.lacking)}")
        self.new = sorted(self.head.rows.keys() - base.rows.keys()) if self._new_pass else []
        if self.new:
            are = amount(len(self.new), "row is", "rows are")
            notes.append(f"{are} new, and compared with nothing: {_shown(self.new)}")
        left = [name for name, row in self.head.rows.items() if row.peer and not self._gated(name, base)]
        if left:
            are = amount(len(left), "row of a peer is", "rows of peers are")
            notes.append(f"{are} not gated: no level compares anything of peers: {_shown(left)}")
        versions = _differences(base.made.get("versions") or {}, self.head.made.get("versions") or {})
        if versions:
            notes.append(f"versions differ: {versions}")
        return [Finding(SUITE, 0, GateVerdict.PASS, note) for note in notes]

    @property
    def _new_pass(self) -> bool:
        """Whether rows that the baseline lacks pass."""
        return self.rules.on_missing in ("new", "report") or self.rules.update

    def _comparable(self, name: str, row: GatedRow, level: int) -> bool:
        """Whether a level that the row's marker allows has something to compare of a side's row."""
        limit = self.limits.get(name, Limit())
        if limit.level not in (None, level):
            return False
        return (
            bool(speed.cases(name, row, level))
            if level
            else row.digest is not None or comparable_steps(row) is not None
        )

    def _any_level(self, name: str, row: GatedRow) -> bool:
        return any(self._comparable(name, row, level) for level in self.levels)

    def _gated(self, name: str, base: Record) -> bool:
        """Whether some level has something to compare of a row: of a peer that accepted nothing, or accepts nothing
        any more, the other side's count is something."""
        sides = (base.rows.get(name), self.head.rows.get(name))
        return any(self._any_level(name, row) for row in sides if row is not None)

    def _known(self, name: str, base: Record) -> Finding:
        """The finding on a row at level 0, or the reason why it cannot be compared at any level."""
        head, before = self.head.rows.get(name), base.rows.get(name)
        if head is None:
            return _error(name, f"it was not measured: {self.wanted[name] or 'its test made no figures'}")
        if head.peer and not self._gated(name, base):
            return Finding(name, 0, GateVerdict.PASS, "not gated: nothing of it is counted, and times need launches")
        if before is None:
            close = difflib.get_close_matches(name, base.rows.keys() - self.wanted.keys(), n=1)
            hint = f"; the baseline has {close[0]!r}, which this run has not: renamed?" if close else ""
            message = f"the baseline has no such row{hint}"
            if self._new_pass:
                return Finding(name, 0, GateVerdict.PASS, f"{message}: it is new, and compared with nothing")
            accept = "write it down with --gate-update, or " if self.baseline else ""
            return _error(name, f"{message}; {accept}let new rows pass with --gate-on-missing=new")
        if head.work != before.work:
            return _error(name, f"measured otherwise than the baseline: {_differences(before.work, head.work)}")
        other = self._read_otherwise(name, before, head, base)
        if other:
            return other
        if not self._gated(name, base):
            return _error(
                name, f"nothing of it can be compared at levels {', '.join(map(str, self.levels))}: {NOTHING}"
            )
        if self._counted(name, base):
            assert not head.peer
            return counters.compare(name, before, head, self._same_machine(base))
        return Finding(name, 0, GateVerdict.PASS, "not gated at level 0")

    def _same_machine(self, base: Record) -> bool:
        return different(base.made, self.head.made) is None

    def _read_otherwise(self, name: str, before: GatedRow, head: GatedRow, base: Record) -> Finding | None:
        """The finding on a row whose prompts, tokenizer, weights or control are others than the baseline's."""
        known = {*before.inputs, *head.inputs} - (set() if RENDERED in before.inputs else {RENDERED})
        others = sorted(what for what in known if before.inputs.get(what) != head.inputs.get(what))
        if others == [RENDERED]:
            message = (
                "its chat template makes other prompts of the same texts than it did for the baseline: does it print "
                f"the date or the time? Leave that out of it, and {AGAIN}"
            )
            return _error(name, message)
        if others == ["weights"] and not self._same_machine(base):
            message = (
                "numerics: the weights are others than the baseline's, as random ones may be on another processor; "
                "counters cannot be compared; make the baseline again where the gate runs"
            )
            return Finding(name, 0, GateVerdict.INCONCLUSIVE, message)
        if others:
            what = ", ".join(others)
            return _error(name, f"measured otherwise than the baseline: other {what}; {AGAIN}")
        if any(self.levels) and before.launches and before.control != head.control:
            return _error(
                name,
                f"its times are relative to {head.control} here and to {before.control} there; run the same "
                f"--specdec-peer as the baseline, or {AGAIN}",
            )
        return None

    def _counted(self, name: str, base: Record) -> bool:
        """Whether a row has a finding at level 0: on its counters, or because the base lacks it. Peers have none."""
        head, before = self.head.rows.get(name), base.rows.get(name)
        if head and head.peer:
            return False
        return before is None or (0 in self.levels and self._comparable(name, before, 0))

    def _accepted(self, base: Record, names: Sequence[str]) -> list[Finding]:
        """The findings on forwards per token at level 0: of peers, and of rows of ours with other tokens than the
        base's, whose counters are not compared. A count that one side lacks is a finding if it is lost."""
        sides, lost = dict[str, Both](), list[Finding]()
        for name in names:
            before, head = base.rows[name], self.head.rows[name]
            rows = (before, head)
            exactly = not head.peer and before.digest == head.digest
            if exactly or 0 not in self.levels or self.limits.get(name, Limit()).level not in (None, 0):
                continue
            if before.inputs.get("weights") != head.inputs.get("weights") or not any(map(comparable_steps, rows)):
                continue
            both = [row.launches[0].steps if row.launches else None for row in rows]
            if both[0] and both[1] and len(both[0].per_token) == len(both[1].per_token):
                sides[name] = both[0], both[1]
            elif both[0]:
                message = "the base counts forwards per emitted token, and this run not: acceptance is not compared"
                lost.append(Finding(name, 0, GateVerdict.INCONCLUSIVE, message, STEPS, where="acceptance"))
        rules = self.rules
        return [
            *lost,
            *acceptance_findings(sides, rules.acceptance_tolerance, rules.coarse_tolerance, rules.alpha),
        ]

    def _absent(self, base: Record) -> list[Finding]:
        gone = sorted(base.rows.keys() - self.wanted.keys())
        if not gone:
            return []
        none = not base.rows.keys() & self.wanted.keys()
        are = amount(len(gone), "row of the baseline is", "rows of the baseline are")
        what = "baseline and run have no row in common" if none else f"{are} gone"
        shown = _shown(gone)
        if self.rules.on_missing == "report" and not none:
            return [Finding(SUITE, 0, GateVerdict.PASS, f"{what}: {shown}")]
        again = ", or make a new file with --gate-save" if self.baseline else ""
        return [_error(SUITE, f"{what}: {shown}; run them, or let it pass with --gate-on-missing=report{again}")]

    def _timed(self, sides: Sides, level: int, names: Sequence[str]) -> list[Finding]:
        rules = self.rules
        limits = {name: self.limits.get(name, Limit()).tolerance or rules.tolerance for name in names}
        tolerances = Tolerances(limits, rules.ttft_tolerance, rules.coarse_tolerance, rules.acceptance_tolerance)
        return staged(sides, level, tolerances, rules.alpha, rules.launches)

    def _anchored(self, sides: StoredSides | LiveSides) -> list[Finding]:
        """The findings against the anchor, at level 1, with the launches of this checkout that are there already.

        Counters may have changed on purpose since the anchor was pinned, and a gain is no news.
        """
        anchor = self.anchor
        if anchor is None:
            return []
        found, names = list[Finding](), list[str]()
        for name, head in self.head.rows.items():
            row = anchor.rows.get(name)
            if row is None:
                found.append(Finding(name, 1, GateVerdict.PASS, "the anchor has no such row", against="anchor"))
            elif head.work != row.work or head.inputs != row.inputs or head.control != row.control:
                sentence = f"measured otherwise than the anchor; pin it again with --gate-save {self.rules.anchor}"
                found.append(replace(_error(name, sentence), level=1, against="anchor"))
            elif speed.cases(name, row, 1):
                names.append(name)
            else:
                sentence = "the anchor cannot hold it: it has no control in its own process"
                found.append(Finding(name, 1, GateVerdict.PASS, sentence, against="anchor"))
        if not names:
            return [*found, _error(SUITE, "no row can be held against the anchor: none has times and a control")]
        pinned = StoredSides(anchor, self.launcher, self.say, head=sides.head)
        for finding in self._timed(pinned, 1, names):
            gain = finding.verdict == GateVerdict.IMPROVED
            verdict = GateVerdict.PASS if gain else finding.verdict
            found.append(
                replace(finding, verdict=verdict, message=f"against the anchor, {finding.message}", against="anchor")
            )
        return found

    def _self_test(self) -> list[Finding]:
        """Compare this code with itself: as it is, and with each row that drafts slowed down by twice the tolerance."""
        found, slower = list[Finding](), 2 * self.rules.tolerance
        timed = [name for name, row in self.head.rows.items() if row.control and not row.peer]
        drafted = [name for name in timed if self.head.rows[name].counters.get("num_drafts")]
        if not drafted:
            return [_error(SUITE, "no row has a control and a draft that could be slowed down; select some of ours")]
        for name, plant, rows, expected in (
            ("as it is", "", timed, GateVerdict.PASS),
            (f"{slower:.1%} slower", f"host={slower}", drafted, GateVerdict.REGRESSED),
        ):
            every = self._timed(LiveSides(self.launcher, None, self.say, plant), 2, rows)
            made = [finding for finding in every if finding.figure == DECODE]
            for finding in made:
                verdict = GateVerdict.PASS if finding.verdict == expected else GateVerdict.ERROR
                message = f"{finding.verdict}; {finding.message}"
                found.append(replace(finding, row=f"{finding.row} ({name})", verdict=verdict, message=message))
            count = sum(finding.verdict == expected for finding in made)
            verdict = GateVerdict.PASS if count == len(rows) else GateVerdict.ERROR
            found.append(Finding(SUITE, 2, verdict, f"{name}: {count} of {len(rows)} rows {expected}"))
        return found


RENDERED = "rendered prompts"
"""The input that baselines of earlier versions lack: it is compared where both sides have it."""

COMPARED = (GateVerdict.IMPROVED, GateVerdict.PASS, GateVerdict.REGRESSED)
"""Verdicts on what was compared; one that is INCONCLUSIVE without a change was not."""

UNJUDGED = (
    "nothing was judged, which is no pass: the base has no row of this run that could be compared; take a base that "
    "has some, or --gate=report"
)

AGAIN = "make the baseline again with --gate-save"

BLIND = (
    "level 1 compares each row with plain decoding in the same process: what slows both down alike is not seen; gate "
    "against a revision, or with --specdec-peer transformers, with which plain itself is then compared"
)

NOTHING = (
    "a plain benchmark has no counters (level 0) and no control in its own process (level 1), and a marker may name "
    "one level only; gate against a revision (level 2), or declare the machine with --gate-dedicated (level 3)"
)


def _error(row: str, message: str) -> Finding:
    return Finding(row, 0, GateVerdict.ERROR, message)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _differences(base: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    names = sorted(n for n in {*base, *head} if base.get(n) != head.get(n))
    return ", ".join(f"{name} {base.get(name)!r} there and {head.get(name)!r} here" for name in names)


def levels_of(rules: Rules, base: Record | None, same_machine: bool) -> tuple[int, ...]:
    """The levels at which a run is gated. GateError if the requested levels are not possible."""
    if base is None:
        levels = (rules.levels or (0, 2)) + ((3,) if rules.dedicated else ())
        return levels
    stored = base.launches
    levels = rules.levels or ((0, 1) if stored >= NEEDED else (0,))
    if 2 in levels:
        raise GateError("level 2 measures both sides live: gate against a revision, not against a file")
    levels += (3,) if rules.dedicated else ()
    if stored < NEEDED and levels[-1]:
        raise GateError(
            f"the baseline holds {amount(stored, 'launch')} of a row and level {levels[-1]} takes {NEEDED}; make it "
            f"with --gate-save FILE --gate-launches {NEEDED}, or gate with --gate-level 0"
        )
    if same_machine or rules.on_mismatch == "ignore":
        return levels
    if rules.on_mismatch == "fail" and levels != (0,):
        raise GateError(
            "the baseline was made on another machine, whose times cannot be compared; gate with --gate-level 0 or "
            "--gate-on-mismatch=counters, make a baseline here with --gate-save, or say --gate-on-mismatch=ignore"
        )
    return (0,)


def refuse_too_few(rules: Rules, levels: tuple[int, ...], rows: int, base: Record | None) -> None:
    """GateError if there are too few launches for any verdict about time on one of ``rows`` rows."""
    first, total = rules.launches[0], sum(rules.launches)
    if not (levels[-1] or rules.self_test):
        return
    # 1 / ways is the smallest p-value: every launch of one side is slower than every launch of the other.
    ways = comb(base.launches + total, total) if base else 2**total
    if first < NEEDED or ways < rows / rules.alpha:
        least = max(NEEDED, ceil(log2(rows / rules.alpha)))
        raise GateError(
            f"--gate-launches {first}+{total - first} can show nothing of {amount(rows, 'row')} at --gate-alpha "
            f"{rules.alpha:g}: no exact test of so few reaches that; give at least {NEEDED} first and {least} in all"
        )


def refuse_unfit_anchor(rules: Rules, anchor: Record) -> None:
    """GateError if times cannot be held against the anchor: too few launches, plain without a control, or another
    machine."""
    which = f"--gate-anchor {rules.anchor}"
    if anchor.launches < NEEDED:
        raise GateError(
            f"{which} holds {amount(anchor.launches, 'launch')} of a row and takes {NEEDED}; pin it with --gate-save "
            f"FILE --gate-launches {NEEDED}"
        )
    ours = [row for row in anchor.rows.values() if not row.peer]
    if _plain_alone(ours) or any(row.digest is not None and row.control is None for row in ours):
        raise GateError(
            f"{which} cannot hold plain decoding, which is timed over nothing in it: what slows every row alike would "
            "add up unseen; pin one with --specdec-peer transformers"
        )
    machine = figures.machine((anchor.made.get("machine") or {}).get("device"))
    mismatch = different(anchor.made, {"machine": machine})
    if mismatch and rules.on_mismatch != "ignore":
        raise GateError(
            f"{which} was made on another machine, whose times cannot be compared ({mismatch}); pin one here, or say "
            "--gate-on-mismatch=ignore"
        )


def _plain_alone(rows: Sequence[GatedRow]) -> bool:
    """Whether rows are timed over plain decoding, and plain over nothing."""
    controls = {row.control for row in rows}
    return "plain" in controls and not controls - {"plain", None}


def different(base: Mapping[str, Any], head: Mapping[str, Any]) -> str | None:
    """The differences between the machines of two records, as text; None if their times can be compared."""
    before, now = base.get("machine"), head.get("machine")
    return None if before == now else _differences(before or {}, now or {})
