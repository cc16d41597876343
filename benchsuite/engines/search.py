"""The setting with which an engine's server speculates best, over its own plain server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.engines.contenders import Contender
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

ONE = Traffic(concurrency=1)


@dataclass(frozen=True)
class ServerSetting:
    """A contender with one K, None for the engine's own, and with ``settings`` in the engine's own words."""

    contender: Contender
    k: int | None = None
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The contender's name with what it is set to: ``llama simple K = 4, size_n=3``."""
        given = [] if self.k is None else [f"K = {self.k}"]
        given += [one.rpartition(".")[2] for one in self.settings]
        return " ".join([self.contender.name, ", ".join(given)]).strip()


CommandOf = Callable[[ServerSetting, int], str]
"""The command of a server at a port."""


@dataclass(frozen=True)
class TriedSetting:
    """A setting with its ``speed``, how many times as fast as its engine's plain server it was, or ``why`` it has
    none."""

    setting: ServerSetting
    speed: float | None = None
    why: str = ""


def search_settings(
    contenders: Sequence[Contender],
    command_of: CommandOf,
    prompts: Sequence[tuple[str, str]],
    tokens: int,
    port: int,
    say: Callable[[str], None],
) -> list[TriedSetting]:
    """Measure each contender of one engine with each of its settings beside the first one, which decodes plainly; one
    request at a time, prompts in turn.

    A server that does not start, or an answer that cannot be used, costs its own setting. SpecdecError if the plain
    server does not start.
    """
    plain, *others = contenders
    first, other = Endpoint("plain", f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{port + 1}"
    cases = [ServerSetting(one, k, more) for one in others for more in one.settings for k in one.ks or (None,)]
    commands = {case.name: command_of(case, port + 1) for case in cases}
    found: list[TriedSetting] = []
    servers = ServersInTurn({"plain": command_of(ServerSetting(plain), port), **commands})
    try:
        servers.connect(first)
        for case in cases:
            found.append(_tried(TriedSetting(case), first, Endpoint(case.name, other), servers, prompts, tokens))
            say(f"{case.name}: {found[-1].why or f'{found[-1].speed:.2f}x of {plain.name}'}")
    finally:
        servers.close()
    return found


def _tried(
    case: TriedSetting,
    plain: Endpoint,
    endpoint: Endpoint,
    servers: ServersInTurn,
    prompts: Sequence[tuple[str, str]],
    tokens: int,
) -> TriedSetting:
    bench = ServingBench(ServingPlan((plain, endpoint), tuple(prompts), Ask("", tokens)), servers=servers)
    try:
        *_, mine = bench.measure(ONE)
    except SpecdecError as error:
        return replace(case, why=str(error).splitlines()[0])
    speed = mine.decoding or mine.speed
    return replace(case, speed=speed.ratio) if speed else replace(case, why=mine.why or "no answer was timed")


def best_settings(tried: Sequence[TriedSetting]) -> list[ServerSetting]:
    """The setting with which each contender was fastest; without those that were measured with none."""
    best: dict[Contender, TriedSetting] = {}
    for one in tried:
        known = best.get(one.setting.contender)
        if one.speed is not None and (known is None or one.speed > (known.speed or 0.0)):
            best[one.setting.contender] = one
    return [one.setting for one in best.values()]
