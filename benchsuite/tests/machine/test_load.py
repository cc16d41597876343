"""What a card says of a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchsuite.machine import load as load_of_a_machine
from benchsuite.machine.load import BUSY, STOLEN, Load


@pytest.mark.parametrize(
    ("used", "stolen", "said"), [(BUSY, STOLEN, False), (BUSY + 1, 0, True), (0, STOLEN + 1, True)]
)
def test_a_busy_or_robbed_machine_is_said_with_what_to_do(used: float, stolen: float, said: bool) -> None:
    lines = Load(used, stolen).lines()
    assert [f"{used:.0f} %" in line and "GOMP_SPINCOUNT" in line for line in lines] == [True] * said


@pytest.mark.slow
def test_a_busy_loop_in_another_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_of_a_machine, "SECONDS", 0.5)  # the suite's own tests look more briefly
    loop = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert loop.stdout is not None
        loop.stdout.readline()
        load = Load.measured()
    finally:
        loop.kill()
        loop.wait()
    # At least half of a core: another guest of the host may have the rest.
    assert load.used + load.stolen > 50 / (os.cpu_count() or 1)
