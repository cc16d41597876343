"""The table of engines: each strategy over the plain decoding of its own engine."""

from __future__ import annotations

from benchsuite.judge.agreement import Agreement
from benchsuite.measure.arms import PeerName
from benchsuite.measure.results import SettingResults, pools_of
from benchsuite.measure.rows import Row
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report.document import Table
from benchsuite.report.tables import full_name

POSITIONS = 4
"""The most positions of a proposal whose acceptance is shown."""

LONGEST = 30
"""The most characters of a strategy on a terminal: K tells some of them apart."""

HEADERS = ("strategy", "over", "decoding", "interval", "e2e", "acc len", "by position, %", "outputs")


def engines_table(one: SettingResults) -> Table:
    """Return each strategy's speed over its own engine's plain decoding, with the acceptance that its engine counts,
    in all and of the first positions; empty where no other engine runs both.

    ``outputs``: how many equal those of the engine's plain decoding, of those compared.
    """
    rows = {row.arm: row for row in one.pooled}
    pairs = [(rows[arm], rows[plain]) for arm, plain in one.own_plain.items()]
    body = [_line(one, row, plain) for row, plain in pairs if any(row.arm.peer for row, _ in pairs)]
    return Table(HEADERS, body, "Each engine over its own plain decoding", narrow=LONGEST)


def _line(one: SettingResults, row: Row, plain: Row) -> list[str]:
    pair, nothing = (row.arm, plain.arm), SpeedVerdict(None)
    speed, whole = one.contrasts.get(pair, nothing), one.whole_contrasts.get(pair, nothing)
    interval = "-" if speed.interval is None else "{:.2f}-{:.2f}".format(*speed.interval)
    return [
        _named(row),
        _named(plain),
        "FAILED" if row.failure else speed.cell_text,
        interval,
        whole.cell_text,
        "-" if row.figures.mean_acceptance_length is None else f"{row.figures.mean_acceptance_length:.2f}",
        _positions(row.figures.acceptance_by_position),
        _outputs(one, row),
    ]


def _named(row: Row) -> str:
    """A row's name with what tells it from others of its engine."""
    if row.arm.peer is None:
        return full_name(row)
    peer = PeerName(row.arm.peer)
    return " ".join([peer.label.removeprefix("endpoint "), *peer.brief.split(", ")]).strip()


def _positions(shares: tuple[float, ...] | None) -> str:
    """The first shares as whole percentages: ``71 58 44 …``."""
    if not shares:
        return "-"
    shown = " ".join(f"{100 * share:.0f}" for share in shares[:POSITIONS])
    return shown + (" …" if len(shares) > POSITIONS else "")


def _outputs(one: SettingResults, row: Row) -> str:
    """How many outputs equal those of its own plain decoding."""
    every = list(pools_of(one.cells)[row.arm].values())
    if row.arm.peer is None:
        return row.figures.contract_checked or "-"
    own = sum((series.referred for series in every), Agreement())
    if own.runs:
        return own.summary.removesuffix(" equal").replace(" equal,", ",")
    return row.figures.contract_checked or "not compared"
