"""Servers whose command takes K: one endpoint for each width of the window, started in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchsuite.benches.serving.restarts import read_commands
from specdec.errors import SpecdecError
from specdec_plugins.endpoints.named import Endpoint

K = "{k}"
"""What a command has in place of the proposals of a step."""


@dataclass(frozen=True)
class StartedEndpoints:
    """Endpoints, the command of each that is started, and the width of each that stands for one."""

    endpoints: tuple[Endpoint, ...]
    commands: Mapping[str, str]
    widths: Mapping[str, int]


def started_endpoints(
    endpoints: Sequence[Endpoint], start: Path | None, widths: Sequence[int] | None
) -> StartedEndpoints:
    """Return the endpoints with the commands of the file ``start``.

    An endpoint whose command has ``{k}`` becomes one for each of the ``widths`` above 1, named ``spec-w9`` and with 8
    in place of ``{k}``. SpecdecError where one has it and there are no widths, or none has it and there are.
    """
    commands = {} if start is None else read_commands(start, endpoints)
    of_k = [name for name, text in commands.items() if K in text]
    if widths and not of_k:
        where = f"no command in {start} has it" if start else "there is no --specdec-endpoint-start"
        raise SpecdecError(
            f"--specdec-width takes a server whose command has {K} in place of its number of proposals, and {where}; "
            "write spec: vllm serve … '{\"num_speculative_tokens\":{k}}', or leave out --specdec-width"
        )
    if of_k and not widths:
        raise SpecdecError(f"the command of {of_k[0]} in {start} has {K}: say which widths, --specdec-width 1-16")
    found, own, known = list[Endpoint](), dict[str, str](), dict[str, int]()
    for endpoint in endpoints:
        if endpoint.name not in of_k:
            found.append(endpoint)
            own |= {name: text for name, text in commands.items() if name == endpoint.name}
            continue
        for width in widths or ():
            if width > 1:
                name = f"{endpoint.name}-w{width}"
                found.append(replace(endpoint, name=name))
                own[name], known[name] = commands[endpoint.name].replace(K, str(width - 1)), width
    return StartedEndpoints(tuple(found), own, known)
