"""The part of the plugin that measures servers: ``pytest -m serving --specdec-endpoint …``.

Imports no torch and no httpx until an item runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite import options

if TYPE_CHECKING:
    from benchsuite.benches.serving.bench import ServingBench, ServingPlan
    from benchsuite.benches.serving.certified import Certificate, Read
    from benchsuite.benches.serving.figures import EndpointFigures
    from benchsuite.benches.serving.load import Traffic
    from benchsuite.benches.serving.restarts import ServersInTurn

CERTIFICATES = "specdec_certificates"
NONE = "no endpoint is given: --specdec-endpoint plain=http://localhost:8000,spec=http://localhost:8001 names servers"


class ServingPlugin:
    """Makes an item for each load, and one ``ServingBench`` for all of them.

    After every block the results so far are written to ``serving-partial.json`` in the folder of ``--specdec-results``,
    whole or not at all; at the end they become a folder, and that file is removed.
    """

    fixture = "specdec_served"
    """Of the figures; ``CERTIFICATES`` is that of the certificates."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.bench: ServingBench | None = None
        self.outcome = ""
        self._loads: dict[str, Traffic] = {}
        self._refused: str | None = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each load of every test that uses the fixture; without an endpoint, one that is skipped."""
        if self.fixture not in metafunc.fixturenames:
            return
        if not options.value(self.config, "endpoint"):
            skip = pytest.param("none", marks=pytest.mark.skip(reason=NONE))
            metafunc.parametrize(self.fixture, [skip], indirect=True)
            return
        from benchsuite.benches.serving.load import parse_loads
        from specdec.errors import SpecdecError

        try:
            loads = parse_loads(options.value(self.config, "concurrency"), options.value(self.config, "rate"))
            self._loads = {load.id: load for load in loads}
        except SpecdecError as error:
            self._refused = str(error)
        metafunc.parametrize(self.fixture, list(self._loads), indirect=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Build the plan and ask every endpoint for its health. UsageError, before any test runs, if that fails."""
        fixtures = (self.fixture, CERTIFICATES)
        mine = [item for item in session.items if set(fixtures) & set(getattr(item, "fixturenames", ()))]
        if self._refused is not None:
            raise pytest.UsageError(self._refused)
        if not mine or not self._loads or self.config.option.collectonly:
            return
        from benchsuite.benches.serving.bench import ServingBench
        from specdec.errors import SpecdecError

        try:
            options.results_root(self.config)
            plan = self._plan()
            self.bench = ServingBench(plan, self._keep, self._servers(plan), self._reader())
            self.bench.prepare()
        except SpecdecError as error:
            if self.bench is not None:
                self.bench.servers.close()
            self.bench = None
            raise pytest.UsageError(str(error)) from None

    def _reader(self) -> Read | None:
        name = options.value(self.config, "certify-by")
        if not name or self._why_not():
            return None
        from benchsuite.benches.serving.local_judge import LocalJudge

        return LocalJudge(name).read

    def _servers(self, plan: ServingPlan) -> ServersInTurn:
        from benchsuite.benches.serving.restarts import ServersInTurn, read_commands
        from specdec.errors import SpecdecError

        path = options.value(self.config, "endpoint-start")
        if path:
            return ServersInTurn(read_commands(self.config.invocation_params.dir / path, plan.endpoints))
        addresses = [endpoint.url for endpoint in plan.endpoints]
        twice = next((url for url in addresses if addresses.count(url) > 1), None)
        if twice:
            raise SpecdecError(
                f"two endpoints have the address {twice}: give each its own, or --specdec-endpoint-start a file with "
                "the command that starts each"
            )
        return ServersInTurn({})

    def _plan(self) -> ServingPlan:
        from dataclasses import replace

        from benchsuite.benches.serving.bench import ServingPlan, prompts_of
        from benchsuite.benches.serving.figures import parse_slo
        from benchsuite.measure.durations import parse_duration
        from benchsuite.measure.workloads import load_workload, workload_names
        from specdec.errors import SpecdecError, unknown
        from specdec_plugins.endpoints.client import Ask
        from specdec_plugins.endpoints.named import parse_endpoints

        def value(name: str) -> str:
            return options.value(self.config, name)

        total = parse_duration(value("timeout"), "--specdec-timeout")
        endpoints = parse_endpoints(value("endpoint"))
        if total:
            endpoints = [replace(one, total_s=total, read_s=min(one.read_s, total)) for one in endpoints]
        names = [name for text in value("workload").split(",") for name in workload_names(text.strip())]
        prompts = prompts_of([load_workload(name).first(options.count(self.config, "prompts")) for name in names])
        api = value("endpoint-api")
        dtypes = ("auto", "off", "float32", "bfloat16", "float16")
        if value("certify") not in dtypes:
            raise unknown("--specdec-certify", value("certify"), dtypes)
        if api not in ("completions", "chat"):
            raise unknown("--specdec-endpoint-api", api, ("completions", "chat"))
        try:
            heat, tokens, seed = float(value("temperature")), int(value("max-new-tokens")), int(value("seed"))
        except ValueError:
            raise SpecdecError(
                "endpoints are asked with one value each of --specdec-temperature, --specdec-max-new-tokens and "
                f"--specdec-seed; got {value('temperature')!r}, {value('max-new-tokens')!r}, {value('seed')!r}"
            ) from None
        # A sampled run with one seed would be the same text in every round; servers differ in what they do with it.
        ask = Ask("", tokens, heat, chat=api == "chat", seed=seed if heat else None)
        rounds = options.count(self.config, "pairs") or 1
        return ServingPlan(tuple(endpoints), prompts, ask, rounds, parse_slo(value("slo")), seed)

    def _why_not(self) -> str:
        """Why no output is compared; empty if they are."""
        if not options.value(self.config, "endpoint"):
            return NONE
        if options.value(self.config, "certify") == "off":
            return "--specdec-certify off"
        if "," not in options.value(self.config, "endpoint"):
            return "a single endpoint has nothing to be compared with"
        if options.value(self.config, "temperature").strip() not in ("0", "1", "0.0", "1.0"):
            return "outputs are compared at temperature 0 or 1: servers' log-probabilities of others differ in meaning"
        return ""

    def certificates(self) -> list[Certificate]:
        """The certificates of every endpoint but the first; skips the test that asks where nothing can be compared."""
        reason = self._why_not()
        if reason:
            pytest.skip(reason)
        assert self.bench is not None
        dtype = options.value(self.config, "certify")
        return self.bench.certify("unknown" if dtype == "auto" else dtype)

    def _keep(self, bench: ServingBench) -> None:
        """Write what is there to one file, replacing the file of the block before in one go."""
        root = options.results_root(self.config)
        if root is None:
            return
        from benchsuite.machine.files import strict_json, write_file

        write_file(self._partial(root), strict_json(bench.as_json()).encode())

    def _partial(self, root: Path) -> Path:
        return root / "serving-partial.json"

    def figures(self, load: str) -> list[EndpointFigures]:
        """The figures of every endpoint under a load, measured when they are first asked for."""
        assert self.bench is not None
        return self.bench.measure(self._loads[load])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folder."""
        measured = self.bench is not None and (self.bench.blocks or self.bench.certificates)
        root = options.results_root(self.config) if measured else None
        if self.bench is not None:
            self.bench.servers.close()
        if root is None or self.bench is None:
            return
        from benchsuite.report.serving import write_serving

        try:
            self.outcome = f"results: {write_serving(root, self.bench, self.bench.said, exitstatus == 0)}"
            self._partial(root).unlink(missing_ok=True)
        except OSError as error:
            self.outcome = f"the results could not be written to {root}: {error}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if self.bench is None or not (self.bench.blocks or self.bench.certificates):
            return
        from benchsuite.report.serving import serving_lines

        terminalreporter.section("endpoints", sep="=")
        for line in (*self.bench.said, *serving_lines(self.bench), *([self.outcome] if self.outcome else [])):
            terminalreporter.write_line(line)
