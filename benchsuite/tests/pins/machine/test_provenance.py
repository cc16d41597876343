"""Pins of test_provenance.py: tests that read what is private."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from benchsuite.machine import provenance
from benchsuite.store.journal import manifest
from specdec_kernels import cuda

H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=141 * 2**30, uuid="1234")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with one GPU; what its commands print, by their names."""
    printed = {"nvidia-smi": "580.65.06, 345, 1980, 3201, 700.00", "nvcc": "Cuda tools, release 13.0, V13.0.48"}
    monkeypatch.setattr(provenance, "_said", lambda *command: printed.get(command[0]))
    monkeypatch.setattr(cuda, "cuda_compiler", lambda: "nvcc")
    monkeypatch.setattr(provenance, "_nvcc_release", provenance._nvcc_release.__wrapped__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: H200)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(provenance, "_version", lambda package: "3.9.0" if package == "triton" else None)
    return printed


def test_the_manifest_and_the_card_name_the_gpu_its_driver_its_clocks_and_its_compilers(gpu: dict[str, str]) -> None:
    said = manifest({})
    assert said["machine"]["gpus"] == ["NVIDIA H200"]
    [found] = said["accelerators"]
    assert provenance.accelerator_line(found) == (
        "NVIDIA H200: 141 GiB, compute capability 9.0, driver 580.65.06, CUDA 13.0, triton 3.9.0, nvcc 13.0, "
        "clocks 345 of 1980 MHz, memory 3201 MHz, limit 700.00 W"
    )


def test_what_a_missing_command_would_say_is_unknown(gpu: dict[str, str]) -> None:
    gpu |= {"nvidia-smi": "No devices were found"}
    del gpu["nvcc"]
    line = provenance.accelerator_line(provenance.accelerators()[0])
    assert "driver unknown, CUDA 13.0, triton 3.9.0, nvcc unknown, clocks unknown of unknown MHz" in line


def test_without_a_gpu_nothing_is_asked_and_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(provenance, "_said", lambda *command: pytest.fail("asked"))
    said = manifest({})
    assert "accelerators" not in said
    assert "gpus" not in said["machine"]


@pytest.mark.parametrize("command", [("no-such-command",), ("false",), ("true",)])
def test_a_command_that_is_not_here_fails_or_prints_nothing_said_nothing(command: tuple[str, ...]) -> None:
    assert provenance._said(*command) is None
