"""Pins of test_draft_forwards.py: tests that read what is private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchsuite.conformance.models.tiny import ask, prompts, save_target
from benchsuite.tests.rig import Make, saved_head
from specdec import Engine, Request, SamplingParams, Window


class NotedForwards:
    """Notes of every window that an arena is asked for after the prompts: the call that asked, its width, and by how
    much the host's bound on the cells that are read is above the largest row's."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[tuple[str, int, int]] = []
        draft: Any = engine.draft
        arena, self._phase = draft._arena, ""
        plan = arena.plan

        def planned(window: Window, ops: Any, rows: slice, longest: int, *more: Any, **named: Any) -> Any:
            if self._phase:
                held = int(arena.committed[rows].max())
                self.seen.append((self._phase, window.tokens.shape[1], longest - held))
            return plan(window, ops, rows, longest, *more, **named)

        object.__setattr__(arena, "plan", planned)
        for name in ("propose", "observe"):
            object.__setattr__(draft, name, self._within(name, getattr(draft, name)))

    def _within(self, name: str, method: Any) -> Any:
        def call(*given: Any) -> Any:
            self._phase = name
            try:
                return method(*given)
            finally:
                self._phase = ""

        return call


def widths_by_step(engine: Engine, asked: list[int], new: int, count: int = 1) -> list[int]:
    """Run requests one after another; the widths of the draft's forwards. Every bound holds, and all are counted."""
    noted = NotedForwards(engine)
    ask(engine, asked)
    text = prompts(1)[0]
    engine.run([Request(i, text, SamplingParams(max_new_tokens=new)) for i in range(count)])
    assert all(loose >= 0 for _, _, loose in noted.seen)
    assert len(noted.seen) == engine.stats.counts["draft_forwards"]
    return [width for _, width, _ in noted.seen]


@pytest.mark.slow
def test_a_draft_model_reads_what_it_lacks_in_as_few_tokens_as_it_can(tmp_path: Path, assemble: Make) -> None:
    """One token at first, two after proposals that were all accepted, one more after each step without any; a
    second request in the row begins with one again."""
    engine = assemble(backend="reference").engine(f"draft_model(model={save_target('llama', tmp_path)})", k=3)
    asked = [0, 3, 3, 0, 0, 3, 1, 3, *[0] * 6, 3]
    emitted = sum(k + 1 for k in asked)
    expected = [2, 1, 1, 2, 1, 1, 4, 1, 1, 2, 2, 1, 1, 8, 1, 1]
    assert widths_by_step(engine, [*asked, 3, 3, *[0] * 99], emitted, count=2)[: len(expected) + 6] == [
        *expected,
        *(1, 1, 1, 2, 1, 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["tree(model={path}, beam=2, depth=3)", "tree(model={path}, widths=2-1)"])
def test_a_trees_model_reads_the_nodes_again_at_each_depth(text: str, tmp_path: Path, assemble: Make) -> None:
    """The window of a depth has all nodes that were expanded before, so two more at each."""
    engine = assemble(backend="reference").engine(text.format(path=save_target("llama", tmp_path)), k=6)
    depth = 3 if "depth" in text else 2
    found = widths_by_step(engine, [6] * 99, 24)
    at = 0
    steps = []
    while at < len(found):
        steps.append(found[at : at + depth])
        at += depth
    assert steps[0] == [1, *[2 * (i + 1) for i in range(depth - 1)]]
    assert all(step[1:] == steps[0][1:] for step in steps if len(step) == depth and step is not steps[-1])
    assert {step[0] for step in steps[1:-1]} <= {*range(1, depth + 2)}


def test_eagles_layer_reads_each_proposal_once_and_then_what_was_accepted(tmp_path: Path, assemble: Make) -> None:
    """A chain of K takes K - 1 forwards of one entry; the verdict's are K + 1 wide, those of steps without proposals
    are read together before the next proposal."""
    build = assemble(backend="reference")
    engine = build.engine(f"eagle(head={saved_head('eagle', build, tmp_path)!r})", k=3)
    noted = NotedForwards(engine)
    ask(engine, [3, 1, 0, 0, 2, 3, *[0] * 99])
    engine.run([Request(0, prompts(1)[0], SamplingParams(max_new_tokens=30))])
    seen = [(phase, width) for phase, width, _ in noted.seen]
    assert seen[:9] == [
        *[("propose", 1)] * 2,
        ("observe", 4),
        ("observe", 2),
        ("propose", 2),
        ("propose", 1),
        ("observe", 3),
        *[("propose", 1)] * 2,
    ]
    assert seen[9] == ("observe", 4)
    loose = [by for _, _, by in noted.seen]
    assert loose[:4] == [0] * 4, "after own proposals the host knows how many entries there are"
    assert min(loose) >= 0
