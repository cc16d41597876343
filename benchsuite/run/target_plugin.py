"""A benchmark that is built once for each target of the run: its items, its tables and its results folders.

Imports no torch until an item runs.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pytest

from specdec.amounts import amount

if TYPE_CHECKING:
    from benchsuite.measure.arms import Setting
    from benchsuite.report.document import Document
    from benchsuite.run.request import RunRequest
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel

B = TypeVar("B")

MEANT = ("backend", "device", "dtype")
"""Options beside the target's of which every value is a setting of every benchmark."""


class TargetPlugin(ABC, Generic[B]):
    """Builds one benchmark for each of ``settings`` when its first test asks for it, shows it and writes it.

    ``fixture`` is the fixture that tests request, ``title`` the section's on the terminal. A target is loaded with
    memory for ``rows`` rows of ``max_length`` tokens.
    """

    fixture: ClassVar[str]
    title: ClassVar[str]
    rows: int = 1
    max_length: int = 4096

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        self.config, self.request = config, request
        self.benches: dict[str, B] = {}
        self.card: list[str] = []
        self.outcomes: list[str] = []
        self._device = ""

    def settings(self) -> dict[str, Setting]:
        """What a benchmark is built of, by its name in tests, tables and folders: each ``--specdec-target`` with every
        backend, device and dtype of the options, and the first way of sampling."""
        return settings_by_name(self.request, MEANT)

    @abstractmethod
    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> B:
        """Return the benchmark of one setting, by its name. SpecdecError if it cannot be built."""

    @abstractmethod
    def measured(self, bench: B) -> bool:
        """Whether a benchmark has anything to show."""

    @abstractmethod
    def document(self, bench: B) -> Document:
        """Return the report of one target."""

    @abstractmethod
    def write(self, root: Path, bench: B, complete: bool) -> Path:
        """Write a results folder into ``root`` and return it. OSError if it cannot be written."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each of ``settings`` of every test that uses the fixture."""
        if self.fixture in metafunc.fixturenames:
            metafunc.parametrize(self.fixture, [*self.settings()], indirect=True)

    def bench(self, name: str) -> B:
        """Return the benchmark of one setting, built once; fails the test if the target cannot be loaded."""
        from specdec.errors import SpecdecError, folded

        if name not in self.benches:
            try:
                self.benches[name] = self._loaded(name)
            except SpecdecError as error:
                pytest.fail(folded(f"--specdec-target {name}: {error}"), pytrace=False)
        return self.benches[name]

    def _loaded(self, name: str) -> B:
        import torch
        import transformers

        from benchsuite.machine.provenance import device_name
        from specdec import Registry, catalog, devices
        from specdec.choices import BITS
        from specdec.model import ArenaModel

        self.request.results_root()  # raises before the timing, not after it
        setting = self.settings()[name]
        ops = Registry().backend(setting.backend)
        device = devices.pick_device(setting.device)
        dtype = devices.pick_dtype(setting.dtype, device)
        loaded = catalog.load(setting.target, device, dtype, rows=self.rows, max_length=self.max_length)
        self.card = [
            f"machine {device_name(device)}, {amount(torch.get_num_threads(), 'thread')}, torch {torch.__version__}, "
            f"transformers {transformers.__version__}",
            *(f"without backend {reason}" for reason in ops.absent(device.type)),
        ]
        self._device = device.type
        return self.build(name, loaded, ArenaModel(loaded.model, ops, BITS.get(setting.dtype)))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folders."""
        measured = [bench for bench in self.benches.values() if self.measured(bench)]
        root = self.request.results_root() if measured else None
        if root is None:
            return
        for bench in measured:
            try:
                self.outcomes.append(f"results: {self.write(root, bench, exitstatus == 0)}")
            except OSError as error:
                self.outcomes.append(f"the results could not be written to {root}: {error}")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if not self.benches:
            return
        from benchsuite.report.renderers import terminal

        for name, bench in self.benches.items():
            terminalreporter.section(f"{self.title}: {', '.join(filter(None, (name, self._device)))}", sep="=")
            for line in terminal(self.document(bench), titled=False):
                terminalreporter.write_line(line)
        for line in self.outcomes:
            terminalreporter.write_line(line)


def settings_by_name(request: RunRequest, several: Sequence[str]) -> dict[str, Setting]:
    """Return a setting for each target with each value of the options ``several``, and the first of every other one.

    Its name is the target's, with the values of those options of which there are some: ``tiny-dtypeint8``. Batch and
    workload are no part of it.
    """
    from benchsuite.measure.arms import Setting

    lists = {name: getattr(request, name) for name in ("target", "backend", "device", "dtype")} | dict(request.sampling)
    lists = {name: values if name in ("target", *several) else values[:1] for name, values in lists.items()}
    found = {}
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        parts = [f"{name}{value}" for name, value in chosen.items() if name != "target" and len(lists[name]) > 1]
        one = Setting.of({**chosen, "batch": 1, "workload": "", "seed": request.seed})
        found["-".join([str(chosen["target"]), *parts])] = one
    return found
