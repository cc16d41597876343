"""No kernel of Triton's is launched for the first time while a step is captured, where CUDA could not load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.fake_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]


def compiling(module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a module where Triton does not interpret."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", module, *options]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)


def test_no_strategy_launches_a_kernel_first_in_a_capture(deep: bool) -> None:
    done = compiling("benchsuite.workshop.native.first_launches", *(["--every"] if deep else []))
    assert done.returncode == 0, done.stderr or done.stdout
    found = json.loads(done.stdout)
    assert not any(found.values())
    assert {name.split(" ")[0] for name in found} > {"None", "ngram", "medusa", "eagle", "draft_model"}


def test_a_first_step_over_another_window_than_the_recorded_one_is_found_by_the_kernels_names() -> None:
    done = compiling("benchsuite.tests.first_launches_rig")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sound"] == [], "strides of a draft's window are no fault"
    assert set(found["planted"]) == {"verify_prefix", "emit"}
