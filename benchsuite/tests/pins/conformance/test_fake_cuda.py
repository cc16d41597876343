"""Pins of test_fake_cuda.py: tests that read what is private."""

from __future__ import annotations

import pytest
import torch

from benchsuite.conformance.guards import fake_cuda

pytestmark = pytest.mark.fake_gpu


def test_after_a_fake_run_numbers_are_made_where_torch_device_says() -> None:
    """transformers loads a model inside torch.device("meta"): its rotary frequencies were memory as it was found."""
    torch.utils._device._device_constructors.cache_clear()
    with fake_cuda.fake_cuda(), torch.device("cuda"):
        torch.empty(0)
    with torch.device("meta"):
        assert torch.tensor([1.0]).is_meta
