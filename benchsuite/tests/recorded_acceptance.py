"""What drafts propose on texts of SmolLM2-135M and how much of it is accepted, at every position: recorded once, so
that controllers can be compared without a clock.

``python -m benchsuite.tests.recorded_acceptance`` records it again (a quarter of an hour on two cores): greedy, eight
prompts of each text, 64 tokens, K = 8. Every proposal is refused, so that the draft proposes at each position; what
would have been accepted is noted. A digit pair of the file is the proposals made and those accepted at one position.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchsuite.predict.traces import Seen, StepTrace
from specdec.request import SamplingParams

FILE = Path(__file__).parent / "recorded" / "acceptance.json"
TOKENS, K, PROMPTS, ROWS = 64, 8, 8, 4

Positions = Sequence[tuple[int, int]]
"""Of one prompt, for each position: proposals made, proposals accepted."""


def recorded_positions() -> dict[str, dict[str, list[Positions]]]:
    """Return the positions of each prompt, by text, then by draft."""
    found: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(FILE.read_text())
    return {
        text: {
            draft: [[(int(pair[0]), int(pair[1])) for pair in prompt.split()] for prompt in prompts]
            for draft, prompts in drafts.items()
        }
        for text, drafts in found.items()
    }


def decoded_with(positions: Positions, k: int, tokens: int) -> StepTrace:
    """Return the trace of ``tokens`` of a prompt that are decoded with K = ``k``; the prefill emits the first."""
    at, end, found = 1, min(tokens, len(positions)), list[Seen]()
    while at < end:
        made, kept = (min(count, k, end - at - 1) for count in positions[at])
        found.append(Seen(k, made, min(made, kept)))
        at += found[-1].accepted + 1
    return StepTrace(tuple(found))


class RefusingPolicy:
    """A policy that notes what another would accept, and accepts nothing."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.seen: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def accept(self, logits: torch.Tensor, window: Any, context: Any) -> Any:
        """The verdict over the window's first slot alone."""
        accepted = self.own.accept(logits, window, context).num_accepted
        made = zip(context.request.tolist(), (window.width - 1).tolist(), accepted.tolist(), strict=True)
        for request, proposed, kept in made:
            self.seen[request].append((proposed, kept))
        return self.own.accept(logits, replace(window, width=torch.ones_like(window.width)), context)


def record() -> None:
    """Run every draft of ``make predictions`` over every text, and write the file."""
    from benchsuite.measure.arms import Arm, Setting
    from benchsuite.measure.plan import MeasuringPlan
    from benchsuite.measure.session import Bench
    from benchsuite.predict.interleave import engine_runner
    from benchsuite.workshop.predictions.__main__ import DRAFTS, WORKLOADS

    settings = {
        text: Setting("smollm2-135m", "auto", "auto", "auto", ROWS, text, SamplingParams(max_new_tokens=TOKENS))
        for text in WORKLOADS.split(",")
    }
    arms = {
        (text, name): Arm(setting, draft, "match", "fixed", K, name=name)
        for text, setting in settings.items()
        for name, draft in DRAFTS.items()
    }
    bench = Bench(MeasuringPlan(prompts=PROMPTS))
    bench.prepare([*arms.values()])
    stages = dict(bench.stages())
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (text, name), arm in arms.items():
        runner = engine_runner(stages, arm)
        own = runner.engine.policy
        for unit in bench.units(arm.setting):
            runner.forget()
            refusing: Any = RefusingPolicy(own)
            runner.engine.policy = refusing
            runner.engine.run(unit.requests)
            for request in unit.requests:
                found[text][name].append(" ".join(f"{made}{kept}" for made, kept in refusing.seen[request.id]))
        runner.engine.policy = own
        print(text, name, flush=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record()
