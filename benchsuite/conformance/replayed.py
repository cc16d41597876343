"""The check that a plugin may be part of a step that is recorded once and replayed, as on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from benchsuite.conformance.claims import Failed
from benchsuite.conformance.guards.tape import Tape
from benchsuite.conformance.models import tiny
from specdec import Request
from specdec.assembly import Assembly


@cache
def _reference(family: str, extra: tuple[tiny.Extra, ...]) -> Assembly:
    """A tape records aten's calls, so the ops are the reference's."""
    return tiny.assembly(family, max_rows=3, max_length=256, backend="reference", extra=extra)


def must_replay(
    text: str, family: str, extra: tuple[tiny.Extra, ...], draft: str, policy: str, requests: Sequence[Request], k: int
) -> None:
    """Raise Failed unless a strategy decodes and counts the same where the parts of its steps are replayed.

    ``text`` is the plugin that is checked; ``draft`` and ``policy`` are the strategy.
    """
    build = _reference(family, extra)
    if text == draft:
        build.engine(draft, policy, k=k).run(requests)  # what it keeps beyond its engine, both others then know
    run, replayed = build.engine(draft, policy, k=k), build.engine(draft, policy, k=k, recorder=Tape())
    expected = [done.tokens for done in run.run(requests)]
    try:
        found = [done.tokens for done in replayed.run(requests)]
    except RuntimeError as error:
        raise Failed(f"a step with {text} can be recorded", str(error), f"{draft} under {policy}, K = {k}") from error
    for request, want, got in zip(requests, expected, found, strict=True):
        if want != got:
            at = next((i for i, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]), len(got))
            raise Failed(
                f"a step with {text} can be recorded once and replayed",
                f"request {request.id} differs at token {at}: something of an earlier step on the host, or a tensor "
                "that the step before was given, decided",
                f"{draft} under {policy}, K = {k}",
            )
    if run.stats.counters() != replayed.stats.counters():
        raise Failed(
            f"a step with {text} can be recorded once and replayed",
            f"the tokens are the same and the counters are not: {replayed.stats.counters()}",
            f"{run.stats.counters()} where no step is replayed",
        )
