"""Checks of every backend: it agrees with the reference on the cases of ``benchsuite.conformance.ops.cases``."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from benchsuite.conformance.claims import Checks, Failed
from benchsuite.conformance.drafts import GREEDY, differ
from benchsuite.conformance.models import tiny
from benchsuite.conformance.ops.agreement import disagreement
from benchsuite.conformance.ops.cases import CASES, SLOTS
from specdec.interfaces import OPS


class BackendChecks(Checks):
    """Checks of a backend; ``conformance.backend`` makes a subclass with the claims filled in."""

    text: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]
    device: ClassVar[str]
    extra: ClassVar[tuple[tiny.Extra, ...]]

    @pytest.fixture(autouse=True)
    def _here(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            pytest.skip("claimed: device=cuda; this machine has none")

    @pytest.mark.parametrize("op", OPS)
    def test_an_op_agrees_with_the_reference_and_runs_where_claimed(self, op: str) -> None:
        """Integers are equal; floats err at most twice as much as the reference's own; see ``agreement``."""
        ops = tiny.registry(*self.extra).backend(self.text)
        name = ops.chain[0].name
        ran = False
        for case in (case for case in CASES if case.op == op):
            for dtype in case.dtypes:
                before = ops.ran()[op, name]
                wrong = disagreement(ops, case, dtype, self.device)
                if wrong:
                    raise Failed(f"{op} of {self.text} is the reference's", wrong, f"case {case.name!r} in {dtype}")
                ran = ran or ops.ran()[op, name] > before
        if ran != (op in self.ops):
            claimed = f"{self.text} {'runs' if op in self.ops else 'does not run'} {op}"
            raise Failed(
                claimed, f"it {'took' if ran else 'took none of'} the cases of {op}", "benchsuite.conformance.ops.cases"
            )

    def test_slots_that_count_are_those_of_the_reference(self) -> None:
        """``linear_of_slots`` and ``sample_of_slots`` may leave padding out; products may have no NaN in its place."""
        ops = tiny.registry(*self.extra).backend(self.text)
        for case in SLOTS:
            for dtype in case.dtypes:
                wrong = disagreement(ops, case, dtype, self.device)
                if wrong:
                    claimed = f"{case.op} of {self.text} is {case.op.split('_')[0]} of the slots that count"
                    raise Failed(claimed, wrong, f"case {case.name!r} in {dtype}")

    @pytest.mark.parametrize("draft", ["oracle(0.8)", "draft_model", "tree(beam=2, depth=2)"])
    def test_it_changes_no_output(self, draft: str) -> None:
        """An engine on it emits the tokens of plain decoding on it."""
        build = tiny.assembly(backend=self.text, device=self.device, max_rows=3, extra=self.extra)
        differ(f"{draft} on {self.text}", build, build.engine(draft, k=4), tiny.requests(GREEDY, 6))
