"""The `--specdec-…` options: one table for the command line, the ini file and whatever else gives them. No torch.

Options with ``many`` accept comma lists; the product of these lists (but ``across``) is the matrix of measured arms.
``benchsuite.run.request`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from benchsuite import values
from benchsuite.values import Reader


@dataclass(frozen=True)
class Option:
    """``--<prefix>-<name>`` and the ini key ``<prefix>_<name>``: a value, a comma list (``many``) or a flag.

    ``read`` makes the value of a text and of the option's name, ``--<prefix>-<name>``.
    """

    name: str
    default: str
    help: str
    many: bool = False
    flag: bool = False
    read: Reader[Any] = values.as_written

    def value(self, text: str, prefix: str) -> Any:
        """Return the value of a text. SpecdecError, which names ``--<prefix><name>``, for one that it does not take."""
        return (values.flag if self.flag else self.read)(text, f"--{prefix}{self.name}")


@dataclass(frozen=True)
class Variable:
    """What an environment variable stands for: an option, and the option's text for some values of the variable.

    A value that ``texts`` lacks is the option's text itself; where ``texts`` has ``1``, others than its are refused.
    """

    option: str
    texts: Mapping[str, str]


SWITCH = {"1": "true", "0": "false"}

VARIABLES: Mapping[str, Variable] = {
    "SPECDEC_DTYPE": Variable("dtype", {}),
    "SPECDEC_AMP": Variable("dtype", {"1": "bfloat16", "0": "auto"}),
    "SPECDEC_BATCH_SIZE": Variable("batch", {}),
    "SPECDEC_DETERMINISTIC": Variable("deterministic", SWITCH),
    "SPECDEC_CUDA_GRAPH": Variable("graphs", {"1": "auto", "0": "off"}),
    "SPECDEC_EXACT": Variable("exact", SWITCH),
    "SPECDEC_PROFILE": Variable("profile", SWITCH),
    "SPECDEC_DETAILED_METRICS": Variable("detail", {"1": "steps", "0": "rows"}),
    "SPECDEC_DRY_RUN": Variable("dry-run", SWITCH),
    "SPECDEC_DEBUG": Variable("debug", SWITCH),
    "SPECDEC_FORCE_PYTORCH_BACKEND": Variable("backend", {"1": "reference", "0": "auto"}),
}
"""The variables that stand for options."""

OPTIONS = (
    Option(
        "target",
        "tiny,smollm2-135m",
        "models whose output counts: tiny, smollm2-135m, a folder, a hub id",
        many=True,
        read=values.names,
    ),
    Option(
        "draft",
        "ngram,draft_model,oracle(0.8),garbage",
        "draft strategies, with options: oracle(rate=0.8)",
        many=True,
        read=values.names,
    ),
    Option(
        "policy",
        "match",
        "acceptance policies, with options: match, rejection, topk_agree(k=3)",
        many=True,
        read=values.names,
    ),
    Option(
        "controller",
        "fixed",
        "draft-length controllers, with options: fixed(k=4), goodput(maximum=15)",
        many=True,
        read=values.names,
    ),
    Option(
        "k",
        "",
        "the short way to a controller's K, fixed(k=K) or goodput(maximum=K): num_speculative_tokens",
        many=True,
        read=values.unless_empty(values.wholes(0)),
    ),
    Option(
        "adaptive-k",
        "",
        "the same as the controller adaptive(maximum=K); excludes --specdec-k",
        many=True,
        read=values.unless_empty(values.wholes(1)),
    ),
    Option(
        "arm",
        "",
        "strategies one by one, as draft/policy/controller/K (later parts may be left out), in place of the product of "
        "the four options above: ngram/match/goodput/15; with a short name, fast=ngram/match/goodput/15",
        many=True,
        read=values.with_paths,
    ),
    Option(
        "width",
        "",
        "a row for each window width, replays with K = width - 1 in place of other strategies, and a table of what is "
        "equal, a tie or a bug at each: 1-16",
        many=True,
        read=values.unless_empty(values.spans(1)),
    ),
    Option(
        "peer",
        "auto",
        "outside references in the same table, with options: transformers_prompt_lookup(k=10); auto: transformers, "
        "transformers_prompt_lookup and, on CUDA, transformers_compiled; or none",
        many=True,
        read=values.names,
    ),
    Option(
        "endpoint",
        "",
        "OpenAI-compatible servers, for -m serving or as rows beside ours, as name=url or name=url#model: "
        "plain=http://localhost:8000; API keys from the variables SPECDEC_API_KEY_<NAME> or SPECDEC_API_KEY",
        many=True,
    ),
    Option(
        "endpoint-start",
        "",
        "a YAML file with the command that starts each server, as in plain: vllm serve …; servers of one address are "
        "started in turn",
    ),
    Option(
        "endpoint-api",
        "completions",
        "how servers are asked: completions, or chat with their own template",
        read=values.one_of("completions", "chat"),
    ),
    Option(
        "trace",
        "",
        "with -m conversations: a file of conversations and their times in place of workloads, with the benchmark that "
        "it was made for: aiperf:trace.jsonl, guidellm:trace.jsonl",
    ),
    Option(
        "concurrency",
        "1",
        "requests that a server has at once; with -m conversations, conversations at a time",
        many=True,
        read=values.unless_empty(values.wholes(1)),
    ),
    Option(
        "rate",
        "",
        "requests a second, at random times, sent to a server or with -m load to the engine: 0.5,2",
        many=True,
        read=values.above_zero,
    ),
    Option(
        "certify",
        "auto",
        "auto: the outputs of every endpoint are compared with the first one's; a dtype of the servers narrows what "
        "counts as rounding: float32, bfloat16, float16; off",
        read=values.one_of("auto", "off", "float32", "bfloat16", "float16"),
    ),
    Option(
        "certify-by",
        "",
        "a target with the servers' weights that reads their outputs on this machine, in place of the first server: "
        "for servers without log-probabilities, or without echo",
    ),
    Option(
        "slo",
        "",
        "limits that a request must keep to count for goodput, in seconds: ttft=0.5,tpot=0.05,e2e=10",
        read=values.limits(("ttft", "tpot", "e2e")),
    ),
    Option(
        "backend",
        "auto",
        "kernel backends: cuda, triton, cpu, reference, flex; auto lines up all that can run here",
        many=True,
        read=values.names,
    ),
    Option(
        "device",
        "auto",
        "cuda, mps, cpu; auto takes the first of these that exists",
        many=True,
        read=values.names,
    ),
    Option(
        "dtype",
        "auto",
        "float32, bfloat16, float16, float64, or of the weights alone int8, int4; auto: float32 on a CPU",
        many=True,
        read=values.names,
    ),
    Option(
        "graphs",
        "auto",
        "auto: on CUDA the parts of a step are recorded once for each shape and replayed; off: they run op by op",
        read=values.one_of("auto", "off"),
    ),
    Option(
        "exact",
        "",
        "windows of every width give the same bits, also in half precision; refuses, by name, what does not",
        flag=True,
    ),
    Option(
        "batch",
        "1",
        "rows that decode together; with -m load, requests at once",
        many=True,
        read=values.wholes(1),
    ),
    Option(
        "workload",
        "chat,question_answering,summarisation,code_editing,rewriting,reasoning",
        "kinds of text, or a .jsonl file in Spec-Bench's or SPEED-Bench's format, a column for each category",
        many=True,
        read=values.names,
    ),
    Option(
        "depth",
        "0",
        "tokens of a conversation, a document or code before each question, in turn: 0,2k,8k; k is 1,024",
        many=True,
        read=values.depths,
    ),
    Option(
        "temperature",
        "0",
        "0 is greedy",
        many=True,
        read=values.sampled("temperature"),
    ),
    Option(
        "top-k",
        "0",
        "keep the k most likely tokens; 0 is off",
        many=True,
        read=values.sampled("top_k"),
    ),
    Option(
        "top-p",
        "1",
        "keep the likeliest tokens up to this mass; 1 is off",
        many=True,
        read=values.sampled("top_p"),
    ),
    Option(
        "min-p",
        "0",
        "drop tokens less likely than this share of the likeliest one; 0 is off",
        many=True,
        read=values.sampled("min_p"),
    ),
    Option(
        "presence-penalty",
        "0",
        "taken from logits of tokens that the output has, -2 to 2; 0 is off",
        many=True,
        read=values.sampled("presence_penalty"),
    ),
    Option(
        "frequency-penalty",
        "0",
        "the same for each time that the output has them, -2 to 2; 0 is off",
        many=True,
        read=values.sampled("frequency_penalty"),
    ),
    Option(
        "repetition-penalty",
        "1",
        "divides positive and multiplies negative logits of tokens in prompt or output, above 0; 1 is off",
        many=True,
        read=values.sampled("repetition_penalty"),
    ),
    Option(
        "max-new-tokens",
        "64",
        "tokens that each prompt may be continued by",
        many=True,
        read=values.sampled("max_new_tokens"),
    ),
    Option(
        "seed",
        "0",
        "seed of sampling, of random weights and of the order of arms",
        read=values.seed,
    ),
    Option(
        "prompts",
        "",
        "use only the first VALUE prompts of each workload",
        read=values.unless_empty(values.whole_number),
    ),
    Option(
        "pairs",
        "",
        "how often each prompt runs beside the baseline; 1 unless a precision or a budget chooses",
        read=values.unless_empty(values.whole_number),
    ),
    Option(
        "precision",
        "",
        "measure prompts and pairs until the interval of every row over all workloads reaches at most this far to "
        "either side: 2%",
        read=values.unless_empty(values.share),
    ),
    Option(
        "budget",
        "",
        "measure prompts and pairs for this long, for each setting: 90, 90s, 10min, 1h",
        read=values.duration,
    ),
    Option(
        "timeout",
        "10min",
        "the most time of one run; an arm that takes longer has failed; 0 is off",
        read=values.duration,
    ),
    Option("baseline", "plain", "the arm that speedups are relative to, as --specdec-arm writes it, or by its name"),
    Option(
        "across",
        "",
        "conditions in which a row may differ from the baseline and is compared nevertheless: runtime (steps recorded, "
        "or op by op), compile (a forward that is compiled), dtype",
        many=True,
        read=values.some_names,
    ),
    Option(
        "judge",
        "",
        "a model that reads every output: its perplexity is what a lossy policy or a quantised target costs; the "
        "target's on a fixed text is on the card",
        read=values.with_paths,
    ),
    Option("deterministic", "", "seed torch, allow deterministic algorithms only, and no TF32", flag=True),
    Option(
        "profile",
        "",
        "write a Chrome trace of each strategy's first prompt, with the parts of every step as named ranges, to "
        "traces/ in the folder of --specdec-results",
        flag=True,
    ),
    Option(
        "dry-run",
        "",
        "go through everything with a tiny model of random weights in place of each target: checks names, values, "
        "sizes and memory",
        flag=True,
    ),
    Option(
        "shard",
        "",
        "run only part i of n, as i/n: rows of one setting and workload stay together; merge the parts' results with "
        "python -m benchsuite merge",
        read=values.part_of,
    ),
    Option(
        "detail",
        "steps",
        "steps: a record of every step, in benchmark.json and steps.jsonl.gz; rows: only figures of rows, a tenth of "
        "the bytes",
        read=values.one_of("steps", "rows"),
    ),
    Option("debug", "", "show the traceback of an arm that could not be measured", flag=True),
    Option("config", "", "a YAML file of options, without the specdec- before their names; the command line wins"),
    Option(
        "predict",
        "off",
        "every row beside its prediction from other texts and from costs that are probed after the run: cached takes "
        "what an earlier run of this machine, code and model kept, fresh measures all, a file is one of these; or off",
        read=values.costs_source,
    ),
    Option("repeat", "", "take the options of the run in this folder of results"),
    Option("results", "", "folder for results/<time>-<name>/: cells, tables, JSON, report, manifest"),
    Option(
        "resume",
        "",
        "go on with the newest run in the folder of --specdec-results: measure only the cells that are missing",
        flag=True,
    ),
)
"""Every option of a run."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    group = parser.getgroup("specdec", "speculative decoding (specdec-bench)")
    declare(parser, group, "specdec", OPTIONS)
    group.addoption(
        "--specdec-list",
        action="store_true",
        help="list drafts, policies, controllers and backends with their options, then exit",
    )
    group.addoption(
        "--specdec-deep",
        action="store_true",
        help="the suite's own proofs 50 times longer: more distributions, more runs of state machines, whole products",
    )


def declare(parser: pytest.Parser, group: pytest.OptionGroup, prefix: str, options: Sequence[Option]) -> None:
    """Declare each option in ``group``, and its ini key."""
    for option in options:
        key = key_of(option.name, prefix)
        taken: dict[str, Any] = {"action": "store_true"} if option.flag else {"metavar": "VALUE"}
        default = f" (default: {option.default})" if option.default else ""
        # argparse would read a percent sign as a format code.
        meant = [name for name, variable in VARIABLES.items() if (prefix, option.name) == ("specdec", variable.option)]
        also = f"; or the variable {' or '.join(meant)}" if meant else ""
        text = f"{option.help}{'; comma list' if option.many else ''}{also}{default}".replace("%", "%%")
        group.addoption(f"--{prefix}-{option.name}", default=None, help=text, **taken)
        kind: Literal["linelist", "string"] = "linelist" if option.many else "string"  # TOML may write a list
        parser.addini(key, f"ini twin of --{prefix}-{option.name}", type=kind, default=option.default)


def key_of(name: str, prefix: str) -> str:
    """The ini key of ``--<prefix>-<name>``; pytest stores the option under the same name."""
    return f"{prefix}_{name.replace('-', '_')}"


@dataclass(frozen=True)
class Texts:
    """The text of every option, by the name that a configuration file has for it: ``batch``, ``gate-tolerance``.

    ``given``: options that the command line, a file, a variable or a repeated run has set; the others have the text of
    the ini file or their default. ``folder``: where pytest was started; ``ini``: the ini file's own folder, or None.
    ``written``: where a text stands that is not on the command line and is not the default.
    """

    texts: Mapping[str, str]
    given: frozenset[str]
    folder: Path
    ini: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def base(self, name: str) -> Path:
        """The folder that paths of an option are relative to: the ini file's where that file names them."""
        return self.ini if self.ini and name not in self.given else self.folder

    def path(self, name: str) -> Path | None:
        """The file or folder that an option names; None if it names none."""
        return self.base(name) / self.texts[name] if self.texts[name] else None
