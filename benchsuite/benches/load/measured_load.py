"""One load as it was measured, in a form that a file can hold: a run that is killed goes on behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchsuite.benches.load.queue_block import QueueBlock, QueueStep
from benchsuite.benches.serving.bench import sent_from_json, sent_json
from benchsuite.benches.serving.load import Traffic


@dataclass(frozen=True)
class MeasuredLoad:
    """All blocks of one load, each with its arm as its endpoint; ``exact``: whether an arm's outputs must be plain's.

    Example: ``MeasuredLoad.from_json(measured.as_json()) == measured``
    """

    load: Traffic
    exact: Mapping[str, bool]
    blocks: Sequence[QueueBlock]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"load": asdict(self.load), "exact": dict(self.exact), "blocks": [*map(_block_json, self.blocks)]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> MeasuredLoad:
        """Return what ``as_json`` wrote. Raises KeyError or TypeError for anything else."""
        blocks = [
            QueueBlock(
                one["arm"],
                one["round"],
                tuple(map(sent_from_json, one["sent"])),
                one["group"],
                steps=tuple(QueueStep(*step) for step in one["steps"]),
            )
            for one in content["blocks"]
        ]
        return MeasuredLoad(Traffic(**content["load"]), content["exact"], blocks)


def _block_json(block: QueueBlock) -> dict[str, Any]:
    sent = [sent_json(one) for one in block.sent]
    steps = [*map(list, block.steps)]
    return {"arm": block.endpoint, "round": block.round, "group": block.group, "sent": sent, "steps": steps}
