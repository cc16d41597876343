"""What a card says of a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from benchsuite.machine import load as load_of_a_machine
from benchsuite.machine.load import BUSY, STOLEN, Load


@pytest.mark.parametrize(
    ("used", "stolen", "said"), [(BUSY, STOLEN, False), (10.5, 0, True), (0, 1.5, True), (BUSY, 1.5, True)]
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


@pytest.mark.parametrize(
    ("times", "used", "stolen"),
    [
        ({"idle": 70.0, "iowait": 5.0, "steal": 10.0}, 15.0, 10.0),
        ({"idle": 70.0}, 30.0, 0.0),  # not Linux
        ({"idle": 99.0, "iowait": 1.0, "steal": 0.5}, 0.0, 0.5),
    ],
)
def test_what_is_neither_idle_nor_waiting_nor_stolen_is_used_by_others(
    times: dict[str, float], used: float, stolen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cpu_times_percent(interval: float) -> SimpleNamespace:
        assert 0 < interval == load_of_a_machine.SECONDS < 1
        return SimpleNamespace(**times)

    monkeypatch.setattr(psutil, "cpu_times_percent", cpu_times_percent)
    assert Load.measured() == Load(used, stolen)


def test_a_line_of_a_busy_machine_has_both_shares() -> None:
    [line] = Load(12.4, 3.6).lines()
    assert "others use 12 % of its cores, its host gives 4 % away" in line
