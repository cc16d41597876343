"""One command for the day on which a GPU is there: ``python -m benchsuite.gpu_day`` (``make gpu-day``).

In nine minutes it runs what no GPU has run yet and puts everything into one folder, with a page that says which line
of docs/status.md each part settles. Each part is a process of its own with a time of its own: one that fails or hangs
leaves its output, and the next begins. Nothing is fetched; the models have random weights at real models' shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    },
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
    "llama-3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
}
"""Sizes from the config.json of SmolLM2-135M, Llama-3.2-1B and Llama-3.2-3B."""

ARMS = "ngram/match/fixed/4, garbage/match/fixed/4, oracle(0.8)/match/fixed/4, oracle(0.8)/rejection/fixed/4"

PAIR = 0.75
"""The acceptance of a first proposal that is dialled for Llama 3.2 1B as a draft of 3B, whose weights are not here."""


@dataclass(frozen=True)
class GpuPart:
    """A command, the most seconds that it may take, and the lines of docs/status.md that it settles if it passes."""

    name: str
    seconds: float
    command: Sequence[str]
    settles: Sequence[str]


@dataclass(frozen=True)
class GpuOutcome:
    """How a part ended: ``passed``, ``failed``, ``out of time`` or ``not run``, and why."""

    part: GpuPart
    ended: str
    seconds: float
    said: str


def gpu_parts(folder: Path, device: str = "cuda") -> list[GpuPart]:
    """Return the parts in order of worth; the shapes' configs are written to ``folder``."""
    python = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    tests = (*python, "-q", "-x", "-m", device, "--benchmark-quiet", "--specdec-target", "tiny", "--pyargs")
    kernels = ("test_kernels_backends", "test_kernels_float16", "test_specdec_ops")
    ops = tuple(f"benchsuite.tests.{name}" for name in kernels)
    engine = ("benchsuite.tests.test_specdec_engine", "benchsuite.tests.test_specdec_equality")
    loop = "engine, arena, noise, processors, beams, drafts, policies, controllers, reference backend"
    graphs = "steps recorded and replayed (`--specdec-graphs`)"
    measuring = ("measurement, tables, results folder", "event timing, `torch.cuda.set_sync_debug_mode` guard")

    def speculation(name: str, target: str, seconds: float, *more: str, arms: str = ARMS) -> GpuPart:
        command = (*python, "--pyargs", "benchsuite.test_speculation", "-m", device, "--specdec-device", device)
        asked = ("--specdec-target", target, "--specdec-arm", arms, "--specdec-workload", "chat,code_editing")
        sizes = ("--specdec-prompts", "2", "--specdec-max-new-tokens", "64", "--benchmark-quiet")
        kept = ("--specdec-results", str(folder / name), "--benchmark-json", str(folder / f"{name}.json"))
        return GpuPart(name, seconds, (*command, *asked, *sizes, *kept, *more), (*measuring, graphs))

    def shape(name: str) -> str:
        place = folder / "shapes" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({**LLAMA, **SHAPES[name]}, indent=1))
        return f"shape:{place}"

    # Proposals as right as a real pair's, at the price of a model of the draft's shape.
    spent = f"oracle({PAIR}, cost='draft_model(model={shape('llama-1b')})')"
    pair = f"{ARMS}, pair-2={spent}/match/fixed/2, pair-4={spent}/match/fixed/4, pair-6={spent}/match/fixed/6"
    asked = ("-m", "kernels", "--specdec-device", device, "--specdec-target", shape("smollm2-135m"))
    into = ("--specdec-results", str(folder / "kernels"), "--benchmark-quiet")
    timed = (*python, "--pyargs", "benchsuite.test_kernels", *asked, *into)
    sanitised = ("compute-sanitizer", "--error-exitcode", "9", *tests, ops[0])
    return [
        GpuPart("ops", 90, (*tests, *ops), ("triton backend", "cuda backend")),
        GpuPart("engine", 120, (*tests, *engine), (loop,)),
        speculation("tiny", "tiny", 60),
        speculation("smollm2-shape", shape("smollm2-135m"), 90),
        speculation("smollm2-shape-eager", shape("smollm2-135m"), 60, "--specdec-graphs", "off"),
        speculation("llama-3b-shape", shape("llama-3b"), 150, arms=pair),
        GpuPart("kernels", 60, timed, ("event timing, `torch.cuda.set_sync_debug_mode` guard",)),
        GpuPart("sanitizer", 70, sanitised, ("cuda backend",)),
    ]


def run_parts(each: Sequence[GpuPart], folder: Path, seconds: float) -> list[GpuOutcome]:
    """Run parts one after the other, ``seconds`` in all; the output of each is ``<its name>.txt`` in ``folder``."""
    end, outcomes = time.monotonic() + seconds, list[GpuOutcome]()
    for part in each:
        left = min(part.seconds, end - time.monotonic())
        if shutil.which(part.command[0]) is None:
            outcomes.append(GpuOutcome(part, "not run", 0.0, f"{part.command[0]} is not here"))
        elif left <= 0:
            outcomes.append(GpuOutcome(part, "not run", 0.0, "no time was left"))
        else:
            outcomes.append(_one(part, folder / f"{part.name}.txt", left))
            print(f"{part.name}: {outcomes[-1].ended}, {outcomes[-1].seconds:.0f} s. {outcomes[-1].said}", flush=True)
    return outcomes


def _one(part: GpuPart, output: Path, seconds: float) -> GpuOutcome:
    start = time.monotonic()
    with output.open("wb") as file:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            part.command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            ended = "failed" if process.wait(seconds) else "passed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = "out of time"
    lines = output.read_text(errors="replace").strip().splitlines()
    return GpuOutcome(part, ended, time.monotonic() - start, lines[-1].strip("= ") if lines else "it printed nothing")


def verdict_page(outcomes: Sequence[GpuOutcome], machine: Sequence[str]) -> str:
    """The page, in Markdown: the machine, a line for each part, and the lines of docs/status.md that are settled."""
    rows = [
        f"| {o.part.name} | {o.ended} | {o.seconds:.0f} | {o.said.replace('|', '/')} | {'; '.join(o.part.settles)} |"
        for o in outcomes
    ]
    wanted = dict.fromkeys(line for outcome in outcomes for line in outcome.part.settles)
    states = {line: {o.ended for o in outcomes if line in o.part.settles} for line in wanted}
    settled = [f"- {line}: {'settled' if states[line] == {'passed'} else 'open'}" for line in wanted]
    commands = [f"    {' '.join(o.part.command)}" for o in outcomes]
    return "\n".join(
        [
            "# A day with a GPU",
            "",
            *(f"- {line}" for line in machine),
            "",
            "| part | ended | seconds | last line | settles |",
            "| ---- | ----- | ------- | --------- | ------- |",
            *rows,
            "",
            "Lines of docs/status.md, settled where every part that is about them passed:",
            "",
            *settled,
            "",
            "Commands:",
            "",
            *commands,
            "",
        ]
    )


def gpu_lines(device: str) -> list[str]:
    """Lines about the machine: the commit, the device, the driver, versions."""
    import torch

    from benchsuite.machine import provenance

    made = provenance.origin(provenance.own_commit())
    lines = [f"commit {made['commit']}, {made['time']}", f"{provenance.device_name(torch.device(device))}"]
    lines.append(", ".join(f"{name} {number}" for name, number in made["versions"].items()))
    return lines + [provenance.accelerator_line(found) for found in provenance.accelerators()]


def gpu_day_main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if every part passed, 1 if not, 2 where there is no such device."""
    parser = argparse.ArgumentParser(prog="python -m benchsuite.gpu_day", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--into", type=Path, default=Path("gpu-day"), help="the folder to be made; send it back whole")
    parser.add_argument("--minutes", type=float, default=9.0, help="the most that all parts take together (9)")
    given = parser.parse_args(arguments)
    from specdec.devices import pick_device
    from specdec.errors import SpecdecError

    try:
        pick_device("cuda")
    except SpecdecError as error:
        print(f"gpu_day: {error}", file=sys.stderr)
        return 2
    folder = given.into.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = run_parts(gpu_parts(folder), folder, given.minutes * 60)
    page = folder / "verdict.md"
    page.write_text(verdict_page(outcomes, gpu_lines("cuda")))
    print(f"{sum(outcome.ended == 'passed' for outcome in outcomes)} of {len(outcomes)} parts passed: {page}")
    return 0 if all(outcome.ended == "passed" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(gpu_day_main())
