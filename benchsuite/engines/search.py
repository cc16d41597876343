"""The K with which an engine's server speculates best, over its own plain server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchsuite.benches.serving.bench import ServingBench, ServingPlan
from benchsuite.benches.serving.load import Traffic
from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.engines.contenders import Contender
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.named import Endpoint

ONE = Traffic(concurrency=1)

CommandOf = Callable[[Contender, int | None, int], str]
"""The command of a contender's server with a K at a port."""


@dataclass(frozen=True)
class TriedK:
    """A contender with one K: ``speed``, how many times as fast as its engine's plain server it was; ``why`` it has
    none."""

    contender: Contender
    k: int | None
    speed: float | None = None
    why: str = ""


def search_ks(
    contenders: Sequence[Contender],
    command_of: CommandOf,
    prompts: Sequence[tuple[str, str]],
    tokens: int,
    port: int,
    say: Callable[[str], None],
) -> list[TriedK]:
    """Measure each contender of one engine with each of its K beside the first one, which decodes plainly; one request
    at a time, prompts in turn.

    A server that does not start, or an answer that cannot be used, costs its own K. SpecdecError if the plain server
    does not start.
    """
    plain, *others = contenders
    first, other = Endpoint("plain", f"http://127.0.0.1:{port}"), f"http://127.0.0.1:{port + 1}"
    cases = {_name(one, k): (one, k) for one in others for k in one.ks or (None,)}
    commands = {name: command_of(*case, port + 1) for name, case in cases.items()}
    found: list[TriedK] = []
    servers = ServersInTurn({"plain": command_of(plain, None, port), **commands})
    try:
        servers.connect(first)
        for name, (one, k) in cases.items():
            found.append(_tried(TriedK(one, k), first, Endpoint(name, other), servers, prompts, tokens))
            say(f"{name}: {found[-1].why or f'{found[-1].speed:.2f}x of {plain.name}'}")
    finally:
        servers.close()
    return found


def _name(one: Contender, k: int | None) -> str:
    return one.name if k is None else f"{one.name} K = {k}"


def _tried(
    case: TriedK,
    plain: Endpoint,
    endpoint: Endpoint,
    servers: ServersInTurn,
    prompts: Sequence[tuple[str, str]],
    tokens: int,
) -> TriedK:
    bench = ServingBench(ServingPlan((plain, endpoint), tuple(prompts), Ask("", tokens)), servers=servers)
    try:
        *_, mine = bench.measure(ONE)
    except SpecdecError as error:
        return replace(case, why=str(error).splitlines()[0])
    speed = mine.decoding or mine.speed
    return replace(case, speed=speed.ratio) if speed else replace(case, why=mine.why or "no answer was timed")


def best_ks(tried: Sequence[TriedK]) -> Mapping[Contender, int | None]:
    """The K with which each contender was fastest; without those that were with none."""
    best: dict[Contender, TriedK] = {}
    for one in tried:
        if one.speed is not None and one.speed > (best[one.contender].speed or 0.0 if one.contender in best else 0.0):
            best[one.contender] = one
    return {contender: one.k for contender, one in best.items()}
