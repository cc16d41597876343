"""What the three calls run: waves of jobs, in order of worth.

1. Does anything run: probes, builds, every test for a GPU without ``-x``; then, alone on the card, bandwidths, launches
   and the main job on ``tiny`` and on SmolLM2's shape.
2. What failed before, by name; the sanitizer; tables beside each other, for errors and for ``torch.compile``'s cache.
3. Tables, each alone on the card.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchsuite.workshop.gpu_day.failures import failed_items
from benchsuite.workshop.gpu_day.jobs import GpuJob

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

TESTS = (
    *(f"kernels.test_{name}" for name in ("backends", "flex", "float16")),
    *(f"specdec.test_{name}" for name in ("engine", "equality", "graphed", "ops", "sampling")),
    *("conformance.test_built_in", "plugins.test_guests", "plugins.test_vocabulary", "workshop.test_power"),
)
"""Files of ``benchsuite.tests`` with tests for a GPU: all that ``-m cuda`` selects."""

PROBES = ("versions", "products", "guard", "failing", "loading", "workspaces")
"""Questions that no timing needs to be alone for; each may break its process."""

BUILD = "from specdec import Registry; o = Registry().backend(); print([b.name for b in o.chain], o.absent('cuda'))"
"""Compiles the C++ and CUDA libraries, and says which backends run."""

WORKERS = 12
"""Processes that run tests; Triton compiles some 330 kernels for them, half a second of a processor each."""

LOOP = "engine, arena, noise, processors, beams, drafts, policies, controllers, reference backend"
GRAPHS = "steps recorded and replayed (`--specdec-graphs`)"
MEASURING = ("measurement, tables, results folder", "event timing, `torch.cuda.set_sync_debug_mode` guard")


def shape_target(name: str, folder: Path) -> str:
    """Write a shape's config into ``folder``; return the target with random weights of that shape."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({**LLAMA, **SHAPES[name]}, indent=1), encoding="utf-8")
    return f"shape:{place}"


class Stages:
    """The waves of each call.

    ``device`` is ``cuda``, or ``cpu`` to try the calls where there is no GPU: the targets are then all ``tiny``.
    ``folder`` gets results, ``shapes`` the configs; ``again`` is the file of failures of the call before, if there is
    one: the second call then runs these tests alone.

    Example: ``Stages("cuda", folder, shapes, Path(".gpu/failures.txt")).waves(1)``
    """

    def __init__(self, device: str, folder: Path, shapes: Path, again: Path) -> None:
        self._device, self._folder, self._shapes, self._cuda = device, folder, shapes, device == "cuda"
        self._again = failed_items(again) if again.exists() else None
        self._pytest = (
            sys.executable,
            *["-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=line", "--benchmark-quiet"],
        )

    def waves(self, call: int) -> list[list[GpuJob]]:
        """The waves of a call, 1 to 3; jobs of a wave run beside each other."""
        return {1: self._first, 2: self._second, 3: self._third}[call]()

    def _first(self) -> list[list[GpuJob]]:
        builds = GpuJob("builds", 90, (sys.executable, "-c", BUILD))
        return [
            [*(self._probe(60, name) for name in PROBES), builds],
            [self._tests("tests", 110, self._files(TESTS))],
            [self._probe(30, "bandwidth", "launches")],
            [self._speculation("tiny", "tiny", 45)],
            [self._speculation("smollm2", self._shape("smollm2-135m"), 45)],
        ]

    def _second(self) -> list[list[GpuJob]]:
        again = self._files(TESTS) if self._again is None else self._again
        few = (
            *self._pytest,
            *["-m", "cuda", "-k"],
            "whole or softcap or tree",
            *self._files(["kernels.test_backends"]),
        )
        sanitized = ("compute-sanitizer", "--error-exitcode", "9", *few)
        both, smollm2 = "transformers, transformers_compiled", self._shape("smollm2-135m")
        return [
            [
                *([self._tests("again", 90, again)] if again else ()),
                GpuJob("sanitizer", 100, sanitized, ("cuda backend",), 60),
            ],
            [
                self._speculation("smollm2-peers", smollm2, 60, peers=both),
                self._speculation("1b-peers", self._shape("llama-1b"), 75, arms="ngram/match/fixed/4", peers=both),
            ],
        ]

    def _third(self) -> list[list[GpuJob]]:
        spent = f"oracle({PAIR}, cost='draft_model(model={self._shape('llama-1b')})')"
        pairs = ", ".join(f"pair-{k}={spent}/match/fixed/{k}" for k in (2, 4, 6))
        both, smollm2 = "transformers, transformers_compiled", self._shape("smollm2-135m")
        asked = f"-m kernels --specdec-device {self._device} --pyargs benchsuite.test_kernels".split()
        few = () if self._cuda else ("-k", "silu_mul")
        timed = (*self._pytest, *asked, *few, "--specdec-target", smollm2, *self._kept("kernels"))
        return [
            [self._speculation("3b", self._shape("llama-3b"), 75, arms=f"{ARMS}, {pairs}", peers=both)],
            [self._speculation("1b", self._shape("llama-1b"), 45, peers=both)],
            [self._speculation("smollm2", smollm2, 45, peers=both)],
            [GpuJob("kernels", 45, timed, MEASURING[1:], 20)],
            [self._speculation("smollm2-eager", smollm2, 30, "--specdec-graphs", "off")],
        ]

    def _shape(self, name: str) -> str:
        return shape_target(name, self._shapes) if self._cuda else "tiny"

    def _files(self, names: Sequence[str]) -> list[str]:
        return ["--pyargs", *(f"benchsuite.tests.{name}" for name in names)]

    def _kept(self, name: str) -> tuple[str, ...]:
        json_file = self._folder / f"{name}.json"
        return "--specdec-results", str(self._folder / name), "--benchmark-json", str(json_file)

    def _probe(self, seconds: float, *names: str) -> GpuJob:
        command = (sys.executable, "-m", "benchsuite.workshop.gpu_day.probes", self._device, *names)
        return GpuJob(f"probe-{names[0]}", seconds, command)

    def _tests(self, name: str, seconds: float, which: Sequence[str]) -> GpuJob:
        """Tests over several processes. On a CPU there are none for a GPU: a few quick ones stand for them."""
        if not self._cuda:
            which = self._files(["kernels.test_float16", "specdec.test_ops"])
        marked = "cuda" if self._cuda else "not slow"
        workers = f"-n {min(WORKERS, os.cpu_count() or 1)} --dist worksteal --max-worker-restart 99".split()
        command = (*self._pytest, "-p", "benchsuite.workshop.gpu_day.failures", *workers, "-m", marked, *which)
        return GpuJob(name, seconds, command, ("triton backend", "cuda backend", LOOP, GRAPHS), 30)

    def _speculation(
        self, name: str, target: str, seconds: float, *more: str, arms: str = ARMS, peers: str = "none"
    ) -> GpuJob:
        if not self._cuda:  # what a CPU compiles in the time of a job is no more than this
            arms, peers = "ngram/match/fixed/4, oracle(0.8)/match/fixed/4", peers.partition(",")[0]
        asked = ("--specdec-target", target, "--specdec-arm", arms, "--specdec-peer", peers)
        sizes = ["--specdec-workload", "chat,code_editing", "--specdec-prompts", "2", "--specdec-max-new-tokens", "64"]
        file = ("--pyargs", "benchsuite.test_speculation", "--specdec-device", self._device)
        command = (*self._pytest, *file, *asked, *sizes, *self._kept(name), *more)
        return GpuJob(name, seconds, command, (*MEASURING, GRAPHS), 15)
