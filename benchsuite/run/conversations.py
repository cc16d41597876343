"""The part of the plugin that replays conversations: ``pytest -m conversations``.

Imports no torch until an item runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchsuite.run.serving import servers_of, started_servers
from benchsuite.run.target_plugin import TargetPlugin

if TYPE_CHECKING:
    from benchsuite.benches.conversations.bench import ConversationBench, ConversationPlan
    from benchsuite.report.document import Document
    from benchsuite.run.request import RunRequest
    from specdec.catalog import Loaded
    from specdec.model import ArenaModel

SERVERS = "servers"
"""The item of a run that names servers and no target: the engine answers nothing."""


class ConversationPlugin(TargetPlugin["ConversationBench"]):
    """Builds one ``ConversationBench`` for each target of the run, with the servers of the run beside it."""

    fixture = "specdec_conversations"
    title = "conversations"

    def __init__(self, config: pytest.Config, request: RunRequest) -> None:
        super().__init__(config, request)
        self.rows = max(request.batch)

    @property
    def served_alone(self) -> bool:
        """Whether servers are named and no target."""
        return bool(self.request.endpoint) and "target" not in self.request.given

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item for each target of every test that uses the fixture, or one of servers alone."""
        if self.fixture in metafunc.fixturenames and self.served_alone:
            metafunc.parametrize(self.fixture, [SERVERS], indirect=True)
        else:
            super().pytest_generate_tests(metafunc)

    def bench(self, name: str) -> ConversationBench:
        """Return the benchmark of one item, built once; fails the test if it cannot be built."""
        from specdec.errors import SpecdecError, folded

        if name == SERVERS and name not in self.benches:
            from benchsuite.benches.conversations.bench import ConversationBench

            try:
                self.request.results_root()  # raises before the timing, not after it
                plan = self._plan()
                self.benches[name] = ConversationBench(plan, servers=servers_of(self.request, plan.endpoints))
                self.benches[name].prepare()
            except SpecdecError as error:
                pytest.fail(folded(str(error)), pytrace=False)
        return super().bench(name)

    def build(self, name: str, loaded: Loaded, target: ArenaModel) -> ConversationBench:
        """Return the benchmark of one target and the servers. SpecdecError for what cannot be meant."""
        from benchsuite.benches.conversations.bench import ConversationBench, EngineRows
        from benchsuite.run.matrix import engine_arms

        plan = self._plan()
        engine = EngineRows(name, loaded, target, engine_arms(self.request, self.settings()[name]), plan, self.rows)
        bench = ConversationBench(plan, engine, servers_of(self.request, plan.endpoints))
        bench.prepare()
        return bench

    def _plan(self) -> ConversationPlan:
        import secrets
        from random import Random

        from benchsuite.benches.conversations.bench import ConversationPlan
        from benchsuite.benches.conversations.progress import Prefix
        from benchsuite.benches.serving.figures import Slo
        from benchsuite.measure.conversations import read_trace, workload_conversations
        from benchsuite.measure.workloads import load_workload
        from benchsuite.run.names import named_workloads
        from specdec.errors import SpecdecError
        from specdec_plugins.endpoints.client import Ask

        request = self.request
        if request.sampling["temperature"] != (0.0,):
            raise SpecdecError(
                f"--specdec-temperature is {request.texts['temperature']!r}; conversations are greedy, so that answers "
                "can be compared: leave it out"
            )
        for option in ("max_new_tokens", "concurrency"):
            given = request.sampling.get(option, request.concurrency or ())
            if len(given) > 1:
                name = option.replace("_", "-")
                raise SpecdecError(f"--specdec-{name} is {request.texts[name]!r}; conversations have one value of it")
        [most] = request.sampling["max_new_tokens"]
        if request.trace:
            found = read_trace(request.trace)[: request.prompts]
            prefixes: tuple[Prefix, ...] = (Prefix.RECORDED,)
        else:
            names = named_workloads(request)
            found = workload_conversations([load_workload(name).first(request.prompts) for name in names])
            prefixes = (Prefix.WARM, Prefix.COLD)
        timed = found[0].begins is not None
        return ConversationPlan(
            tuple(found),
            started_servers(request).endpoints,
            Ask("", int(most), chat=request.endpoint_api == "chat"),
            None if timed else (request.concurrency or (1,))[0],
            prefixes,
            request.pairs or 1,
            Slo(**request.slo) if request.slo else None,
            request.seed,
            Random(secrets.randbits(64)),
        )

    def measured(self, bench: ConversationBench) -> bool:
        """Whether a block was answered."""
        return bool(bench.blocks)

    def document(self, bench: ConversationBench) -> Document:
        """Return the report of one item."""
        from benchsuite.report.conversations import conversations_document

        return conversations_document(bench, self.card)

    def write(self, root: Path, bench: ConversationBench, complete: bool) -> Path:
        """Write table and JSON of one item, and end the servers that were started."""
        from benchsuite.report.conversations import write_conversations

        name = bench.engine.name if bench.engine else SERVERS
        return write_conversations(root, name, bench, self.card, complete)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the results folders, and end servers that were started."""
        for bench in self.benches.values():
            bench.servers.close()
        super().pytest_sessionfinish(session, exitstatus)
