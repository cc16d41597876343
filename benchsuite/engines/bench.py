"""``engines bench``: every engine's speculation at its own best, certified, and in one table with ours.

The settings of each server are searched for. Then the best of all run at once: all stand in one run of the main job,
beside our own rows and the engines with an interface of Python. At last those of an engine are certified by its plain
server, greedy and sampled, completions and chat.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchsuite.benches.serving.bench import prompts_of
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.engines.contenders import CONTENDERS, OURS_HERE, PEERS, Contender
from benchsuite.engines.environments import ready_folder
from benchsuite.engines.launches import WantedServer, own_cores, server_command
from benchsuite.engines.pins import chosen_pins
from benchsuite.engines.search import CommandOf, ServerSetting, best_settings, search_settings
from benchsuite.machine.files import strict_json, write_file
from benchsuite.machine.user_files import UserFileError, parsed_json, user_text
from benchsuite.measure.workloads import load_workload
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.named import Endpoint

SEARCHED = 1
"""Prompts of each workload with which settings are searched for: those behind the table's."""

NEEDED_GB = {"vllm": 3.5, "llama_cpp": 0.3}
"""Memory that a server of an engine takes with the embedded model."""

SUITE_GB = 10.0
"""Memory that the run of the table takes beside the servers: the target, and the models of every peer of Python."""

JUDGE_GB = 3.0
"""Memory that the run of a certificate takes beside the servers."""

SETTINGS = "engines-settings.json"
"""The file of the best settings, in the folder of results."""

CERTIFIED = (
    ("completions, greedy", ()),
    ("completions, sampled", ("--specdec-temperature", "1")),
    ("chat, greedy", ("--specdec-endpoint-api", "chat")),
    ("chat, sampled", ("--specdec-endpoint-api", "chat", "--specdec-temperature", "1")),
)
"""Ways in which servers are certified, with the options of ``pytest -m serving``."""

Say = Callable[[str], None]
Run = Callable[[Sequence[str]], int]
"""Runs a command, which prints; returns its exit code."""


@dataclass(frozen=True)
class EnginesPlan:
    """What is run.

    ``engines``: those with a server; ``into``: the folder of all environments. ``prompts`` of each of the
    ``workloads``, with ``max_new_tokens`` each, at ``temperature`` in the table. ``known``: K and further settings of
    contenders by their names, so that none are searched for, and an engine's own where one is not named.
    ``certified``: whether servers are certified.
    ``python`` runs the suite: that of the environment ``peers`` has the engines with an interface of Python.
    ``results``: the folder of results. ``port``: the first server's; each further one has the next.
    """

    engines: tuple[str, ...]
    model: str
    into: Path
    results: Path
    python: str
    workloads: tuple[str, ...]
    prompts: int
    max_new_tokens: int
    known: Mapping[str, tuple[int | None, tuple[str, ...]]] | None = None
    certified: bool = True
    temperature: str = "0"
    contenders: tuple[Contender, ...] = CONTENDERS
    port: int = 8600


@dataclass(frozen=True)
class RunningServer:
    """A contender's server."""

    setting: ServerSetting
    endpoint: Endpoint

    @property
    def contender(self) -> Contender:
        """What is set so."""
        return self.setting.contender


def commands_of(plan: EnginesPlan) -> CommandOf:
    """Return what makes the command of a contender's server. SpecdecError if an engine is not set up."""
    folders = {one.name: ready_folder(one, plan.into) for one in chosen_pins([*plan.engines])}

    def command_of(setting: ServerSetting, port: int) -> str:
        one = setting.contender
        draft = plan.model if one.drafts else None
        wanted = WantedServer(plan.model, port, one.speculation, setting.k, draft, own_cores(), more=setting.settings)
        return server_command(one.engine, folders[one.engine], wanted)

    return command_of


def run_printing(command: Sequence[str]) -> int:
    """Run a command, which prints where this process does; return its exit code."""
    return subprocess.run(command, check=False).returncode


def bench_engines(plan: EnginesPlan, command_of: CommandOf, say: Say, run: Run = run_printing) -> int:
    """Search, measure and certify; return 0 if every server ran, none is a bug, and no row failed, else 1."""
    best, left = _settings(plan, command_of, say)
    peers, missing = peers_of(plan.python, plan.model)
    for line in missing:
        say(line)
    codes, started = list[int](), set[ServerSetting]()
    for settings in tables_that_fit(best, _free_gb() - SUITE_GB):
        with _running(plan, settings, command_of, say) as running:
            if peers or any(one.contender.speculation for one in running):
                codes.append(run(_main_job(plan, peers, running)))
        started |= {one.setting for one in running}
        peers = []
    # All tables come first: certificates of many servers take longer than the tables do.
    for engine in plan.engines if plan.certified else ():
        mine = [one for one in best if one.contender.engine == engine and one in started]
        for settings in tables_that_fit(mine, _free_gb() - JUDGE_GB):
            with _running(plan, settings, command_of, say) as running:
                codes += [_certify(plan, running, options, f"{engine}: {how}", say, run) for how, options in CERTIFIED]
            started -= {*settings} - {one.setting for one in running}
    return int(bool(left or {*best} - started) or any(codes))


def _free_gb() -> float:
    return psutil.virtual_memory().available / 1e9


@contextmanager
def _running(
    plan: EnginesPlan, settings: Sequence[ServerSetting], command_of: CommandOf, say: Say
) -> Iterator[list[RunningServer]]:
    """The servers of ``settings`` that start, until the block ends; a line says why another does not."""
    wanted = [
        RunningServer(one, Endpoint(one.contender.name.replace(" ", "-"), f"http://127.0.0.1:{plan.port + place}"))
        for place, one in enumerate(settings)
    ]
    commands = {one.endpoint.name: command_of(one.setting, plan.port + place) for place, one in enumerate(wanted)}
    with closing(ServersInTurn(commands)) as servers:
        yield [one for one in wanted if _started(servers, one, say)]


def tables_that_fit(settings: Sequence[ServerSetting], gigabytes: float) -> list[list[ServerSetting]]:
    """Return the settings of one table after another, as many in each as the memory has room for, in their order.

    Each table has the plain server of every engine in it. One server beside its plain one is tried however little there
    is.
    """
    plain = {one.contender.engine: one for one in settings if not one.contender.speculation}
    found: list[list[ServerSetting]] = []
    for one in settings:
        if one in plain.values():
            continue
        added = [own for own in [plain.get(one.contender.engine)] if own and (not found or own not in found[-1])]
        table = [*(found[-1] if found else ()), *added, one]
        if found and sum(NEEDED_GB[each.contender.engine] for each in table) > gigabytes:
            found.append([*(own for own in [plain.get(one.contender.engine)] if own), one])
        else:
            found[-1:] = [table]
    return found


def _settings(plan: EnginesPlan, command_of: CommandOf, say: Say) -> tuple[list[ServerSetting], int]:
    """The settings that run, the best of each contender, and how many contenders have none."""
    best, left = list[ServerSetting](), 0
    workloads = [load_workload(name) for name in plan.workloads]
    every = prompts_of(workloads)
    table = {text for workload in workloads for text in workload.first(plan.prompts).prompts}
    rest = [pair for pair in every if pair[1] not in table]
    prompts = [pair for label in dict.fromkeys(label for label, _ in every) for pair in _of(rest, label)[:SEARCHED]]
    for engine in plan.engines:
        mine = [one for one in plan.contenders if one.engine == engine]
        if plan.known is not None:
            best += [ServerSetting(one, *plan.known.get(one.name, ())) for one in mine]
            continue
        say(f"{engine}: settings are searched for with {len(prompts)} prompts that the table does not have")
        found = best_settings(search_settings(mine, command_of, prompts, plan.max_new_tokens, plan.port, say))
        best += [ServerSetting(mine[0]), *found]
        say(f"{engine}: in the table: {'; '.join(one.name for one in found)}")
        left += len(mine) - 1 - len(found)
    if plan.known is None:
        kept = {one.contender.name: [one.k, [*one.settings]] for one in best if one.contender.speculation}
        plan.results.mkdir(parents=True, exist_ok=True)
        write_file(plan.results / SETTINGS, strict_json(kept).encode())
        say(f"settings: {plan.results / SETTINGS}; --settings with this file leaves the search out")
    return best, left


def known_settings(path: Path) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """Return the settings of a file that a search has written. SpecdecError for any other."""
    try:
        found = parsed_json(user_text(path))
        return {str(name): (k if k is None else int(k), tuple(map(str, more))) for name, (k, more) in found.items()}
    except (UserFileError, AttributeError, TypeError, ValueError) as error:
        raise SpecdecError(f"--settings {path}: {error}; expected the {SETTINGS} that a search has written") from None


def _of(pairs: Sequence[tuple[str, str]], label: str) -> list[tuple[str, str]]:
    return [pair for pair in pairs if pair[0] == label]


def _started(servers: ServersInTurn, one: RunningServer, say: Say) -> bool:
    """Whether a server runs now; a line says why not."""
    try:
        servers.connect(one.endpoint)
    except SpecdecError as error:
        say(f"{one.contender.name}: left out: {error}")
        return False
    return True


ASKED = """
import json, sys
from benchsuite.measure.peers import parse_peer
from specdec.errors import SpecdecError
for peer in json.loads(sys.argv[1]):
    try:
        parse_peer(peer)
        print(json.dumps([peer, ""]))
    except SpecdecError as error:
        print(json.dumps([peer, str(error)]))
"""


def peers_of(python: str, model: str) -> tuple[list[str], list[str]]:
    """Return the peers that a Python can run, and a line for each of the others. SpecdecError if it has no suite."""
    asked = [python, "-c", ASKED, json.dumps([peer.format(model=model) for peer in PEERS])]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpecdecError(f"{python} cannot run the suite: {done.stderr.strip().splitlines()[-1]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [peer for peer, why in found if not why], [f"{peer}: left out: {why}" for peer, why in found if why]


def _main_job(plan: EnginesPlan, peers: Sequence[str], started: Sequence[RunningServer]) -> list[str]:
    """The command of the table."""
    plain = {one.contender.engine: one.endpoint.name for one in started if not one.contender.speculation}
    rows = [*peers]
    for one in started:
        engine = one.contender.engine
        named = f"url={one.endpoint.url}, name={one.endpoint.name}, server={engine}"
        own = f", plain={plain[engine]}" if one.contender.speculation and engine in plain else ""
        rows.append(f"endpoint({named}{own})")
    return [
        *(plan.python, "-m", "pytest", "--pyargs", "benchsuite.test_speculation", "--benchmark-quiet"),
        *("--specdec-target", plan.model, "--specdec-arm", OURS_HERE, "--specdec-peer", ", ".join(rows)),
        *("--specdec-temperature", plan.temperature, "--specdec-across", "dtype,compile", *_shared(plan)),
    ]


def _shared(plan: EnginesPlan) -> tuple[str, ...]:
    return (
        *("--specdec-workload", ",".join(plan.workloads), "--specdec-prompts", str(plan.prompts)),
        *("--specdec-max-new-tokens", str(plan.max_new_tokens), "--specdec-results", str(plan.results)),
    )


def _certify(
    plan: EnginesPlan, mine: Sequence[RunningServer], options: Sequence[str], title: str, say: Say, run: Run
) -> int:
    """Certify an engine's servers by its plain one, in one way; no speed of this run is meant."""
    if len(mine) < 2 or mine[0].contender.speculation:
        return 0  # what did not start has failed the run already
    say(f"\n{title}")
    endpoints = ",".join(f"{one.endpoint.name}={one.endpoint.url}" for one in mine)
    # The target itself judges what was sampled: with its long lists few tokens show a filter, and llama.cpp's server
    # reads no text with log-probabilities.
    judge = ("--specdec-certify-by", plan.model) if "--specdec-temperature" in options else ()
    job = (plan.python, "-m", "pytest", "--pyargs", "benchsuite.test_serving", "-m", "serving", "--benchmark-quiet")
    return run([*job, "--specdec-endpoint", endpoints, "--specdec-concurrency", "1", *options, *judge, *_shared(plan)])


def suite_python(into: Path) -> str:
    """The Python that runs the suite: that of the environment ``peers``, if it is set up, else this one."""
    try:
        [peers] = chosen_pins(["peers"])
        return str(ready_folder(peers, into) / "bin" / "python")
    except SpecdecError:
        return sys.executable
