"""What is asked of a device: free memory, and to repeat itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from specdec import SpecdecError, devices


def test_on_cuda_what_torchs_cache_holds_and_no_tensor_uses_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 40)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10)
    assert devices.available_bytes(torch.device("cuda")) == 35


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own settings, again after the test."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is removed again after the test
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("usual")
def test_a_deterministic_run_has_no_tf32_and_a_fixed_workspace_and_says_so() -> None:
    with torch.random.fork_rng():
        said = devices.be_deterministic(7)
        assert torch.initial_seed() == 7
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert said == ("deterministic: seed 7, deterministic algorithms only, no TF32, CUBLAS_WORKSPACE_CONFIG=:4096:8")


@pytest.mark.usefixtures("usual")
def test_a_workspace_with_which_cublas_does_not_repeat_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(SpecdecError, match="CUBLAS_WORKSPACE_CONFIG is ':0:0'; .* expects :4096:8 or :16:8: unset it"):
        devices.be_deterministic(0)
    assert not torch.are_deterministic_algorithms_enabled()
