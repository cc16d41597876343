"""A target's speed beside an equal run and beside busy loops: ``python -m benchsuite.workshop.native.neighbours``.

Each round starts processes that decode one token after the other, alone, two at once, and one beside as many busy loops
as there are cores, in an order of its own; the ratios are of one round.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

CONTEXT = 64
"""Committed tokens of the run that is timed."""


@dataclass(frozen=True)
class Round:
    """Tokens per second of a run alone, of two equal runs at once (their mean), and of one beside busy loops."""

    alone: float
    equal: float
    busy: float


def measure_neighbours(target: str, backend: str, seconds: float, rounds: int, seed: int = 0) -> list[Round]:
    """Measure; each figure is of one start of ``seconds`` of decoding. RuntimeError if a run fails."""
    found, order = [], random.Random(seed)
    for _ in range(rounds):
        kinds: dict[str, Callable[[], float]] = {
            "alone": lambda: _together(target, backend, seconds, 1),
            "equal": lambda: _together(target, backend, seconds, 2),
            "busy": lambda: _beside_loops(target, backend, seconds),
        }
        names = list(kinds)
        order.shuffle(names)
        found.append(Round(**{name: kinds[name]() for name in names}))
    return found


def neighbours_table(rounds: Sequence[Round]) -> list[str]:
    """Return the table's lines: medians over the rounds, of ratios within a round."""
    equal, busy = (median(getattr(r, name) / r.alone for r in rounds) for name in ("equal", "busy"))
    return [
        f"alone                     {median(r.alone for r in rounds):6.1f} tokens/s",
        f"one of two equal runs     {equal:6.2f} of that ({min(r.equal / r.alone for r in rounds):.2f} to "
        f"{max(r.equal / r.alone for r in rounds):.2f})",
        f"beside {os.cpu_count()} busy loops       {busy:6.2f} of that ({min(r.busy / r.alone for r in rounds):.2f} to "
        f"{max(r.busy / r.alone for r in rounds):.2f})",
    ]


def worker_command(target: str, backend: str, seconds: float) -> list[str]:
    """The command of one run: it says that it is warm, waits for a line, and prints its tokens per second."""
    worker = [sys.executable, "-m", "benchsuite.workshop.native.neighbours", "--worker"]
    return [*worker, f"--target={target}", f"--backend={backend}", f"--seconds={seconds}"]


def _together(target: str, backend: str, seconds: float, count: int) -> float:
    command = worker_command(target, backend, seconds)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                _ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            )
            for _ in range(count)
        ]
        for run in runs:
            _line(run)  # it is warm
        for run in runs:
            assert run.stdin is not None
            run.stdin.write("\n")
            run.stdin.flush()
        return sum(float(_line(run)) for run in runs) / count


def _beside_loops(target: str, backend: str, seconds: float) -> float:
    loop = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            stack.enter_context(_ended(subprocess.Popen(loop, text=True)))
        return _together(target, backend, seconds, 1)


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    line = run.stdout.readline()
    if not line:
        raise RuntimeError(f"a run ended with status {run.wait()} before its figure; its message is above")
    return line


def _work(target: str, backend: str, seconds: float) -> None:
    import torch

    from specdec import Registry, catalog
    from specdec.messages import Window
    from specdec.model import ArenaModel

    with torch.inference_mode():
        device = torch.device("cpu")
        loaded = catalog.load(target, device, torch.float32, rows=1, max_length=2 * CONTEXT)
        model = ArenaModel(loaded.model, Registry().backend(backend))
        arena = model.arena(1, 2 * CONTEXT, 1)
        tokens = torch.arange(CONTEXT)[None] % model.vocabulary
        model.extend(arena, tokens, 0, 0)
        window = Window.chain(tokens[:, 0], tokens[:, :0], torch.zeros(1, dtype=torch.int64))

        def step() -> int:
            return int(model.forward(arena, window, slice(0, 1), CONTEXT)[0].argmax())

        for _ in range(5):
            step()
        print("ready", flush=True)
        sys.stdin.readline()
        count, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            step()
            count += 1
        print(count / took, flush=True)


def measure_command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchsuite.workshop.native.neighbours", description=__doc__)
    parser.add_argument("--target", default="smollm2-135m", help="the model; default smollm2-135m")
    parser.add_argument("--backend", default="auto", help="the backend; reference is torch; default auto")
    parser.add_argument("--seconds", type=float, default=6.0, help="of decoding in each run; default 6")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if not (chosen.seconds > 0 and chosen.rounds > 0):
        parser.error(f"got {chosen.seconds} seconds and {chosen.rounds} rounds; expected numbers above 0")
    if chosen.worker:
        return _work(chosen.target, chosen.backend, chosen.seconds)
    print("\n".join(neighbours_table(measure_neighbours(chosen.target, chosen.backend, chosen.seconds, chosen.rounds))))
    return None


if __name__ == "__main__":
    measure_command()
