"""``python -m benchsuite COMMAND``: results, advice on a text, engines of others (``--help`` lists the commands)."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from specdec.amounts import amount

SHOWN = "(default: %(default)s)"


def benchsuite_main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code (2 for a SpecdecError, whose text goes to standard error)."""
    given = _parser().parse_args(arguments)
    # Slow imports come after parsing, so that --help and a wrong option answer at once.
    from specdec.errors import SpecdecError, folded

    try:
        given.run(given)
    except SpecdecError as error:
        print(folded(f"benchsuite: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(folded(f"benchsuite: {error.filename}: {error.strerror}; name another file"), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    from benchsuite.engines.commands import add_engines, add_guests

    parser = argparse.ArgumentParser(prog="python -m benchsuite", description="Work with results; advice on a text.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    merge = commands.add_parser("merge", help="put the parts of one run (--specdec-shard) together")
    merge.add_argument("folders", nargs="+", type=Path, help="a folder of results of each part")
    merge.add_argument("--into", required=True, type=Path, help="the folder to be made")
    merge.set_defaults(run=_merge)
    submit = commands.add_parser("submit", help="run pytest in parts, as jobs of a Slurm cluster or of this machine")
    submit.add_argument("--shards", type=int, required=True, help="how many parts")
    submit.add_argument("--into", type=Path, required=True, help="the folder of parts, logs and merged results")
    submit.add_argument("--cluster", choices=("slurm", "local"), help="default: Slurm where there is one, else local")
    submit.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="submitit's: timeout_min=60")
    submit.add_argument("arguments", nargs="+", help="pytest's arguments, after --")
    submit.set_defaults(run=_submit)
    report = commands.add_parser("report", help="write the tables and the page of a run again, from its cells")
    report.add_argument("folder", type=Path, help="a folder of results, also of a run that was killed")
    report.set_defaults(run=_report)
    runs = "a folder of results, a --benchmark-json or --gate-save file, or REV:FILE"
    compare = commands.add_parser("compare", help="what changed between runs, row by row")
    compare.add_argument("base", help=runs)
    compare.add_argument("heads", nargs="+", metavar="run", help="runs that are compared with the first")
    compare.add_argument("--all", action="store_true", help="also rows that did not change")
    compare.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown too")
    compare.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too")
    compare.set_defaults(run=_compare)
    history = commands.add_parser("history", help="every row over any number of runs, as a page")
    history.add_argument("runs", nargs="+", metavar="run", help=runs)
    history.add_argument("--html", type=Path, required=True, metavar="FILE", help="the page to be made")
    history.set_defaults(run=_history)
    convert = commands.add_parser(
        "convert", help="show or convert a result of vLLM bench serve, AIPerf, GuideLLM, or ours"
    )
    convert.add_argument(
        "file", type=Path, help="the result file, recognised by its content, or a server's /metrics page"
    )
    convert.add_argument("--to", choices=("vllm", "aiperf", "guidellm", "ours"), help="default: a table of our words")
    convert.add_argument("--run", dest="one", metavar="NAME", help="one run of the file; default: all")
    convert.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    convert.set_defaults(run=_convert)
    _add_predictions(commands)
    _add_head(commands)
    _add_served_head(add_engines(commands))
    add_guests(commands)
    return parser


def _add_predictions(commands: Any) -> None:
    """The commands that load a target and run it over a kind of text."""
    from benchsuite.predict.ks import KS

    advise = commands.add_parser("advise", help="the fastest draft, controller and K for a text, in some minutes")
    advise.add_argument("--minutes", default="2", help=f"the budget; loading comes before {SHOWN}")
    drafts = "ngram,suffix,hybrid"
    advise.add_argument("--drafts", "--draft", dest="draft", default=drafts, help=f"as a comma list {SHOWN}")
    ks = ",".join(map(str, KS[1:]))
    advise.add_argument("--k", default=ks, help=f"K of fixed, as a comma list; goodput has the largest {SHOWN}")
    advise.add_argument("--temperature", default="0", help=f"0 is greedy {SHOWN}")
    advise.add_argument("--policy", default="match", help=f"policies, as a comma list {SHOWN}")
    advise.set_defaults(run=_advise)
    mapped = commands.add_parser("breakeven", help="the acceptance that K proposals need, by batch and context")
    mapped.add_argument("--drafting", default="0", help=f"cost of a proposal, in forwards of one token {SHOWN}")
    mapped.add_argument("--html", type=Path, metavar="FILE", help="draw it in a page")
    mapped.set_defaults(run=_breakeven)
    for command, batch in ((advise, "1"), (mapped, "1,4")):
        target = f"tiny, smollm2-135m, a folder, a hub id {SHOWN}"
        command.add_argument("--target", default="smollm2-135m", help=target)
        text = f"kinds of text, or .jsonl files: chat,long_2k {SHOWN}"
        command.add_argument("--workload", default="chat", help=text)
        command.add_argument("--batch", default=batch, help=f"batches, as a comma list: 1,4 {SHOWN}")
        command.add_argument("--prompts", default="8", help=f"most prompts of the text {SHOWN}")
        command.add_argument("--max-new-tokens", default="32", help=f"tokens of a text {SHOWN}")
        for name in ("--dtype", "--device", "--backend"):
            command.add_argument(name, default="auto", help=f"as of a run {SHOWN}")
        command.add_argument("--seed", default="0", help=f"as of a run {SHOWN}")
        command.add_argument("--json", type=Path, metavar="FILE", help="write it as JSON too")


def _add_head(commands: Any) -> None:
    """The command that examines a head."""
    from benchsuite.doctor.fields import fields_text

    head = commands.add_parser(
        "head",
        help="what a draft head accepts, and whether it is read rightly (docs/heads.md)",
        epilog=fields_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    head.add_argument("head", help="a published head's folder or file, or a draft: eagle3(head=folder, layers=2-15-27)")
    target = f"the head's target: tiny, smollm2-135m, a folder, a hub id {SHOWN}"
    head.add_argument("--target", "--specdec-target", default="smollm2-135m", help=target)
    text = f"kinds of prompts, or .jsonl files, in turn {SHOWN}"
    head.add_argument("--workload", default="chat,reasoning,multi_turn,json", help=text)
    head.add_argument("--prompts", default="40", help=f"most prompts that the target answers {SHOWN}")
    head.add_argument("--max-new-tokens", default="32", help=f"most tokens of an answer {SHOWN}")
    head.add_argument("--k", default="3", help=f"proposals at each place {SHOWN}")
    for name in ("--dtype", "--device", "--backend"):
        head.add_argument(name, default="auto", help=f"as of a run {SHOWN}")
    head.add_argument("--json", type=Path, metavar="FILE", help="write it as JSON too, with the fields below")
    head.set_defaults(run=_head)


def _add_served_head(engines: Any) -> None:
    """The command that compares a head in an engine's server with our engine."""
    head = engines.add_parser("head", help="what an EAGLE-3 head accepts in vLLM's server, beside our engine")
    head.add_argument("head", help="a head's folder in the form of speculators")
    target = f"the head's target: smollm2-135m, a folder {SHOWN}"
    head.add_argument("--target", "--specdec-target", default="smollm2-135m", help=target)
    kinds = "chat,question_answering,summarisation,reasoning"
    head.add_argument("--workload", default=kinds, help=f"kinds of prompts, or .jsonl files {SHOWN}")
    head.add_argument("--prompts", default="3", help=f"of each kind {SHOWN}")
    head.add_argument("--max-new-tokens", default="64", help=f"tokens of an answer {SHOWN}")
    head.add_argument("--k", default="3", help=f"proposals of a step {SHOWN}")
    head.add_argument("--port", default="8600", help=f"of the server, on the loopback address {SHOWN}")
    head.add_argument("--into", type=Path, default=".engines", help=f"the folder of all environments {SHOWN}")
    head.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown too")
    head.set_defaults(run=_served_head)


def _merge(given: argparse.Namespace) -> None:
    from benchsuite.report.merged import merge

    journal = merge(given.folders, given.into)
    print(f"{amount(len(list(journal.cells())), 'cell')} of {amount(len(given.folders), 'part')}: {journal.folder}")


def _submit(given: argparse.Namespace) -> None:
    from benchsuite.run.cluster import submit_shards
    from specdec.errors import SpecdecError

    wrong = [text for text in given.set if "=" not in text]
    if wrong or given.shards < 1:
        raise SpecdecError(
            f"--set {wrong[0]!r} has no value; write NAME=VALUE" if wrong else "--shards must be 1 or more"
        )
    settings = dict(text.split("=", 1) for text in given.set)
    journal = submit_shards(given.arguments, given.shards, given.into.resolve(), given.cluster, settings)
    print(f"{amount(len(list(journal.cells())), 'cell')} of {amount(given.shards, 'part')}: {journal.folder}")


def _report(given: argparse.Namespace) -> None:
    from benchsuite.report.answer import answers
    from benchsuite.report.files import comparison_files
    from benchsuite.store.journal import Journal

    journal = Journal.load(given.folder)
    measured = journal.measured()
    results = measured.results()
    more = {name: (journal.folder / name).read_bytes().decode() for name in journal.kept("prediction")}
    journal.finish(comparison_files(results, journal.said, more=more), measured, journal.said["complete"])
    print("\n".join([*answers(results), str(journal.folder / "report.html")]))


def _compare(given: argparse.Namespace) -> None:
    from benchsuite.compare.sides import read_side
    from benchsuite.report.compared import comparison_document
    from benchsuite.report.renderers import markdown, page, terminal

    sides = [read_side(name) for name in (given.base, *given.heads)]
    document = comparison_document(sides, given.all)
    if given.markdown:
        given.markdown.write_bytes(markdown(document).encode())
    if given.html:
        given.html.write_bytes(page(document).encode())
    print("\n".join(terminal(document)))


def _history(given: argparse.Namespace) -> None:
    from benchsuite.compare.sides import read_side
    from benchsuite.report.compared import history_document
    from benchsuite.report.renderers import page

    given.html.write_bytes(page(history_document([read_side(name) for name in given.runs])).encode())
    print(given.html)


def _convert(given: argparse.Namespace) -> None:
    from benchsuite.foreign import files
    from benchsuite.machine.files import strict_json
    from benchsuite.report.foreign import foreign_document
    from benchsuite.report.renderers import terminal

    found = files.read_file(given.file)
    found = files.chosen(found, given.one) if given.one else found
    text, lost = "\n".join(terminal(foreign_document(found))) + "\n", list[str]()
    if given.to:
        content, lost = files.write_result(found, given.to)
        text = strict_json(content)
        lost = [f"no place in {given.to}: {one}" for one in lost]
        lost += [f"{run.name}: {len(run.left)} values of the file were not read" for run in found.runs if run.left]
        lost += found.notes
    if given.out:
        given.out.write_bytes(text.encode())
    else:
        print(text, end="")
    print("".join(f"{line}\n" for line in lost), end="", file=sys.stderr)


def _advise(given: argparse.Namespace) -> None:
    from benchsuite import values
    from benchsuite.machine.files import strict_json
    from benchsuite.predict.commands import advice_json, advice_on
    from benchsuite.report.advice import advice_document
    from benchsuite.report.renderers import terminal
    from benchsuite.run.matrix import settings_of
    from benchsuite.run.request import request_of

    minutes = values.number(given.minutes)
    if not 0 < minutes < math.inf:
        raise values.refused_value("--minutes", given.minutes, "a number above 0")
    request = request_of(given)
    found = advice_on(settings_of(request), request.draft, request.policy, request.k or (1,), request.prompts, minutes)
    if given.json:
        given.json.write_bytes(strict_json(advice_json(found)).encode())
    print("\n".join(terminal(advice_document(found))))


def _breakeven(given: argparse.Namespace) -> None:
    from benchsuite import values
    from benchsuite.machine.files import strict_json
    from benchsuite.predict.breakeven import map_json
    from benchsuite.predict.commands import map_of
    from benchsuite.report.breakeven import map_document
    from benchsuite.report.renderers import page, terminal
    from benchsuite.run.matrix import settings_of
    from benchsuite.run.request import request_of

    drafting = values.number(given.drafting)
    if not 0 <= drafting < math.inf:
        raise values.refused_value("--drafting", given.drafting, "0 or more, in forwards of one token")
    request = request_of(given)
    costs, points, checks = map_of(settings_of(request), request.prompts, drafting)
    document = map_document(points, checks, costs, drafting)
    if given.json:
        given.json.write_bytes(strict_json(map_json(points, checks)).encode())
    if given.html:
        given.html.write_bytes(page(document).encode())
    print("\n".join(terminal(document)))


def _head(given: argparse.Namespace) -> None:
    from benchsuite import values
    from benchsuite.doctor.commands import examine_head, report_json
    from benchsuite.machine.files import strict_json
    from benchsuite.report.examined import head_document
    from benchsuite.report.renderers import terminal

    k, tokens, prompts = (
        values.whole_number(getattr(given, name.replace("-", "_")), f"--{name}")
        for name in ("k", "max-new-tokens", "prompts")
    )
    report = examine_head(
        given.head,
        given.target,
        given.workload,
        k=k,
        tokens=tokens,
        prompts=prompts,
        device=given.device,
        dtype=given.dtype,
        backend=given.backend,
    )
    if given.json:
        given.json.write_bytes(strict_json(report_json(report)).encode())
    print("\n".join(terminal(head_document(report))))


def _served_head(given: argparse.Namespace) -> None:
    from contextlib import closing

    from benchsuite import values
    from benchsuite.benches.serving.restarts import ServersInTurn
    from benchsuite.engines.environments import ready_folder
    from benchsuite.engines.pins import chosen_pins
    from benchsuite.engines.served_head import ENGINE, ServedHeadPlan, compare_served_head
    from benchsuite.measure.workloads import workload_names
    from benchsuite.report.renderers import markdown, terminal
    from benchsuite.report.served_head import served_head_document
    from specdec.lists import split_list

    numbers = {
        name: values.whole_number(getattr(given, name), f"--{name.replace('_', '-')}")
        for name in ("prompts", "max_new_tokens", "k", "port")
    }
    workloads = tuple(name for text in split_list(given.workload) for name in workload_names(text))
    plan = ServedHeadPlan(given.head, given.target, workloads, **numbers)
    [engine] = chosen_pins([ENGINE])
    command = plan.command(ready_folder(engine, given.into))
    with closing(ServersInTurn({ENGINE: command})) as servers:
        document = served_head_document(compare_served_head(plan, servers))
    if given.markdown:
        given.markdown.write_text(markdown(document), encoding="utf-8")
    print("\n".join(terminal(document)))


if __name__ == "__main__":
    sys.exit(benchsuite_main())
