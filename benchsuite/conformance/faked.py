"""The check that steps with a plugin are fit for a GPU: taken on fake tensors, which need none."""

from __future__ import annotations

import pytest
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from benchsuite.conformance.claims import Failed
from benchsuite.conformance.guards.fake_cuda import fake_run
from benchsuite.conformance.models import families, tiny
from specdec import SamplingParams
from specdec_kernels.build import BuildError


def must_fit_a_gpu(
    text: str, family: str, extra: tuple[tiny.Extra, ...], draft: str, policy: str, params: SamplingParams, k: int
) -> None:
    """Raise Failed unless steps of a strategy read no number, wait nowhere, mix no devices, and repeat their launches.

    ``text`` is the plugin that is checked; ``draft`` and ``policy`` are the strategy. Skips without a C++ compiler, and
    where torch cannot be told of a device that is not there.
    """
    claim, strategy = f"steps with {text} are fit for a GPU", f"{draft} under {policy}, K = {k}"
    try:
        found = fake_run(
            draft, policy, k=k, params=params, rows=2, steps=3, config=families.CONFIGS[family](), extra=extra
        )
    except BuildError as error:
        pytest.skip(f"no device guard for fake tensors can be compiled: {error}")
    except DataDependentOutputException as error:
        raise Failed(claim, f"the host reads a number of the device: {error}", strategy) from error
    except DynamicOutputShapeException as error:
        raise Failed(claim, f"a shape follows numbers of the device: {error}", strategy) from error
    except (RuntimeError, TypeError, ValueError) as error:
        hint = "if it loads a model of its own, which fake tensors cannot hold, declare fakes=False"
        raise Failed(claim, f"it cannot be built or cannot step on fake tensors: {error}; {hint}", strategy) from error
    wrong = found.wrong()
    if wrong:
        raise Failed(claim, wrong, strategy)
