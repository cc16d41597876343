"""``python -m specdec "prompt"``: generates one completion and shows the kind of each token.

Accepted, recovered and bonus tokens have different colours, or different brackets without colour.
Options have the names of the pytest options; ``--draft`` and ``--specdec-draft`` are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from typing import Any

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
    from specdec.errors import SpecdecError

    try:
        result = _generate(options)
    except SpecdecError as error:
        print(f"specdec: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        _show(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specdec", description=__doc__, allow_abbrev=False)
    parser.add_argument("prompt", help="what to continue; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print tokens, metrics and counters as JSON")
    parser.add_argument("--raw", action="store_true", help="do not put the prompt into the chat template")
    for name, default, kind, text in (
        ("target", "smollm2-135m", str, "tiny, smollm2-135m, shape:<config>, a folder or a hub id"),
        ("draft", "ngram", str, "draft strategy, for example oracle(0.8); none is plain decoding"),
        ("policy", "match", str, "acceptance policy"),
        ("controller", "fixed", str, "draft-length controller"),
        ("k", None, int, "the controller's K, num_speculative_tokens"),
        ("backend", "auto", str, "kernel backend"),
        ("device", "auto", str, "cuda, mps or cpu"),
        ("dtype", "auto", str, "float32, bfloat16, float16, float64, int8 or int4"),
        ("temperature", 0.0, float, "0 is greedy"),
        ("top-k", 0, int, "0 is off"),
        ("top-p", 1.0, float, "1 is off"),
        ("max-new-tokens", 64, int, "tokens to emit at most"),
        ("seed", 0, int, "seed of sampling"),
    ):
        names = (f"--{name}", f"--specdec-{name}")
        parser.add_argument(
            *names, default=default, type=kind, help=text if default is None else f"{text} (default: {default})"
        )
    parser.add_argument("--stop", "--specdec-stop", action="append", default=[], help="stop string; may be repeated")
    deterministic = ("--deterministic", "--specdec-deterministic")
    parser.add_argument(*deterministic, action="store_true", help="allow deterministic algorithms only")
    return parser


def _generate(options: argparse.Namespace) -> dict[str, Any]:
    from specdec import Registry, Request, SamplingParams, catalog, devices
    from specdec.assembly import Assembly
    from specdec.errors import SpecdecError
    from specdec.model import ArenaModel
    from specdec.quantised import BITS

    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip():
        raise SpecdecError("the prompt is empty; give it some text")
    registry = Registry()
    draft = None if options.draft == "none" else options.draft
    for kind, name in (("draft", draft), ("policy", options.policy), ("controller", options.controller)):
        if name is not None:
            registry.parse(kind, name)
    ops = registry.backend(options.backend)
    device = devices.pick_device(options.device)
    dtype = devices.pick_dtype(options.dtype, device)
    if options.deterministic:
        devices.be_deterministic(options.seed)
    params = SamplingParams(
        options.temperature,
        options.top_k,
        options.top_p,
        options.seed,
        options.max_new_tokens,
        stop=tuple(options.stop),
    )
    loaded = catalog.load(options.target, device, dtype, rows=1, max_length=options.max_new_tokens, seed=options.seed)
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(text) if options.raw else catalog.chat_ids(tokenizer, text)
    request = Request(0, tuple(ids), SamplingParams(**{**vars(params), "eos": catalog.end_tokens(loaded.model)}))
    target = ArenaModel(loaded.model, ops, BITS.get(options.dtype))
    assembly = Assembly(registry, target, tokenizer, max_rows=1, max_length=len(ids) + options.max_new_tokens)
    engine = assembly.engine(draft, options.policy, options.controller, options.k)
    done = engine.run([request])[0]
    stats = engine.stats
    decode_s = done.times[-1] - done.prefill_s
    return {
        "text": tokenizer.decode(list(done.tokens), skip_special_tokens=True),
        "finish_reason": done.finish_reason,
        "tokens": [
            {"id": token, "text": tokenizer.decode([token]), "kind": kind}
            for token, kind in zip(done.tokens, done.kinds, strict=True)
        ],
        "prompt_tokens": len(ids),
        "metrics": {
            "tokens_per_s": len(done.tokens) / decode_s,
            "ttft_ms": done.times[0] * 1e3,
            "tau": stats.tau,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "contract": engine.policy.contract(request.params),
        },
        "counters": stats.counters(),
        "ops": {f"{op} {backend}": count for (op, backend), count in sorted(stats.ops.items())},
    }


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    coloured = console.color_system is not None
    text = Text()
    for kind, run in groupby(result["tokens"], key=lambda token: token["kind"]):
        style, brackets, _ = KINDS[kind]
        piece = "".join(token["text"] for token in run)
        text.append(piece if coloured or not brackets else f"{brackets[0]}{piece}{brackets[1]}", style=style)
    console.print(text, soft_wrap=True)
    console.print()
    for kind, (style, brackets, meaning) in KINDS.items():
        count = sum(token["kind"] == kind for token in result["tokens"])
        if count:
            name = kind if coloured or not brackets else f"{brackets[0]}{kind}{brackets[1]}"
            console.print(Text.assemble((f"{name:>11}", style), f" {count:4d}  {meaning}"))
    metrics = result["metrics"]
    rate = metrics["acceptance_rate"]
    console.print(
        f"{len(result['tokens'])} tokens, {metrics['tokens_per_s']:.1f} tok/s, "
        f"first after {metrics['ttft_ms']:.0f} ms, "
        f"tau {metrics['tau']:.2f}, accepted {'-' if rate is None else f'{rate:.0%}'}, "
        f"contract {metrics['contract']}, ended by {result['finish_reason']}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
