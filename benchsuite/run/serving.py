"""The part of the plugin that measures servers: ``pytest -m serving --specdec-endpoint …``.

Imports no torch and no httpx until an item runs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchsuite.machine.files import FolderLock
from benchsuite.run.judged import GateItem

if TYPE_CHECKING:
    from benchsuite.benches.serving.asked import Read
    from benchsuite.benches.serving.bench import ServingBench, ServingPlan
    from benchsuite.benches.serving.certificate import Certificate
    from benchsuite.benches.serving.figures import EndpointFigures
    from benchsuite.benches.serving.load import Traffic
    from benchsuite.benches.serving.restarts import ServersInTurn
    from benchsuite.benches.serving.widths import StartedEndpoints
    from benchsuite.run.request import RunRequest
    from specdec_plugins.endpoints.named import Endpoint

CERTIFICATES = "specdec_certificates"
NONE = "no endpoint is given: --specdec-endpoint plain=http://localhost:8000,spec=http://localhost:8001 names servers"


def started_servers(request: RunRequest) -> StartedEndpoints:
    """Return the servers of a request with its time limits, and the commands of those that are started.

    Raises SpecdecError as ``started_endpoints``.
    """
    from dataclasses import replace

    from benchsuite.benches.serving.widths import started_endpoints

    found = started_endpoints(request.endpoint, request.endpoint_start, request.width)
    if total := request.timeout:
        timed = tuple(replace(one, total_s=total, read_s=min(one.read_s, total)) for one in found.endpoints)
        return replace(found, endpoints=timed)
    return found


def servers_of(request: RunRequest, endpoints: Sequence[Endpoint]) -> ServersInTurn:
    """Return what starts a request's servers when they are asked, and connects to them.

    Raises SpecdecError for two servers of one address of which none is started.
    """
    from benchsuite.benches.serving.restarts import ServersInTurn
    from specdec.errors import SpecdecError

    if request.endpoint_start is not None:
        return ServersInTurn(started_servers(request).commands)
    addresses = [endpoint.url for endpoint in endpoints]
    twice = next((url for url in addresses if addresses.count(url) > 1), None)
    if twice:
        raise SpecdecError(
            f"two endpoints have the address {twice}: give each its own, or --specdec-endpoint-start a file with "
            "the command that starts each"
        )
    return ServersInTurn({})


class ServingPlugin:
    """Makes an item for each load, and one ``ServingBench`` for all of them.

    After every block the results so far are written to ``serving-partial.json`` in the folder of ``--specdec-results``,
    whole or not at all; at the end they become a folder, and that file is removed. A run that finds another one's there
    in the making is refused.
    """

    fixture = "specdec_served"
    """Of the figures; ``CERTIFICATES`` is that of the certificates."""

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        self.config, self.request = config, request
        self.bench: ServingBench | None = None
        self.outcome = ""
        self.loads: dict[str, Traffic] = {}
        self._lock: FolderLock | None = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each load of every test that uses the fixture; without an endpoint, one that is skipped."""
        if self.fixture not in metafunc.fixturenames:
            return
        if not self.request.endpoint:
            skip = pytest.param("none", marks=pytest.mark.skip(reason=NONE))
            metafunc.parametrize(self.fixture, [skip], indirect=True)
            return
        from benchsuite.benches.serving.load import loads_of

        self.loads = {load.id: load for load in loads_of(self.request.concurrency or (), self.request.rate)}
        metafunc.parametrize(self.fixture, list(self.loads), indirect=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Put tests of certificates behind all others, however other plugins order them: a certificate is of the texts
        that were timed. The gate's items judge both."""
        yield
        items.sort(
            key=lambda item: 2 * isinstance(item, GateItem) + (CERTIFICATES in getattr(item, "fixturenames", ()))
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Build the plan and ask every endpoint for its health. UsageError, before any test runs, if that fails."""
        fixtures = (self.fixture, CERTIFICATES)
        mine = [item for item in session.items if set(fixtures) & set(getattr(item, "fixturenames", ()))]
        if not mine or not self.loads or self.config.option.collectonly:
            return
        from benchsuite.benches.serving.bench import ServingBench
        from specdec.errors import SpecdecError

        try:
            if root := self.request.results_root():
                self._lock = FolderLock(root)
            plan = self._plan()
            self.bench = ServingBench(plan, self._keep, servers_of(self.request, plan.endpoints), self._reader())
            self.bench.prepare()
        except SpecdecError as error:
            if self.bench is not None:
                self.bench.servers.close()
            self.bench = None
            self._release()
            raise pytest.UsageError(str(error)) from None

    def _reader(self) -> Read | None:
        if not self.request.certify_by or self.why_uncertified():
            return None
        from benchsuite.benches.serving.local_judge import LocalJudge

        return LocalJudge(self.request.certify_by).read

    def _plan(self) -> ServingPlan:
        import secrets

        from benchsuite.benches.serving.bench import ServingPlan, prompts_of
        from benchsuite.benches.serving.figures import Slo
        from benchsuite.measure.workloads import load_workload
        from benchsuite.run.names import named_workloads
        from specdec_plugins.endpoints.client import Ask

        request, started = self.request, started_servers(self.request)
        endpoints = started.endpoints
        names = named_workloads(request)
        loads = tuple(self.loads.values())
        most = request.prompts and request.prompts * len(loads)
        prompts = prompts_of([load_workload(name).first(most) for name in names])
        heat, tokens = self._one("temperature"), int(self._one("max_new_tokens"))
        # A sampled run with one seed would be the same text in every round; servers differ in what they do with it.
        ask = Ask("", tokens, heat, chat=request.endpoint_api == "chat", seed=request.seed if heat else None)
        slo = Slo(**request.slo) if request.slo else None
        new = f"{secrets.token_hex(4)}: "
        gate = request.gate
        if gate:  # what is compared with the first one is compared with the base
            endpoints = tuple(sorted(endpoints, key=lambda one: one.name != gate.endpoint))
        rounds, gated = request.pairs or 1, gate is not None
        return ServingPlan(endpoints, prompts, ask, rounds, slo, request.seed, loads, new, gated, widths=started.widths)

    def _one(self, name: str) -> float:
        """The value of a parameter of sampling; SpecdecError for several."""
        from specdec.errors import SpecdecError

        found = self.request.sampling[name]
        if len(found) > 1:
            option = name.replace("_", "-")
            raise SpecdecError(
                f"--specdec-{option} is {self.request.texts[option]!r}; endpoints are asked with one value of it"
            )
        return found[0]

    def why_uncertified(self) -> str:
        """Why no output is compared; empty if they are."""
        if not self.request.endpoint:
            return NONE
        if self.request.certify == "off":
            return "--specdec-certify off"
        if len(self.request.endpoint) == 1:
            return "a single endpoint has nothing to be compared with"
        if self.request.sampling["temperature"] not in ((0.0,), (1.0,)):
            return "outputs are compared at temperature 0 or 1: servers' log-probabilities of others differ in meaning"
        return ""

    def certificates(self) -> list[Certificate]:
        """The certificates of every endpoint but the first; skips the test that asks where nothing can be compared."""
        reason = self.why_uncertified()
        if reason:
            pytest.skip(reason)
        assert self.bench is not None
        return self.bench.certify("unknown" if self.request.certify == "auto" else self.request.certify)

    def _keep(self, bench: ServingBench) -> None:
        """Write what is there to one file, replacing the file of the block before in one go."""
        root = self.request.results_root()
        if root is None:
            return
        from benchsuite.machine.files import strict_json, write_file

        write_file(self._partial(root), strict_json(bench.as_json()).encode())

    def _partial(self, root: Path) -> Path:
        return root / "serving-partial.json"

    def figures(self, load: str) -> list[EndpointFigures]:
        """The figures of every endpoint under a load, measured when they are first asked for."""
        assert self.bench is not None
        return self.bench.measure(self.loads[load])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folder."""
        measured = self.bench is not None and (self.bench.blocks or self.bench.certificates)
        root = self.request.results_root() if measured else None
        if self.bench is not None:
            self.bench.servers.close()
        if root is None or self.bench is None:
            return
        from benchsuite.report.serving import write_serving

        try:
            self.outcome = f"results: {write_serving(root, self.bench, exitstatus == 0)}"
            self._partial(root).unlink(missing_ok=True)
        except OSError as error:
            self.outcome = f"the results could not be written to {root}: {error}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Let other runs have the folder."""
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        if self.bench is None or not (self.bench.blocks or self.bench.certificates):
            return
        from benchsuite.report.renderers import terminal
        from benchsuite.report.serving import serving_document

        terminalreporter.section("endpoints", sep="=")
        for line in (*terminal(serving_document(self.bench), titled=False), *([self.outcome] if self.outcome else [])):
            terminalreporter.write_line(line)
