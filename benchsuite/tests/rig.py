"""Shared by several test files: types of fixtures, devices, a setting, equality up to certified ties."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from transformers import PreTrainedModel

from benchsuite.conformance.models.tiny import registry
from benchsuite.judge.sources import TokenSource
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm, Setting
from benchsuite.measure.peers import PeerRunner, parse_peer
from benchsuite.run.request import RunRequest, texts_of
from benchsuite.store.journal import Journal
from benchsuite.workshop.native.cuda_on_host import cuda_on_host
from specdec import PeerEnv, Registry, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_plugins.heads import files, start, training

if TYPE_CHECKING:
    from benchsuite.conformance.claims import Checks

Make = Callable[..., Assembly]
"""The fixture ``assemble``."""

Run = Callable[..., subprocess.CompletedProcess[str]]
"""The fixtures ``run`` and ``cold``."""

Python = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]
"""The fixture ``python``."""

POLICIES = (
    *("match", "longest_prefix", "rejection", "block", "tree_rejection", "conf_threshold", "topk_agree", "typical"),
    "tree_agree(m=1)",
)
"""Every built-in policy; a test of the pairs of drafts and policies holds them against the registry."""

DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.gpu]),
    pytest.param("mps", marks=[pytest.mark.mps, pytest.mark.gpu]),
]
"""Every device a test may run on; a missing device skips with the reason."""

INTERPRETS = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="Triton's kernels are interpreted with triton installed and TRITON_INTERPRET=1 (make test)",
)
INTERPRETED = (pytest.mark.slow, INTERPRETS)
"""Marks of a test that runs Triton's kernels on a CPU."""


def named_backend(name: str) -> AbstractContextManager[Any]:
    """The backend of this name; ``"cuda on the host"`` is the cuda backend over CPU tensors.

    Example: ``with named_backend("cpu") as ops: ops.silu_mul(torch.rand(2, 8), torch.rand(2, 8))``
    """
    return cuda_on_host() if name == "cuda on the host" else nullcontext(registry().backend(name))


def hashed_to(bits: int, token: int) -> int:
    """The key, as int64, with which the noise of a token is made of these 32 bits: ``sampling.mix`` undone."""
    whole = 2**64 - 1
    x = bits << 32
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, 2**64) & whole
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, 2**64) & whole
    x ^= x >> 30 ^ x >> 60
    x = x - (token + 1) * 0x9E3779B97F4A7C15 & whole
    return x - 2**64 * (x >> 63)


def pairs_in_turn(first: Sequence[Any], second: Sequence[Any], shift: int = 0, groups: int = 0) -> list[Any]:
    """The product of two lists as parameters: the values of both in turn, and the other pairs with --specdec-deep.

    A value may be a ``pytest.param``: a pair has the marks of both. ``shift`` begins the second list elsewhere. With
    ``groups`` each value of the first has so large a part of the second, of 2 a half; 0: the smallest that has all.
    """
    params = [
        [value if isinstance(value, ParameterSet) else pytest.param(value) for value in values]
        for values in (first, second)
    ]
    few = groups or min(len(first), len(second))
    found = []
    for (i, one), (j, other) in itertools.product(enumerate(params[0]), enumerate(params[1])):
        marks = [*one.marks, *other.marks]
        if (i + shift) % few != j % few:
            marks.append(pytest.mark.deep)
        found.append(pytest.param(*one.values, *other.values, marks=marks))
    return found


def slow_after(count: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Values as parameters, of which all are slow after the first ``count`` that have no mark of their own.

    For cases that hold one subject: a quick run sees whether it holds at all. A tuple is a value for each name.
    """
    found = list[ParameterSet]()
    for value in values:
        given = value if isinstance(value, tuple) else (value,)
        param = value if isinstance(value, ParameterSet) else pytest.param(*given)
        count -= not param.marks
        marks = [] if count >= 0 else [pytest.mark.slow]
        found.append(pytest.param(*param.values, marks=[*param.marks, *marks], id=param.id))
    return found


def some_of(count: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Values as parameters, of which ``count``, evenly spread, run always and the others with --specdec-deep.

    For cases of one law, which each of them holds. A tuple is a value for each name.
    """
    every = [*values]
    found = list[ParameterSet]()
    for index, value in enumerate(every):
        given = value if isinstance(value, tuple) else (value,)
        param = value if isinstance(value, ParameterSet) else pytest.param(*given)
        chosen = index * count // len(every) != (index - 1) * count // len(every)
        found.append(
            pytest.param(*param.values, marks=[*param.marks, *([] if chosen else [pytest.mark.deep])], id=param.id)
        )
    return found


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, which is JSON: the first of pytest-xdist's workers makes it, the others read it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make()
    file = factory.getbasetemp().parent / f"{name}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(make()))
    return json.loads(file.read_text())


C = TypeVar("C", bound="type[Checks]")


def left_to_deep(checks: C, *names: str) -> C:
    """The same checks, of which those of these names run with --specdec-deep only: others hold what they do."""
    return _marked(checks, pytest.mark.deep, names)


def slow_checks(checks: C, *names: str) -> C:
    """The same checks, of which those of these names are slow."""
    return _marked(checks, pytest.mark.slow, names)


def _marked(checks: C, mark: pytest.MarkDecorator, names: Iterable[str]) -> C:
    for name in names:
        setattr(checks, name, mark(_again(getattr(checks, name))))
    return checks


def _again(check: Callable[..., None]) -> Callable[..., None]:
    """A function of its own: a mark of the check itself would be every class's."""

    @wraps(check)
    def again(self: Checks, **given: Any) -> None:
        check(self, **given)

    return again


KILLS = pytest.StashKey[list[Any]]()
"""The museum's results for mutants in this run."""

SETTING = Setting("tiny", "auto", "cpu", "float32", 1, "chat", SamplingParams(max_new_tokens=24))
"""One setting of the tiny target, for arms that a test makes itself."""

SHORT = ("--pyargs", "benchsuite.test_speculation", "--specdec-target", "tiny", "--specdec-workload", "chat")
QUICK = (*SHORT, "--specdec-max-new-tokens", "6", "--specdec-prompts", "1")
"""pytest's arguments for a short main job on the tiny target."""


def requested(**given: str) -> RunRequest:
    """The request of a run with these options, the others at their defaults."""
    return RunRequest.of(texts_of(given))


def without_xdist(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a run within a test: xdist's own would switch off the benchmarks of the inner run."""
    return {name: text for name, text in variables.items() if name != "PYTEST_XDIST_WORKER"}


def child_variables(path: str, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process that a test starts, with ``path`` as PYTHONPATH."""
    outer = without_xdist(os.environ)
    ours = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "1000", "NO_COLOR": "1"}
    ours |= {"CUDA_VISIBLE_DEVICES": ""}  # on a GPU other rows would run by default
    # A file that is written twice within a second would be run from the first one's bytecode.
    ours |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": "-p no:randomly"}
    return {**outer, **ours, **({"PYTHONPATH": path} if path else {}), **given}


@cache
def loaded_smollm2(dtype: torch.dtype = torch.float32) -> tuple[catalog.Loaded, ArenaModel]:
    """The embedded model over the arena, loaded once a process for all tests that leave it as it is."""
    loaded = catalog.load("smollm2-135m", torch.device("cpu"), dtype, rows=6, max_length=512)
    return loaded, ArenaModel(loaded.model, registry().backend())


def peer_runner(text: str, model: PreTrainedModel, max_length: int = 192, target: str = "tiny") -> PeerRunner:
    """A peer on a model."""
    env = PeerEnv(target, model.device, model.dtype, max_length, 1, 1, lambda: model, catalog.byte_tokenizer())
    return PeerRunner(Arm(SETTING, peer=parse_peer(text).text), Registry().peer(text, env))


def plan_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have transformers plan to cut embeddings, as it does since some version after 5.17."""
    own: Any = PreTrainedModel.tp_plan

    def plan(self: PreTrainedModel) -> dict[str, str]:
        found = dict(own.fget(self) or {})
        return {"model.embed_tokens": "embedding_rowwise", **found} if found else found

    monkeypatch.setattr(PreTrainedModel, "tp_plan", property(plan, own.fset))


HEAD_IDS = torch.arange(0, 258, 2)
"""The vocabulary of the heads that tests make."""


def noisy(head: training.Head) -> training.Head:
    """Change every weight a little in place, so that no result is right because a weight is 0 or 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return head


def saved_head(kind: str, build: Assembly, folder: Path) -> str:
    """Save a head of a tiny target, untrained but with noise; its vocabulary is every second token."""
    model, text = build.target.twin(), torch.arange(40).view(2, 20)
    head = start.eagle_start(model, text, 0) if kind == "eagle" else start.medusa(model, text, 0, 3, 32)
    noisy(head)
    path = folder / f"{kind}.safetensors"
    files.save(path, head, HEAD_IDS, build.target.model)
    return str(path)


def as_installed(source: str, folder: Path) -> str:
    """Write a third party's module ``specdec_echo`` with its entry point, as pip installs it; return the folder for
    ``PYTHONPATH``. ``LOAD_PLUGINS`` must name ``specdec-echo``."""
    site = folder / "site"
    info = site / "specdec_echo-1.dist-info"
    info.mkdir(parents=True)
    (site / "specdec_echo.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-echo\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[specdec]\necho = specdec_echo\n")
    return str(site)


def assert_same(
    judge: Judge,
    plain: TokenSource,
    other: TokenSource,
    work: list[Request],
    expected: list[tuple[int, ...]] | None = None,
) -> None:
    """Assert equal tokens, or certified ties at all differences; ``expected`` is plain's output, if known already."""
    outputs = expected or plain.tokens(work), other.tokens(work)
    for request, want, got in zip(work, *outputs, strict=True):
        found = judge.compare(work, request, plain, other, (want, got))
        for difference in found:
            print(difference)
        assert all(difference.tie for difference in found), found[-1]


def repeatable(root: Path) -> list[dict[str, Any]]:
    """What does not depend on the clock, of every row in the newest folder of ``root``."""
    rows = json.loads((Journal.load(root).folder / "benchmark.json").read_text())["rows"]
    names = ("draft", "temperature", "max_new_tokens", "counters", "emitted_digest", "contract_checked", "units")
    return [{name: row[name] for name in names} for row in rows]
