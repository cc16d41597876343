"""The `--specdec-…` options: one table for the command line and the ini file. Imports no torch.

Options with ``many`` accept comma lists; the product of these lists is the matrix of measured arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Option:
    """``--<prefix>-<name>`` and the ini key ``<prefix>_<name>``: a value, a comma list (``many``) or a flag."""

    name: str
    default: str
    help: str
    many: bool = False
    flag: bool = False


OPTIONS = (
    Option(
        "target", "tiny,smollm2-135m", "models whose output counts: tiny, smollm2-135m, a folder, a hub id", many=True
    ),
    Option(
        "draft", "ngram,draft_model,oracle(0.8),garbage", "draft strategies, with options: oracle(rate=0.8)", many=True
    ),
    Option("policy", "match", "acceptance policies, with options: match, rejection, topk_agree(k=3)", many=True),
    Option("controller", "fixed", "draft-length controllers, with options: fixed(k=4), goodput(maximum=15)", many=True),
    Option(
        "k",
        "",
        "the short way to a controller's K, fixed(k=K) or goodput(maximum=K): num_speculative_tokens",
        many=True,
    ),
    Option("adaptive-k", "", "the same as the controller adaptive(maximum=K); excludes --specdec-k", many=True),
    Option(
        "arm",
        "",
        "strategies one by one, as draft/policy/controller/K (later parts may be left out), in place of the product of "
        "the four options above: ngram/match/goodput/15",
        many=True,
    ),
    Option(
        "peer",
        "transformers,transformers_prompt_lookup",
        "outside references in the same table, with options: transformers_prompt_lookup(k=10); or none",
        many=True,
    ),
    Option(
        "backend",
        "auto",
        "kernel backends: cuda, triton, cpu, reference; auto lines up all that can run here",
        many=True,
    ),
    Option("device", "auto", "cuda, mps, cpu; auto takes the first of these that exists", many=True),
    Option(
        "dtype",
        "auto",
        "float32, bfloat16, float16, float64, or of the weights alone int8, int4; auto: float32 on a CPU",
        many=True,
    ),
    Option("batch", "1", "rows that decode together", many=True),
    Option(
        "workload",
        "chat,question_answering,summarisation,code_editing,rewriting,reasoning",
        "kinds of text, or a .jsonl file in Spec-Bench's or SPEED-Bench's format, a column for each category",
        many=True,
    ),
    Option("temperature", "0", "0 is greedy", many=True),
    Option("top-k", "0", "keep the k most likely tokens; 0 is off", many=True),
    Option("top-p", "1", "keep the likeliest tokens up to this mass; 1 is off", many=True),
    Option("min-p", "0", "drop tokens less likely than this share of the likeliest one; 0 is off", many=True),
    Option("presence-penalty", "0", "taken from logits of tokens that the output has, -2 to 2; 0 is off", many=True),
    Option("frequency-penalty", "0", "the same for each time that the output has them, -2 to 2; 0 is off", many=True),
    Option(
        "repetition-penalty",
        "1",
        "divides positive and multiplies negative logits of tokens in prompt or output, above 0; 1 is off",
        many=True,
    ),
    Option("max-new-tokens", "64", "tokens that each prompt may be continued by", many=True),
    Option("seed", "0", "seed of sampling, of random weights and of the order of arms"),
    Option("prompts", "", "use only the first VALUE prompts of each workload"),
    Option("pairs", "", "how often each prompt runs beside the baseline; 1 unless a precision or a budget chooses"),
    Option(
        "precision",
        "",
        "measure prompts and pairs until the interval of every row over all workloads reaches at most this far to "
        "either side: 2%",
    ),
    Option("budget", "", "measure prompts and pairs for this long, for each setting: 90, 90s, 10min, 1h"),
    Option("timeout", "10min", "the most time of one run; an arm that takes longer has failed; 0 is off"),
    Option("baseline", "plain", "the arm that speedups are relative to, as --specdec-arm writes it, or by its name"),
    Option("results", "", "folder for results/<time>-<name>/: tables, JSON, report, manifest"),
)
"""Every option that takes a value."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    group = parser.getgroup("specdec", "speculative decoding (specdec-bench)")
    declare(parser, group, "specdec", OPTIONS)
    group.addoption(
        "--specdec-list",
        dest="specdec_list",
        action="store_true",
        help="list drafts, policies, controllers and backends with their options, then exit",
    )
    group.addoption(
        "--specdec-deterministic",
        dest="specdec_deterministic",
        action="store_true",
        help="seed torch and allow deterministic algorithms only",
    )
    group.addoption(
        "--specdec-deep",
        dest="specdec_deep",
        action="store_true",
        help="the suite's own proofs 50 times longer: more distributions, more runs of the state machine",
    )
    parser.addini("specdec_deterministic", "ini twin of --specdec-deterministic", type="bool", default=False)


def declare(parser: pytest.Parser, group: pytest.OptionGroup, prefix: str, options: Sequence[Option]) -> None:
    """Declare each option in ``group``, and its ini key."""
    for option in options:
        key = key_of(option.name, prefix)
        taken: dict[str, Any] = {"action": "store_true"} if option.flag else {"metavar": "VALUE"}
        default = f" (default: {option.default})" if option.default else ""
        # argparse would read a percent sign as a format code.
        text = f"{option.help}{'; comma list' if option.many else ''}{default}".replace("%", "%%")
        group.addoption(f"--{prefix}-{option.name}", dest=key, default=None, help=text, **taken)
        parser.addini(key, f"ini twin of --{prefix}-{option.name}", default=option.default)


def key_of(name: str, prefix: str) -> str:
    """The ini key of ``--<prefix>-<name>``; pytest stores the option under the same name."""
    return f"{prefix}_{name.replace('-', '_')}"


def value(config: pytest.Config, name: str, group: str = "specdec") -> str:
    """The text of ``--<group>-<name>``: from the command line, else the ini file, else its default."""
    key = key_of(name, group)
    given = config.getoption(key)
    return str(config.getini(key)) if given is None else str(given)


def count(config: pytest.Config, name: str) -> int | None:
    """The whole number of an option, 1 or more; None if it is empty. SpecdecError for anything else."""
    text = value(config, name)
    if text and not (text.isdigit() and int(text)):
        from specdec.errors import SpecdecError

        raise SpecdecError(f"--specdec-{name} is {text!r}; expected a whole number, 1 or more")
    return int(text) if text else None


def given(config: pytest.Config, name: str) -> bool:
    """Whether the user set an option, on the command line or in the ini file."""
    key = key_of(name, "specdec")
    default = next(option.default for option in OPTIONS if option.name == name)
    return config.getoption(key) is not None or str(config.getini(key)) != default


def results_root(config: pytest.Config) -> Path | None:
    """The folder of ``--specdec-results``, created if missing; None if not given. SpecdecError if it cannot be made."""
    text = value(config, "results")
    if not text:
        return None
    from specdec.errors import SpecdecError

    root = config.invocation_params.dir / text
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecdecError(f"--specdec-results {text!r} cannot be made: {error.strerror}; name a folder") from error
    return root
