"""Engines with planted faults: which check of the kit finds each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchsuite import conformance
from benchsuite.conformance.claims import failures
from specdec import Generation, Request
from specdec_plugins.engines.transformers import Transformers


class OneTooMany(Transformers):
    """Gives one token more than was asked for."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        more = [replace(r, params=replace(r.params, max_new_tokens=r.params.max_new_tokens + 1)) for r in requests]
        return super().generate(more)


class Endless(Transformers):
    """Ignores the end token."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return super().generate([replace(r, params=replace(r.params, eos=())) for r in requests])


class Altered(Transformers):
    """Gives another token at the end than the target does."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, tokens=(*g.tokens[:-1], (g.tokens[-1] + 1) % 256)) for g in super().generate(requests)]


class Miscounted(Transformers):
    """Loses the last emission."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, emissions=g.emissions[:-1]) for g in super().generate(requests)]


class Backwards(Transformers):
    """Times its tokens from the last to the first."""

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [replace(g, emissions=g.emissions[::-1]) for g in super().generate(requests)]


class Unclosed(Transformers):
    """Keeps the model when it is closed."""

    def close(self) -> None:
        """Do nothing."""


class Unchecked(Transformers):
    """Looks at its options when the model is there."""

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Accept everything."""


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (OneTooMany, "test_it_gives_as_many_tokens_as_are_asked_for"),
        (Endless, "test_it_ends_at_the_first_end_token"),
        (Altered, "test_its_tokens_are_the_targets"),
        (Miscounted, "test_emissions_have_every_token_once"),
        (Backwards, "test_times_never_go_back_and_end_with_the_call"),
        (Unclosed, "test_closing_frees_the_model_and_ends_it"),
        (Unchecked, "test_wrong_options_are_refused_before_anything_is_loaded"),
    ],
)
def test_a_planted_fault_is_found_by_its_check(fault: type[Transformers], check: str) -> None:
    checks = conformance.engine("planted", factory=fault, refuses=["cache=sttic"])
    assert [name for name, _ in failures(checks, only=f"^{check}$")]
    right = conformance.engine("planted", factory=Transformers, refuses=["cache=sttic"])
    assert not list(failures(right, only=f"^{check}$"))
