"""``python -m specdec "prompt"``: generates one completion and shows the kind of each token.

The text appears as it is generated. Accepted, recovered and bonus tokens have different colours, or different brackets
without colour. ``--requests file.jsonl --out out.jsonl`` runs a file of requests instead (``specdec.jobs``); after a
kill the same command goes on where it was.
Options have the names of the pytest options; ``--draft`` and ``--specdec-draft`` are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.amounts import amount

if TYPE_CHECKING:
    from specdec import Completion, Engine, Request, SamplingParams
    from specdec.beam import Beams
    from specdec.catalog import Loaded
    from specdec.jobs import Job, OutFile
    from specdec.model import ArenaModel

KINDS = {
    "accepted": ("bold green", "[]", "a proposal that was kept"),
    "recovered": ("bold red", "{}", "drawn by the target after a rejection"),
    "bonus": ("bold blue", "<>", "drawn by the target after all proposals were kept"),
    "plain": ("", "", "drawn by the target when nothing was proposed"),
}
"""Each kind's style, its brackets where there is no colour, and its meaning."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code (2 for a SpecdecError, whose text goes to standard error)."""
    options = _parser().parse_args(arguments)
    # Slow imports come after parsing, so that --help and a wrong option answer at once.
    from specdec.errors import SpecdecError, folded

    try:
        _check_together(options)
        if options.requests:
            _run_file(options)
        else:
            _run_prompt(options)
    except SpecdecError as error:
        print(folded(f"specdec: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specdec", description=__doc__, allow_abbrev=False)
    parser.add_argument("prompt", nargs="?", help="what to continue; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print tokens, metrics and counters as JSON")
    parser.add_argument("--raw", action="store_true", help="do not put prompts into the chat template")
    parser.add_argument("--requests", help="in place of a prompt: a file with one JSON object a line")
    parser.add_argument("--out", help="the file of the results of --requests; what is in it is not run again")
    parser.add_argument("--batch", type=int, help="with --requests: how many run at once (default: 8)")
    parser.add_argument("--quiet", action="store_true", help="with --requests: no progress bar and no summary")
    for name, default, kind, text in (
        ("target", "smollm2-135m", str, "tiny, smollm2-135m, shape:<config>, a folder or a hub id"),
        ("draft", None, str, "draft strategy, for example oracle(0.8); none is plain decoding (default: ngram)"),
        ("policy", "match", str, "acceptance policy"),
        ("controller", "fixed", str, "draft-length controller"),
        ("k", None, int, "the controller's K, num_speculative_tokens"),
        ("backend", "auto", str, "kernel backend"),
        ("device", "auto", str, "cuda, mps or cpu"),
        ("dtype", "auto", str, "float32, bfloat16, float16, float64, int8 or int4"),
        ("temperature", 0.0, float, "0 is greedy"),
        ("top-k", 0, int, "0 is off"),
        ("top-p", 1.0, float, "1 is off"),
        ("min-p", 0.0, float, "least share of the likeliest token's probability; 0 is off"),
        ("presence-penalty", 0.0, float, "subtracted from logits of tokens in the output; -2 to 2"),
        ("frequency-penalty", 0.0, float, "the same, for each time that the token is there; -2 to 2"),
        ("repetition-penalty", 1.0, float, "divides positive logits of tokens in prompt or output; 1 is off"),
        ("max-new-tokens", 64, int, "tokens to emit at most"),
        ("min-new-tokens", 0, int, "tokens to emit before an end token may come"),
        ("logprobs", None, int, "with --json or --requests: log-probabilities, and those of so many alternatives"),
        ("seed", 0, int, "seed of sampling"),
    ):
        names = (f"--{name}", f"--specdec-{name}")
        parser.add_argument(
            *names, default=default, type=kind, help=text if default is None else f"{text} (default: {default})"
        )
    parser.add_argument("--stop", "--specdec-stop", action="append", default=[], help="stop string; may be repeated")
    parser.add_argument(
        "--logit-bias",
        "--specdec-logit-bias",
        action="append",
        default=[],
        type=_bias,
        metavar="ID=BIAS",
        help="number from -100 to 100 that is added to a token's logit; may be repeated",
    )
    parser.add_argument(
        "--bad-word", "--specdec-bad-word", action="append", default=[], help="text not to emit; may be repeated"
    )
    parser.add_argument("--beams", type=int, help="beam search with so many beams, which takes no draft")
    parser.add_argument("--length-penalty", type=float, help="with --beams: above 0 favours long texts (default: 1)")
    deterministic = ("--deterministic", "--specdec-deterministic")
    parser.add_argument(*deterministic, action="store_true", help="allow deterministic algorithms only")
    return parser


def _bias(text: str) -> tuple[int, float]:
    token, equals, bias = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no token id with a bias; write for example 42=-3.5")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no token id with a bias; write for example 42=-3.5") from None


def _check_together(options: argparse.Namespace) -> None:
    from specdec.errors import SpecdecError

    if (options.requests is None) != (options.out is None):
        there, missing = ("--requests", "--out") if options.out is None else ("--out", "--requests")
        raise SpecdecError(f"{there} is given without {missing}; a file of requests needs both")
    if options.beams is not None and options.draft not in (None, "none"):
        raise SpecdecError(
            f"beam search is not speculative, but a draft, {options.draft!r}, is given with --beams; leave one out"
        )
    if options.beams is not None and options.beams < 1:
        raise SpecdecError(f"--beams is {options.beams}; expected 1 or more")
    if options.beams is None and options.length_penalty is not None:
        raise SpecdecError("--length-penalty is for beam search; leave it out, or give --beams")
    if options.draft is None:
        options.draft = "ngram" if options.beams is None else "none"
    if options.requests is None:
        if options.prompt is None:
            raise SpecdecError("there is no prompt; give one, or a file of them with --requests and --out")
        if options.logprobs is not None and not options.json:
            raise SpecdecError("--logprobs of one prompt are shown with --json; add it, or leave them out")
        lost = [name for name in ("batch", "quiet") if getattr(options, name)]
        if lost:
            raise SpecdecError(f"--{lost[0]} is for a file of requests; leave it out, or give --requests and --out")
        return
    if options.prompt is not None:
        raise SpecdecError("a prompt and --requests are given; leave one of them out")
    if options.beams is not None:
        raise SpecdecError("--beams is for one prompt; leave it out, or give a prompt in place of --requests")
    if options.json:
        raise SpecdecError("--json is for one prompt; the results of --requests are JSON already: leave it out")
    if options.batch is None:
        options.batch = 8
    if options.batch < 1:
        raise SpecdecError(f"--batch is {options.batch}; expected 1 or more")


def _params(options: argparse.Namespace) -> SamplingParams:
    """The decoding parameters that the options name; an option has the name of its field."""
    from specdec.request import SamplingParams

    named: dict[str, Any] = {}
    for name in (f.name for f in fields(SamplingParams) if hasattr(options, f.name)):
        value = getattr(options, name)
        named[name] = tuple(value) if isinstance(value, list) else value
    return SamplingParams(**named)


class _Parts:
    """The strategies that options name, checked at once; the model, loaded when an engine is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        from specdec import Registry, devices

        self.options, self.registry = options, Registry()
        self.draft = None if options.draft == "none" else options.draft
        for kind, name in (("draft", self.draft), ("policy", options.policy), ("controller", options.controller)):
            if name is not None:
                self.registry.parse(kind, name)
        self.ops = self.registry.backend(options.backend)
        self.device = devices.pick_device(options.device)
        self.dtype = devices.pick_dtype(options.dtype, self.device)
        if options.deterministic:
            devices.be_deterministic(options.seed)

    def load(self, rows: int, max_length: int) -> Loaded:
        """The model with its tokenizer, after a check that it and an arena of this size fit the memory."""
        from specdec import catalog

        options = self.options
        return catalog.load(
            options.target, self.device, self.dtype, rows=rows, max_length=max_length, seed=options.seed
        )

    def target(self, loaded: Loaded) -> ArenaModel:
        """A loaded model over the arena."""
        from specdec.choices import BITS
        from specdec.model import ArenaModel

        return ArenaModel(loaded.model, self.ops, BITS.get(self.options.dtype))

    def engine(self, loaded: Loaded, rows: int, max_length: int) -> Engine:
        """An engine of the named strategies over a loaded model."""
        from specdec.assembly import Assembly

        options, target = self.options, self.target(loaded)
        assembly = Assembly(self.registry, target, loaded.tokenizer, max_rows=rows, max_length=max_length)
        return assembly.engine(self.draft, options.policy, options.controller, options.k)


def _run_prompt(options: argparse.Namespace) -> None:
    from specdec import Request, catalog
    from specdec.errors import SpecdecError

    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip():
        raise SpecdecError("the prompt is empty; give it some text")
    params, parts = _params(options), _Parts(options)
    if options.beams is not None:
        _beams(options)  # refuses a wrong value before the model is loaded
    loaded = parts.load(options.beams or 1, options.max_new_tokens)
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(text) if options.raw else catalog.chat_ids(tokenizer, text)
    words = catalog.word_ids(tokenizer, options.bad_word)
    request = Request(0, tuple(ids), replace(params, eos=catalog.end_tokens(loaded.model), bad_words=words))
    if options.beams is not None:
        _search(options, parts, loaded, request)
        return
    engine = parts.engine(loaded, 1, len(ids) + options.max_new_tokens)
    if options.json:
        engine.run([request])
        print(json.dumps(_report(engine, request), indent=1, allow_nan=False))
    else:
        _show(engine, request)


def _beams(options: argparse.Namespace) -> Beams:
    from specdec.beam import Beams

    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    return Beams(options.beams, options.beams, penalty)


def _search(options: argparse.Namespace, parts: _Parts, loaded: Loaded, request: Request) -> None:
    """Print what a beam search finds, the best first."""
    from specdec.beam import BeamSearch
    from specdec.characters import decoded

    longest = len(request.prompt) + options.max_new_tokens
    search = BeamSearch(parts.target(loaded), width=options.beams, max_length=longest)
    found = [
        {
            "score": one.score,
            "finish_reason": one.finish_reason,
            "tokens": one.tokens,
            "text": decoded(loaded.tokenizer, one.tokens, special=False),
        }
        for one in search.run([request], _beams(options))[0]
    ]
    if options.json:
        print(json.dumps({"beams": found, "counters": search.counts}, indent=1, allow_nan=False))
        return
    for one in found:
        print(f"{one['score']:.4f}  ended by {one['finish_reason']}\n{one['text']}\n")


def _metrics(engine: Engine, done: Completion) -> dict[str, Any]:
    stats = engine.stats
    return {
        "tokens_per_s": len(done.tokens) / (done.times[-1] - done.prefill_s),
        "ttft_ms": done.times[0] * 1e3,
        "tau": stats.tau,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "contract": engine.policy.contract(done.request.params),
    }


def _report(engine: Engine, request: Request) -> dict[str, Any]:
    done, stats, tokenizer = engine.finished[request.id], engine.stats, engine.tokenizer
    from specdec.characters import decoded

    assert tokenizer
    return {
        "text": decoded(tokenizer, done.tokens, special=False),
        "finish_reason": done.finish_reason,
        "tokens": [
            {
                "id": token,
                "text": decoded(tokenizer, [token]),
                "kind": kind,
                **({"logprobs": done.logprobs[index].as_json()} if done.logprobs else {}),
            }
            for index, (token, kind) in enumerate(zip(done.tokens, done.kinds, strict=True))
        ],
        "prompt_tokens": len(request.prompt),
        "metrics": _metrics(engine, done),
        "counters": stats.counters(),
        "ops": {f"{op} {backend}": count for (op, backend), count in sorted(stats.ops.items())},
    }


def _show(engine: Engine, request: Request) -> None:
    """Print the text as it is generated, then a summary."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    coloured = console.color_system is not None

    def write(text: str, style: str = "") -> None:
        console.print(Text(text, style), end="", soft_wrap=True)

    with closing(engine.stream([request])) as tokens:
        for kind, run in groupby((token for token in tokens if token.text), key=lambda token: token.kind):
            style, brackets, _ = KINDS[kind]
            marks = ("", "") if coloured or not brackets else brackets
            write(marks[0])
            for token in run:
                write(token.text, style)
            write(marks[1])
    console.print("\n")
    done = engine.finished[request.id]
    for kind, (style, brackets, meaning) in KINDS.items():
        count = done.kinds.count(kind)
        if count:
            name = kind if coloured or not brackets else f"{brackets[0]}{kind}{brackets[1]}"
            console.print(Text.assemble((f"{name:>11}", style), f" {count:4d}  {meaning}"))
    metrics = _metrics(engine, done)
    rate = metrics["acceptance_rate"]
    console.print(
        f"{amount(len(done.tokens), 'token')}, {metrics['tokens_per_s']:.1f} tok/s, "
        f"first after {metrics['ttft_ms']:.0f} ms, "
        f"tau {metrics['tau']:.2f}, accepted {'-' if rate is None else f'{rate:.0%}'}, "
        f"contract {metrics['contract']}, ended by {done.finish_reason}",
        soft_wrap=True,
    )


def _run_file(options: argparse.Namespace) -> None:
    from specdec.errors import SpecdecError
    from specdec.jobs import OutFile, read_jobs

    source, target = Path(options.requests), Path(options.out)
    if target.exists() and source.exists() and target.samefile(source):
        raise SpecdecError(f"--requests and --out are the same file, {str(source)!r}; name another for the results")
    names = ("target", "draft", "policy", "controller", "k", "dtype", "raw", "seed")
    settings = {name: getattr(options, name) for name in names}
    jobs = read_jobs(source, _params(options), settings, tuple(options.bad_word))
    with OutFile(target, jobs) as out:
        earlier, left = len(out.done), [job for job in jobs if job.index not in out.done]
        tokens, seconds = _run_jobs(options, left, out) if left else (0, 0.0)
    if not options.quiet:
        before = f" ({earlier} of them earlier)" if earlier else ""
        speed = f", {amount(tokens, 'token')}, {tokens / seconds:.1f} tok/s" if seconds else ""
        print(f"{amount(len(jobs), 'request')}{before}{speed}: {target}")


def _run_jobs(options: argparse.Namespace, jobs: list[Job], out: OutFile) -> tuple[int, float]:
    """Run jobs and write their results; returns the tokens emitted and the seconds that took."""
    from specdec import catalog
    from specdec.jobs import Prompts, run_jobs
    from specdec.layers import position_limit
    from specdec.text import shown_text

    parts = _Parts(options)
    limit = position_limit(catalog.read_config(options.target))
    with Prompts(catalog.load_tokenizer(options.target), jobs, options.raw) as prompts:
        rows, longest = min(options.batch, len(jobs)), prompts.longest(limit)
        loaded = parts.load(rows, longest)
        engine = parts.engine(loaded, rows, longest)
        start, ends = time.perf_counter(), catalog.end_tokens(loaded.model)
        with _progress(options, out, len(jobs), engine) as show:
            running = run_jobs(engine, prompts, ends, stepped=show)
            for job, done in running:
                stop = done.request.params.stop
                out.keep(job, done, shown_text(loaded.tokenizer, done.tokens, done.finish_reason, stop))
        return engine.stats.counts["num_emitted_tokens"], time.perf_counter() - start


@contextmanager
def _progress(options: argparse.Namespace, out: OutFile, left: int, engine: Engine) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if that is a terminal; yields what to call after each step."""
    if options.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(out.done) + left, completed=len(out.done), speed="")
        start = time.perf_counter()

        def show() -> None:
            speed = engine.stats.counts["num_emitted_tokens"] / (time.perf_counter() - start)
            progress.update(task, completed=len(out.done), speed=f"{speed:.1f} tok/s")

        yield show
        show()


if __name__ == "__main__":
    sys.exit(main())
