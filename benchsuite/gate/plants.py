"""Slow down a known part of a step by a known fraction, to test that the gate finds it.

The added cost is a fraction of the measured time of a step, so "6 % slower" is 6 % on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchsuite.gate.record import GateError

if TYPE_CHECKING:
    from benchsuite.measure.session import Bench
    from specdec.engine import Engine

KINDS = ("host", "draft", "K/V", "acceptance")


def plant_in(bench: Bench, text: str) -> None:
    """Slow down engines of a run, in place. ``text``: a comma list of ``part=fraction`` (all drafts) or
    ``part=fraction@draft`` (one draft)."""
    for entry in text.split(","):
        slowdown, _, draft = entry.strip().partition("@")
        part, _, fraction = slowdown.partition("=")
        for arm, engine in bench.engines():
            if arm.draft and draft in ("", arm.draft):
                plant(engine, part, float(fraction))


def plant(engine: Engine, kind: str, fraction: float) -> None:
    """Slow down ``engine`` in place by ``fraction`` of its step time, or reject that fraction of accepted proposals.

    ``host``: a busy loop in the step's read. ``draft``: unused forward passes in ``propose``. ``K/V``: copies of keys
    and values in the commit. ``acceptance``: accepted proposals are rejected; the emitted text does not change.
    GateError for another kind, and for ``draft`` or ``acceptance`` without a draft.

    Example: ``plant(engine, "draft", 0.06)``
    """
    import torch

    from specdec.messages import Window

    target, draft = engine.target, engine.draft
    if kind == "host":
        _slow(engine, engine, "read", fraction, lambda: None)
    elif kind == "draft" and draft is not None:
        arena = target.arena(1, 64, 1)
        zero = torch.zeros(1, dtype=torch.int64, device=target.device)
        window = Window.chain(zero, zero[:, None][:, :0], zero)
        _slow(engine, draft, "propose", fraction, lambda: target.forward(arena, window, slice(0, 1), 0))
    elif kind == "K/V":
        _slow(engine, engine.arena, "commit", fraction, lambda: [t.clone() for t in engine.arena.keys])
    elif kind == "acceptance" and draft is not None:
        _reject(engine, fraction)
    else:
        raise GateError(f"cannot plant {kind!r}; expected one of {', '.join(KINDS)}, the second and last in a draft")


def _slow(engine: Engine, owner: Any, name: str, fraction: float, waste: Callable[[], object]) -> None:
    """Make ``owner.name`` also waste ``fraction`` of the time since its previous return in the same run."""
    original = getattr(owner, name)
    run: object = None
    pending = last = 0.0  # seconds to waste; time of the previous return

    def slowed(*given: Any, **named: Any) -> Any:
        nonlocal run, pending, last
        if run is engine.stats:
            pending += fraction * (perf_counter() - last)
        run = engine.stats
        result = original(*given, **named)
        start = perf_counter()
        while (spent := perf_counter() - start) < pending:
            waste()
        # Time wasted in excess is subtracted from the next call.
        pending -= spent
        last = perf_counter()
        return result

    object.__setattr__(owner, name, slowed)


def _reject(engine: Engine, fraction: float) -> None:
    """Reject ``fraction`` of the accepted proposals; the target then emits the same tokens in more forwards."""
    from specdec.messages import Verdict

    original = engine.policy.accept
    pending = 0.0  # proposals to reject

    def rejecting(logits: Any, window: Any, context: Any) -> Verdict:
        nonlocal pending
        verdict = original(logits, window, context)
        path, kept, following = verdict.path.clone(), verdict.num_accepted.clone(), verdict.next.clone()
        for row, accepted in enumerate(kept.tolist()):
            pending += fraction * accepted
            if pending >= 1 and accepted:
                pending -= 1
                following[row] = window.tokens[row, path[row, accepted]]
                path[row, accepted] = -1
                kept[row] = accepted - 1
        return Verdict(path, kept, following)

    object.__setattr__(engine.policy, "accept", rejecting)
