"""``python -m benchsuite engines set-up|serve|bench|record|acceptance`` and ``python -m benchsuite guests``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specdec.errors import SpecdecError

SHOWN = "(default: %(default)s)"


def add_engines(commands: Any) -> Any:
    """Add the command ``engines`` to a parser's commands, and return its own commands; each handler is the attribute
    ``run`` of what is parsed."""
    engines = commands.add_parser("engines", help="engines of others: set up, serve, record (docs/engines.md)")
    parts = engines.add_subparsers(required=True, metavar="COMMAND")
    made = parts.add_parser("set-up", help="make a virtual environment for each engine, of pinned versions")
    made.add_argument("names", nargs="*", metavar="NAME", help="vllm, llama_cpp or peers; default: all")
    made.set_defaults(run=_set_up)
    served = parts.add_parser("serve", help="start an engine's server; Ctrl-C or SIGTERM ends it")
    served.add_argument("name", metavar="NAME", help="vllm or llama_cpp")
    served.add_argument("--model", required=True, help="smollm2-135m, a folder (vllm), a GGUF file (llama_cpp)")
    served.add_argument("--speculation", default="", metavar="HOW", help="ngram, specdec:suffix … (docs/engines.md)")
    served.add_argument("--k", help="proposals of a step; default: 4 (vllm), the engine's own (llama_cpp)")
    served.add_argument("--draft-model", metavar="MODEL", help="as --model, for a speculation that needs one")
    served.add_argument("--port", default="8000", help=f"on the loopback address {SHOWN}")
    served.add_argument("--threads", help="default: as many as there are cores")
    served.add_argument("--max-length", default="2048", help=f"most tokens of a prompt and its answer {SHOWN}")
    served.add_argument("--rows", default="4", help=f"most requests at once {SHOWN}")
    served.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting in its own words")
    served.set_defaults(run=_serve)
    compared = parts.add_parser(
        "bench", help="every engine's speculation at its best, certified, in one table with ours"
    )
    compared.add_argument("names", nargs="*", metavar="NAME", help="engines with a server; default: llama_cpp vllm")
    compared.add_argument("--model", default="smollm2-135m", help=f"a target that all of them read {SHOWN}")
    kinds = "chat,question_answering,code_editing,rewriting"
    compared.add_argument("--workload", default=kinds, help=f"kinds of text {SHOWN}")
    compared.add_argument("--prompts", default="3", help=f"of each kind {SHOWN}")
    compared.add_argument("--max-new-tokens", default="48", help=f"tokens of an answer {SHOWN}")
    compared.add_argument("--temperature", default="0", help=f"of the table; certificates have both {SHOWN}")
    compared.add_argument("--results", type=Path, default="results", help=f"the folder of results {SHOWN}")
    known = "a file of settings that a search has written, or none: each engine's own"
    compared.add_argument("--settings", metavar="FILE", help=f"{known}; default: they are searched for")
    compared.add_argument("--no-certificates", action="store_true", help="the table alone")
    compared.set_defaults(run=_bench)
    for part in (made, served, compared):
        part.add_argument("--into", type=Path, default=".engines", help=f"the folder of all environments {SHOWN}")
    recorded = parts.add_parser("record", help="keep what a running server answers to all that is read of servers")
    recorded.add_argument("url", help="its address: http://127.0.0.1:8000, with #model if it has several")
    recorded.add_argument("--into", type=Path, required=True, metavar="FILE", help="to be made; .gz compresses it")
    recorded.add_argument("--note", action="append", default=[], metavar="NAME=TEXT", help="kept beside the answers")
    recorded.set_defaults(run=_record)
    _add_acceptance(parts)
    return parts


def _add_acceptance(parts: Any) -> None:
    """Add the command that tests a server's chosen acceptance."""
    tested = parts.add_parser("acceptance", help="whether a running server accepts as it was told to (vLLM: synthetic)")
    tested.add_argument("url", help="its address: http://127.0.0.1:8000, with #model if it has several")
    tested.add_argument("--k", required=True, help="proposals of a step")
    chosen = tested.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--length", help="mean tokens of a step, of least variance: 2.6")
    chosen.add_argument("--rate", help="of each proposal, given those before it: 0.7")
    chosen.add_argument("--rates", help="the same for each position: 0.7-0.5-0.3")
    chosen.add_argument("--histogram", help="probabilities of 0, 1, … K accepted: 0.3-0.35-0.245-0.105")
    tested.add_argument("--steps", help="counted at least; default: enough for every fault that is listed")
    tested.set_defaults(run=_acceptance)


def add_guests(commands: Any) -> None:
    """Add the command ``guests``."""
    guests = commands.add_parser("guests", help="drafts of other projects, certified (docs/other-projects.md)")
    guests.add_argument("names", nargs="*", metavar="NAME", help="arctic_suffix, rest …; default: all")
    guests.add_argument("--into", type=Path, default=".guests", help=f"the folder of all environments {SHOWN}")
    guests.set_defaults(run=_guests)


def _set_up(given: argparse.Namespace) -> None:
    from benchsuite.engines.environments import set_up_engines
    from benchsuite.engines.pins import chosen_pins

    if failed := set_up_engines(chosen_pins(given.names), given.into, _say):
        raise SpecdecError(f"not set up, for the reasons above: {', '.join(failed)}")


def _guests(given: argparse.Namespace) -> None:
    from benchsuite.engines.guests import chosen_guests, run_guests

    guests = chosen_guests(given.names)
    skipped, failed = run_guests(guests, given.into, _say)
    if failed or len(skipped) == len(guests):
        raise SpecdecError(f"certified {len(guests) - len(skipped) - len(failed)} of {len(guests)} guests, see above")


def _serve(given: argparse.Namespace) -> None:
    from benchsuite import values
    from benchsuite.engines.environments import ready_folder
    from benchsuite.engines.launches import WantedServer, own_cores, server_command
    from benchsuite.engines.pins import chosen_pins
    from benchsuite.engines.served import serve_until_signal

    [engine] = chosen_pins([given.name])
    names = ("port", "k", "threads", "max_length", "rows")
    written = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    numbers = {name: values.whole_number(text, f"--{name.replace('_', '-')}") for name, text in written.items()}
    wanted = WantedServer(
        given.model,
        speculation=given.speculation,
        draft_model=given.draft_model,
        more=tuple(given.set),
        **{"threads": own_cores(), **numbers},
    )
    command = server_command(engine.name, ready_folder(engine, given.into), wanted)
    serve_until_signal(engine.name, command, wanted.port, _say)


def _bench(given: argparse.Namespace) -> None:
    from benchsuite import values
    from benchsuite.engines.bench import EnginesPlan, bench_engines, commands_of, known_settings, suite_python
    from benchsuite.engines.served import interrupting_signals
    from benchsuite.measure.workloads import workload_names
    from specdec.lists import split_list

    text = given.settings
    known = None if text is None else {} if text == "none" else known_settings(Path(text))
    plan = EnginesPlan(
        tuple(given.names or ("llama_cpp", "vllm")),
        given.model,
        given.into,
        given.results,
        suite_python(given.into),
        tuple(name for text in split_list(given.workload) for name in workload_names(text)),
        values.whole_number(given.prompts, "--prompts"),
        values.whole_number(given.max_new_tokens, "--max-new-tokens"),
        known,
        not given.no_certificates,
        given.temperature,
    )
    try:
        with interrupting_signals():
            failed = bench_engines(plan, commands_of(plan), _say)
    except KeyboardInterrupt:
        raise SpecdecError("interrupted; every server has ended") from None
    if failed:
        raise SpecdecError("something above has failed or was left out; each has its reason there")


def _record(given: argparse.Namespace) -> None:
    from benchsuite.engines.record import record_server
    from specdec_plugins.endpoints.named import parse_endpoints

    if wrong := [text for text in given.note if "=" not in text]:
        raise SpecdecError(f"--note {wrong[0]!r} has no text; write NAME=TEXT")
    [endpoint] = parse_endpoints(f"recorded={given.url}")
    record_server(endpoint, given.into, dict(text.split("=", 1) for text in given.note))
    _say(str(given.into))


def _acceptance(given: argparse.Namespace) -> None:
    import asyncio

    from benchsuite import values
    from benchsuite.engines.acceptance import check_server, enough_steps
    from specdec_plugins.endpoints.named import parse_endpoints
    from specdec_plugins.schedule import schedule_of

    rate, length = (None if text is None else values.number(text) for text in (given.rate, given.length))
    k = values.whole_number(given.k, "--k")
    schedule = schedule_of(k, rate, length, given.rates or "", given.histogram or "")
    steps = enough_steps(schedule) if given.steps is None else values.whole_number(given.steps, "--steps")
    [endpoint] = parse_endpoints(f"server={given.url}")
    check = asyncio.run(check_server(endpoint, schedule, steps))
    _say("\n".join(check.lines))
    if check.failure:
        raise SpecdecError(f"{given.url} does not accept as asked, see above")


def _say(line: str) -> None:
    print(line, flush=True)
