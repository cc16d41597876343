"""The part of the plugin that times kernels: ``pytest -m kernels``. Imports no torch until an item runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchsuite import options

if TYPE_CHECKING:
    from benchsuite.kernelbench.timing import KernelBench


class KernelPlugin:
    """Builds one ``KernelBench`` for each target of the run, when its first test asks for it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.benches: dict[str, KernelBench] = {}
        self.card: list[str] = []
        self.outcomes: list[str] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each ``--specdec-target`` of every test that uses ``specdec_kernels``."""
        if "specdec_kernels" in metafunc.fixturenames:
            targets = [name.strip() for name in options.value(self.config, "target").split(",") if name.strip()]
            metafunc.parametrize("specdec_kernels", targets, indirect=True, scope="session")

    def bench(self, name: str) -> KernelBench:
        """Return the kernels of one target, built once; fails the test if the target cannot be loaded."""
        from specdec.errors import SpecdecError

        if name not in self.benches:
            try:
                self.benches[name] = self._build(name)
            except SpecdecError as error:
                pytest.fail(f"--specdec-target {name}: {error}", pytrace=False)
        return self.benches[name]

    def _build(self, name: str) -> KernelBench:
        import torch
        import transformers

        from benchsuite.kernelbench.timing import KernelBench
        from benchsuite.machine.provenance import device_name
        from specdec import Registry, catalog, devices
        from specdec.model import ArenaModel
        from specdec.registry import split_list

        options.results_root(self.config)  # raises before the timing, not after it
        backend, device_text, dtype_text = (
            split_list(options.value(self.config, option))[0] for option in ("backend", "device", "dtype")
        )
        ops = Registry().backend(backend)
        device = devices.pick_device(device_text)
        loaded = catalog.load(name, device, devices.pick_dtype(dtype_text, device), rows=1, max_length=4096)
        self.card = [
            f"machine {device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
            f"transformers {transformers.__version__}",
            *(f"without backend {reason}" for reason in ops.absent(device.type)),
        ]
        return KernelBench(name, ArenaModel(loaded.model, ops))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folders."""
        measured = [bench for bench in self.benches.values() if bench.timings or bench.curves or bench.costs]
        root = options.results_root(self.config) if measured else None
        if root is None:
            return
        from benchsuite.kernelbench import report

        for bench in measured:
            try:
                path = report.write_kernels(root, bench, self.card, 0, complete=exitstatus == 0)
                self.outcomes.append(f"results: {path}")
            except OSError as error:
                self.outcomes.append(f"the results could not be written to {root}: {error}")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if not self.benches:
            return
        from benchsuite.kernelbench import report

        for name, bench in self.benches.items():
            terminalreporter.section(f"kernels: {name}, {bench.target.device.type}", sep="=")
            for line in (*self.card, *report.lines(bench)):
                terminalreporter.write_line(line)
        for line in self.outcomes:
            terminalreporter.write_line(line)
