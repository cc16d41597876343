"""How often the gate over servers is wrong: ``python -m benchsuite.workshop.gate.served keep|draw``.

``keep`` reduces the ``serving.json`` of a gated run over two starts of one server, in several rounds, to what the gate
reads; ``draw`` draws gatings from such a file: groups of requests, each as one of its rounds went, and by a coin which
of the two servers is the base. Into the head's answers it puts losses.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchsuite.benches.serving.bench import sent_from_json
from benchsuite.benches.serving.forward_counts import forward_counts
from benchsuite.benches.serving.load import Sent, ServedBlock, Traffic
from benchsuite.benches.serving.self_reported import GroupCounts
from benchsuite.benches.serving.timed_answers import tpot_of
from benchsuite.gate.record import DECODE, STEPS
from benchsuite.gate.served import ServedTolerances, served_findings
from benchsuite.gate.verdict import GateVerdict, worst
from benchsuite.machine.files import write_file
from benchsuite.report.document import Document, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.run.served_rows import served_rows
from specdec_plugins.endpoints.server_metrics import COUNTS, Speculation

ALPHA, LOSS, SLOWER = 0.01, 0.05, 0.1
"""The gate's own level; the acceptance length that is lost, and the tokens a second."""

SOURCE = "vllm page"
"""The words in which kept counts are read again, whoever counted them."""


@dataclass(frozen=True)
class KeptRun:
    """One load over two servers: ``workloads`` of the prompts by their places, and the ``blocks`` of both."""

    load: Traffic
    workloads: Sequence[str]
    blocks: Sequence[ServedBlock]

    @property
    def names(self) -> list[str]:
        """The two servers."""
        return sorted({block.endpoint for block in self.blocks})


def read_runs(content: Mapping[str, Any]) -> list[KeptRun]:
    """Return the loads of a ``serving.json``, or of what ``reduced_run`` made of one."""
    workloads = [prompt["workload"] for prompt in content["prompts"]]
    return [
        KeptRun(Traffic(**one["load"]), workloads, [_block(block) for block in one["blocks"]])
        for one in content["loads"]
    ]


def _block(content: Mapping[str, Any]) -> ServedBlock:
    counts = tuple(
        GroupCounts(tuple(one["prompts"]), Speculation(SOURCE, "between", **{word: one.get(word) for word in COUNTS}))
        for one in content["counts"]
    )
    sent = tuple(map(sent_from_json, content["sent"]))
    return ServedBlock(content["endpoint"], content["round"], sent, content["group"], counts)


def reduced_run(content: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``serving.json`` with what the gate reads alone: of each answer its first and last piece, and its text;
    of each server, what it counted, wherever it says so. Texts of prompts are left out."""
    found = []
    for one, run in zip(content["loads"], read_runs(content), strict=True):
        blocks = []
        for block, read in zip(one["blocks"], run.blocks, strict=True):
            counts = [
                {"prompts": list(each.prompts), "proposed": each.proposed, "accepted": each.accepted}
                for each in forward_counts([read]).counts
            ]
            blocks.append({**block, "counts": counts, "sent": [_short(sent) for sent in block["sent"]]})
        found.append({"load": one["load"], "blocks": blocks})
    prompts = [{"workload": prompt["workload"]} for prompt in content["prompts"]]
    return {"made": dict(made), "asked": content["asked"], "prompts": prompts, "loads": found}


def _short(sent: Mapping[str, Any]) -> dict[str, Any]:
    if "text" not in sent:
        return dict(sent)
    ends = [[round(seconds, 6), *other] for seconds, *other in (sent["chunks"][:1] + sent["chunks"][1:][-1:])]
    return {**sent, "tokens": [], "chunks": ends, "body": {}}


Plant = Callable[[Sequence[ServedBlock], random.Random], list[ServedBlock]]
"""What is put into the blocks of a head."""


def nothing_planted(blocks: Sequence[ServedBlock], dice: random.Random) -> list[ServedBlock]:
    """The blocks as they are."""
    return [*blocks]


def less_accepted(blocks: Sequence[ServedBlock], dice: random.Random) -> list[ServedBlock]:
    """Each accepted token is rejected with one chance, such that the acceptance length of a prompt falls by ``LOSS``,
    as a mean over prompts in logarithms. ValueError where so few are accepted that it cannot."""
    counts = forward_counts(blocks).counts
    ratios = [one.accepted / (one.tokens - one.accepted) for one in counts]
    low, high = 0.0, 1.0
    if fmean(log(1 + ratio) for ratio in ratios) < -log(1 - LOSS):
        raise ValueError(f"too few tokens are accepted for a loss of {LOSS:.0%}")
    for _ in range(40):
        chance = (low + high) / 2
        found = fmean(log(1 + chance * ratio) for ratio in ratios)
        low, high = (chance, high) if found < -log(1 - LOSS) else (low, chance)

    def thinned(one: GroupCounts) -> GroupCounts:
        accepted = sum(dice.random() >= low for _ in range(one.said.accepted or 0))
        return replace(one, said=replace(one.said, accepted=accepted))

    return [replace(block, counts=tuple(map(thinned, block.counts))) for block in blocks]


def slower_tokens(blocks: Sequence[ServedBlock], dice: random.Random) -> list[ServedBlock]:
    """What comes after the first piece takes so long that ``SLOWER`` of the tokens a second are lost."""

    def slowed(one: Sent) -> Sent:
        if one.reply is None or not one.reply.chunks:
            return one
        first, more = one.reply.chunks[0].seconds, 1 / (1 - SLOWER)
        chunks = tuple(replace(chunk, seconds=first + (chunk.seconds - first) * more) for chunk in one.reply.chunks)
        return replace(one, reply=replace(one.reply, chunks=chunks, seconds=first + (one.reply.seconds - first) * more))

    return [replace(block, sent=tuple(map(slowed, block.sent))) for block in blocks]


PLANTS: Mapping[str, tuple[Plant, str | None]] = {
    "nothing": (nothing_planted, None),
    f"{LOSS:.0%} of the acceptance length": (less_accepted, STEPS),
    f"{SLOWER:.0%} of the tokens a second": (slower_tokens, DECODE),
}
"""What is planted, and the figure in which it is found."""


def drawn_blocks(run: KeptRun, prompts: int, dice: random.Random) -> tuple[list[ServedBlock], list[str], str, str]:
    """Return the blocks of one gating, the workloads of its prompts, and the names of its base and head.

    Groups are drawn, each once, until they have so many prompts; each is one of its rounds, of both servers.
    """
    turns: dict[tuple[int, int], list[ServedBlock]] = defaultdict(list)
    for block in run.blocks:
        turns[block.group, block.round].append(block)
    rounds = defaultdict[int, list[int]](list)
    for (group, turn), both in turns.items():
        if len(both) == len(run.names):
            rounds[group].append(turn)
    found, workloads = list[ServedBlock](), list[str]()
    for number, group in enumerate(dice.sample([*rounds], len(rounds))):
        if len(workloads) >= prompts:
            break
        both = turns[group, dice.choice(rounds[group])]
        places = {one.prompt: len(workloads) + n for n, one in enumerate(both[0].sent)}
        workloads += [run.workloads[prompt] for prompt in places]
        for block in both:
            sent = tuple(replace(one, prompt=places[one.prompt]) for one in block.sent if one.prompt in places)
            counts = tuple(
                replace(one, prompts=tuple(places[prompt] for prompt in one.prompts))
                for one in block.counts
                if {*one.prompts} <= {*places}
            )
            found.append(ServedBlock(block.endpoint, 0, sent, number, counts))
    base, head = dice.sample(run.names, 2)
    return found, workloads, base, head


def drawn_verdicts(
    runs: Sequence[KeptRun], plant: Plant, figure: str | None, draws: int, prompts: int
) -> tuple[int, int, int, int]:
    """Of so many gatings over all loads of a file: those that are REGRESSED, that are in ``figure``, those that are
    INCONCLUSIVE, and those that fixed thresholds would fail: means of a load beyond a tolerance, whatever the noise."""
    regressed = placed = unsure = fixed = 0
    limits = ServedTolerances()
    for number in range(draws):
        dice, rows, over = random.Random(number), [], False
        for run in runs:
            blocks, workloads, base, head = drawn_blocks(run, prompts, dice)
            blocks = [
                *(block for block in blocks if block.endpoint == base),
                *plant([block for block in blocks if block.endpoint == head], dice),
            ]
            rows += served_rows(blocks, base, [head], run.load, workloads, None, ALPHA)
            over = over or _beyond_fixed(blocks, base, head, limits)
        found = served_findings(rows, limits, ALPHA)
        overall = worst(one.verdict for one in found)
        regressed += overall == GateVerdict.REGRESSED
        unsure += overall == GateVerdict.INCONCLUSIVE
        placed += any(one.verdict == GateVerdict.REGRESSED and one.figure == figure for one in found)
        fixed += over
    return regressed, placed, unsure, fixed


def _beyond_fixed(blocks: Sequence[ServedBlock], base: str, head: str, limits: ServedTolerances) -> bool:
    """Whether a mean of seconds per token, or the acceptance length, is beyond the same tolerance without a test."""
    mine, theirs = ([block for block in blocks if block.endpoint == name] for name in (head, base))
    seconds = [
        fmean(value for block in some for one in block.sent if one.reply and (value := tpot_of(one.reply)))
        for some in (mine, theirs)
    ]
    lengths = [forward_counts(some).length or 1.0 for some in (mine, theirs)]
    return seconds[0] > seconds[1] * (1 + limits.times) or lengths[1] > lengths[0] * (1 + limits.forwards)


def drawn_rates(runs: Sequence[KeptRun], draws: int, prompts: int) -> Table:
    """A line for each plant; gatings of nothing are drawn three times as often."""
    lines = list[Sequence[object]]()
    for what, (plant, figure) in PLANTS.items():
        count = 3 * draws if figure is None else draws
        try:
            found = drawn_verdicts(runs, plant, figure, count, prompts)
        except ValueError as error:
            lines.append((what, f"none: {error}", *["-"] * 4))
            continue
        regressed, placed, unsure, fixed = found
        lines.append((what, count, regressed, "-" if figure is None else f"{placed} ({figure})", unsure, fixed))
    head = ("planted", "gatings", "REGRESSED", "in its figure", "INCONCLUSIVE", "beyond fixed thresholds")
    return Table(head, lines)


def served_rates_main() -> None:
    """Reduce a run's file, or print the table of reduced ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    words = parser.add_subparsers(dest="word", required=True)
    keep = words.add_parser("keep", help="reduce a serving.json to what the gate reads")
    keep.add_argument("run", type=Path, help="the serving.json of a gated run, beside its MANIFEST.json")
    keep.add_argument("file", type=Path, help="where it goes: docs/results/….json.gz")
    draw = words.add_parser("draw", help="draw gatings from reduced files")
    draw.add_argument("file", type=Path)
    draw.add_argument("--draws", type=int, default=100, help="gatings of each plant; three times as many of nothing")
    draw.add_argument("--prompts", type=int, default=80, help="prompts of a gating under each load, or all there are")
    given = parser.parse_args()
    if given.word == "keep":
        made = json.loads((given.run.parent / "MANIFEST.json").read_text(encoding="utf-8"))
        whole = json.dumps(reduced_run(json.loads(given.run.read_text(encoding="utf-8")), made), sort_keys=True)
        write_file(given.file, gzip.compress(whole.encode(), mtime=0))
        return
    runs = read_runs(json.loads(gzip.decompress(given.file.read_bytes())))
    print(markdown(Document(sections=[Section("", [drawn_rates(runs, given.draws, given.prompts)])])))


if __name__ == "__main__":
    served_rates_main()
