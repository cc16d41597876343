"""Slow down a known part of a run by a known amount, to test that the gate finds it.

The added cost is a fraction of a measured time, so "6 % slower" is 6 % on every machine; only ``pause`` is in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchsuite.gate.record import GateError

if TYPE_CHECKING:
    from benchsuite.measure.session import Bench
    from specdec.engine import Engine
    from specdec.queue import Completion
    from specdec.request import Request

OF_A_DRAFT = ("draft", "admit", "observe", "acceptance")
OF_ALL = ("forward", "pause")
KINDS = ("host", "draft", "K/V", "admit", "observe", "acceptance", "request", *OF_ALL)

TEXT = re.compile(
    r"(?P<kind>[^=@#~]+)=(?P<amount>[0-9.]+)(/(?P<when>first|[1-9][0-9]*))?(@(?P<draft>[^#~@]+))?(#(?P<prompt>[0-9]+))?(~(?P<workload>.+))?"
)


@dataclass(frozen=True)
class Plant:
    """One slowdown: its kind, its amount, and what it is limited to: a draft, a prompt of each workload (from 1), a
    workload; or, of ``request``, every so many-th run (``when``), or the ``first`` of each request.

    Kinds of rows with a draft: ``host``, a busy loop in the step's read; ``draft``, unused forwards in ``propose``;
    ``K/V``, copies of keys and values in the commit; ``observe``, a busy loop there: each a fraction of the step's
    time. ``admit``: a busy loop there, a fraction of the time to the first token. ``acceptance``: that fraction of the
    accepted proposals is rejected; the emitted text does not change. Kinds of all rows, plain's too: ``forward``, a
    busy loop after the target's, a fraction of it; ``pause``, so many seconds after it. Of all rows, or of a draft:
    ``request``, a busy loop after a run, a fraction of it.

    Example: ``Plant.of("host=0.06@ngram#1~chat")``, or ``Plant.of("request=1.0/4")`` for every fourth request
    """

    kind: str
    amount: float
    draft: str | None = None
    prompt: int | None = None
    workload: str | None = None
    when: str | None = None

    @staticmethod
    def of(text: str) -> Plant:
        """Parse ``kind=amount/when@draft#prompt~workload``, of which the last four may be left out. GateError if
        wrong."""
        match = TEXT.fullmatch(text.strip())
        if match is None or match["kind"] not in KINDS:
            raise GateError(
                f"cannot plant {text!r}; expected KIND=AMOUNT@DRAFT#PROMPT~WORKLOAD, with a kind of {', '.join(KINDS)}"
            )
        wrong = (match["prompt"] or match["workload"]) if match["kind"] == "request" else match["when"]
        if wrong:
            raise GateError(f"cannot plant {text!r}: request alone has a time, request=AMOUNT/4@DRAFT, and no place")
        if match["kind"] in OF_ALL and (match["draft"] or match["prompt"] or match["workload"]):
            raise GateError(f"cannot plant {text!r}: {match['kind']} strikes every row; expected KIND=AMOUNT alone")
        prompt = None if match["prompt"] is None else int(match["prompt"])
        return Plant(match["kind"], float(match["amount"]), match["draft"], prompt, match["workload"], match["when"])


def plant_in(bench: Bench, text: str) -> None:
    """Slow down the engines of a run, in place. ``text``: a comma list of plants. GateError if one is not understood or
    would slow down nothing."""
    for entry in text.split(","):
        planted = Plant.of(entry)
        chosen = None
        if planted.prompt or planted.workload:
            chosen = {
                tokens
                for workload, place, tokens in bench.prompts()
                if planted.prompt in (None, place + 1) and planted.workload in (None, workload)
            }
        engines = [
            engine
            for arm, engine in bench.engines()
            if planted.kind in OF_ALL
            or ((arm.draft or planted.kind == "request") and planted.draft in (None, arm.draft))
        ]
        if not engines or chosen == set():
            raise GateError(
                f"planting {entry!r} would slow down nothing: no such draft, prompt or workload is in the run"
            )
        done = set[int]()
        for engine in engines:
            if planted.kind not in OF_ALL or id(engine.target) not in done:
                plant(engine, planted, chosen)
            done.add(id(engine.target))


def plant(engine: Engine, given: Plant, prompts: set[tuple[int, ...]] | None = None) -> None:
    """Slow down ``engine`` in place; only while it runs one of ``prompts``, if these are given.

    A kind of all rows slows down its target. GateError for a kind of a draft without a draft.

    Example: ``plant(engine, Plant("draft", 0.06))``
    """
    import torch

    from specdec.messages import Window

    target, draft, amount = engine.target, engine.draft, given.amount
    if given.kind in OF_A_DRAFT and draft is None:
        raise GateError(f"cannot plant {given.kind} in plain decoding: it has no draft")
    run = _Run(engine, prompts)
    if given.kind == "host":
        _slow(engine, run, engine, "read", amount, lambda: None)
    elif given.kind == "draft":
        arena = target.arena(1, 64, 1)
        zero = torch.zeros(1, dtype=torch.int64, device=target.device)
        window = Window.chain(zero, zero[:, None][:, :0], zero)
        _slow(engine, run, draft, "propose", amount, lambda: target.forward(arena, window, slice(0, 1), 0))
    elif given.kind == "K/V":
        _slow(engine, run, engine.arena, "commit", amount, lambda: [t.clone() for t in engine.arena.keys])
    elif given.kind == "observe":
        _slow(engine, run, draft, "observe", amount, lambda: None)
    elif given.kind == "admit":
        _lengthen(draft, "admit", lambda seconds: amount * run.first_s if run.chosen else 0.0)
    elif given.kind == "acceptance":
        _reject(engine, run, amount)
    elif given.kind == "request":
        _lengthen_runs(engine, amount, given.when)
    elif given.kind == "forward":
        _lengthen(target, "forward", lambda seconds: amount * seconds)
    else:
        _lengthen(target, "forward", lambda seconds: amount)


class _Run:
    """What an engine runs: whether a chosen prompt is in it, and the last run's seconds to the first token."""

    def __init__(self, engine: Engine, prompts: set[tuple[int, ...]] | None) -> None:
        self.chosen, self.first_s = prompts is None, 0.0
        original = engine.run

        def run(requests: Sequence[Request]) -> list[Completion]:
            self.chosen = prompts is None or any(request.prompt in prompts for request in requests)
            done = original(requests)
            self.first_s = min(completion.times[0] for completion in done)
            return done

        object.__setattr__(engine, "run", run)


def _lengthen(owner: Any, name: str, seconds: Callable[[float], float]) -> None:
    """Make ``owner.name`` also waste the time that ``seconds`` makes of its own duration."""
    original = getattr(owner, name)

    def lengthened(*given: Any, **named: Any) -> Any:
        start = perf_counter()
        result = original(*given, **named)
        end = perf_counter()
        wasted = seconds(end - start)
        while perf_counter() - end < wasted:
            pass
        return result

    object.__setattr__(owner, name, lengthened)


def _lengthen_runs(engine: Engine, fraction: float, when: str | None) -> None:
    """Make runs also waste ``fraction`` of their time: each, every so many-th, or the first of each request."""
    original, count, known = engine.run, 0, set[object]()

    def lengthened(requests: Sequence[Request]) -> list[Completion]:
        nonlocal count
        asked = tuple((request.prompt, request.params.max_new_tokens) for request in requests)
        count += 1
        due = asked not in known if when == "first" else count % int(when or 1) == 0
        known.add(asked)
        start = perf_counter()
        done = original(requests)
        end = perf_counter()
        while due and perf_counter() - end < fraction * (end - start):
            pass
        return done

    object.__setattr__(engine, "run", lengthened)


def _slow(engine: Engine, running: _Run, owner: Any, name: str, fraction: float, waste: Callable[[], object]) -> None:
    """Make ``owner.name`` also waste ``fraction`` of the time since its previous return in the same run."""
    original = getattr(owner, name)
    run: object = None
    pending = last = 0.0  # seconds to waste; time of the previous return

    def slowed(*given: Any, **named: Any) -> Any:
        nonlocal run, pending, last
        if run is engine.stats and running.chosen:
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


def _reject(engine: Engine, running: _Run, fraction: float) -> None:
    """Reject ``fraction`` of the accepted proposals; the target then emits the same tokens in more forwards."""
    from specdec.messages import Verdict

    original = engine.policy.accept
    pending = 0.0  # proposals to reject

    def rejecting(logits: Any, window: Any, context: Any) -> Verdict:
        nonlocal pending
        verdict = original(logits, window, context)
        if not running.chosen:
            return verdict
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
