"""Slowdowns of a known size in a known part: what the gate must find.

Each costs the given fraction of the step that it is put into, whatever the machine, so that "6 % slower" is true
wherever it runs.
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
    """Slow drafts of a run down on purpose: ``part=fraction`` in all, ``part=fraction@draft`` in one; a comma list."""
    for one in text.split(","):
        what, _, draft = one.strip().partition("@")
        part, _, fraction = what.partition("=")
        for arm, engine in bench.engines():
            if arm.draft and draft in ("", arm.draft):
                plant(engine, part, float(fraction))


def plant(engine: Engine, kind: str, fraction: float) -> None:
    """Slow an engine down by ``fraction`` of its steps, in place, or refuse that fraction of what it accepts.

    ``host``: a busy loop in the step's read. ``draft``: forwards that nothing needs, in ``propose``. ``K/V``: copies
    of keys and values, in the commit. ``acceptance``: accepted proposals that are refused, without a change of the
    text. GateError for another kind.

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
        _refuse(engine, fraction)
    else:
        raise GateError(f"cannot plant {kind!r}; expected one of {', '.join(KINDS)}, the second and last in a draft")


def _slow(engine: Engine, owner: Any, name: str, fraction: float, waste: Callable[[], object]) -> None:
    """Let ``owner.name`` waste ``fraction`` of the time since it last returned, within one run."""
    true = getattr(owner, name)
    run: object = None
    owed = last = 0.0

    def slowed(*given: Any, **named: Any) -> Any:
        nonlocal run, owed, last
        if run is engine.stats:
            owed += fraction * (perf_counter() - last)
        run = engine.stats
        result = true(*given, **named)
        start = perf_counter()
        while (spent := perf_counter() - start) < owed:
            waste()
        # What a waste took too long for is owed less the next time.
        owed -= spent
        last = perf_counter()
        return result

    object.__setattr__(owner, name, slowed)


def _refuse(engine: Engine, fraction: float) -> None:
    """Refuse every so manieth accepted proposal, which the target then emits itself: the same text, more forwards."""
    from specdec.messages import Verdict

    true = engine.policy.accept
    owed = 0.0

    def refused(logits: Any, window: Any, context: Any) -> Verdict:
        nonlocal owed
        verdict = true(logits, window, context)
        path, kept, following = verdict.path.clone(), verdict.num_accepted.clone(), verdict.next.clone()
        for row, accepted in enumerate(kept.tolist()):
            owed += fraction * accepted
            if owed >= 1 and accepted:
                owed -= 1
                following[row] = window.tokens[row, path[row, accepted]]
                path[row, accepted] = -1
                kept[row] = accepted - 1
        return Verdict(path, kept, following)

    object.__setattr__(engine.policy, "accept", refused)
