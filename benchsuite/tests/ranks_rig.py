"""Runs of several ranks, forked from one process that has imported everything, and what is compared in them."""

from __future__ import annotations

import copy
import importlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from benchsuite.conformance.models import families, tiny
from benchsuite.judge.sources import EngineSource, Tokens
from benchsuite.judge.ties import Judge
from benchsuite.workshop.machines.read_states import Unmodified
from benchsuite.workshop.mutation.workers import in_fork
from specdec import Registry, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ranks import Place, join_ranks
from specdec.sharding import shard_model
from specdec.taps import Taps


def forked(ranks: int, work: Callable[[], int]) -> list[int]:
    """Fork ``ranks`` processes with torchrun's variables, and end the others once one has failed, as torchrun does.

    What a rank prints goes to ``rank<number>.txt`` in the current folder. Returns their exit codes, negative for a
    signal.
    """
    made: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch exports it unsaid
    store = made("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def ranked(rank: int) -> int:
        texts = os.open(f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(texts, 1)
        os.dup2(texts, 2)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        return work()

    processes = {in_fork(partial(ranked, rank)): rank for rank in range(ranks)}
    codes = dict.fromkeys(range(ranks), 0)
    while processes:
        ended, status = os.wait()
        codes[processes.pop(ended)] = code = os.waitstatus_to_exitcode(status)
        for other in processes if code else ():
            os.kill(other, signal.SIGTERM)
    return list(codes.values())


def ranked_pytest(*arguments: str) -> None:
    """Print the exit codes of two ranks of ``pytest`` as JSON; ``$RANK`` in an argument is each one's number."""
    print(json.dumps(forked(2, lambda: int(pytest.main(list(map(os.path.expandvars, arguments)))))))


def under_torchrun(*arguments: str) -> None:
    """Run two ranks of ``pytest`` under torchrun's own agent, which forks them: they import nothing again."""
    agent: Any = importlib.import_module("torch.distributed.launcher.api")
    config = agent.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="alone",
        max_restarts=0,
        start_method="fork",
    )
    agent.elastic_launch(config, _pytest_of_a_rank)(*arguments)


def _pytest_of_a_rank(*arguments: str) -> None:
    raise SystemExit(pytest.main(list(arguments)))


FAMILIES = ("llama", "qwen3", "smollm2", "mistral")
DRAFTS = (None, "ngram(n_min=1)", "draft_model(layers=1)", "tree(beam=2, depth=3)")
HEADS = ("medusa(head_init=random)", "eagle")
TEXT, TAPS = tiny.prompts(1)[0][:9], Taps((0,), final=True)
"""Drafts that read the target's head themselves, on one family."""

RankedCase = tuple[str, str | None, float]
"""A family, a draft and a temperature."""


def tiny_cases(every: bool) -> list[RankedCase]:
    """Each draft on each family, greedy and sampled in turn; ``every``: greedy and sampled each."""
    return [
        (family, draft, float(temperature))
        for number, family in enumerate(FAMILIES)
        for place, draft in enumerate((*DRAFTS, *(HEADS if family == "llama" else ())))
        for temperature in (0, 1)
        if every or (number + place + temperature) % 2 == 0
    ]


class Whole:
    """A model that is not cut, its logits and its plain outputs of ``work``: made before ranks are forked, for each to
    be compared with."""

    def __init__(self, model: PreTrainedModel, work: Sequence[list[Request]]) -> None:
        self.build = _built(model, None)
        self.judge = Judge(self.build.target, tiny.prompts(1)[0])
        self.bound = self.judge.bound
        self.logits, _ = _read(self.build.target)
        self.unmodified = Unmodified.of(self.build.target)
        self.source = EngineSource(self.build.engine(None))
        self.outputs = [self.source.tokens(requests) for requests in work]


def ranked_cases(every: bool) -> None:
    """Write what every tiny case gives on each of two ranks, beside the whole model, into ``found<rank>.json``."""
    torch.set_num_threads(1)
    work = [_work(temperature, 3, 6) for temperature in (0.0, 1.0)]
    wholes = {family: Whole(families.build_model(family), work) for family in FAMILIES}

    def rank() -> int:
        place, found = _joined(), dict[str, Any]()
        for family, whole in wholes.items():
            cut = _built(families.build_model(family), place)
            found[f"{family} logits"] = _apart(whole, cut), whole.bound
            found[f"{family} states"] = _wrong_states(whole, cut)
            for name, draft, temperature in tiny_cases(every):
                if name == family:
                    outputs = whole.outputs[int(temperature)]
                    one = _compared(whole, outputs, cut, draft, work[int(temperature)])
                    found[f"{family} {draft} {temperature:g}"] = vars(one)
        Path(f"found{place.rank}.json").write_text(json.dumps(found))
        return 0

    forked(2, rank)


@dataclass(frozen=True)
class Found:
    """What one case gave on one rank: outputs that are equal, differences that no tie explains, and all tokens."""

    equal: int
    bugs: list[str]
    tokens: list[tuple[int, ...]]


def ranked_smollm2() -> None:
    """Write what SmolLM2-135M gives on each of two ranks, beside the whole model, into ``found<rank>.json``."""
    torch.set_num_threads(1)
    work = _work(0.0, 2, 3)
    whole = Whole(catalog.load("smollm2-135m", torch.device("cpu"), torch.float32).model, [work])

    def rank() -> int:
        place = _joined()
        cut = _built(copy.deepcopy(whole.build.target.twin()), place)
        found: dict[str, Any] = {"cut": str(cut.target.sharding), "logits": (_apart(whole, cut), whole.bound)}
        for draft in (None, "tree(beam=2, depth=2)"):
            found[str(draft)] = vars(_compared(whole, whole.outputs[0], cut, draft, work))
        Path(f"found{place.rank}.json").write_text(json.dumps(found))
        return 0

    forked(2, rank)


def _work(temperature: float, count: int, most: int) -> list[Request]:
    return tiny.requests(SamplingParams(max_new_tokens=most, temperature=temperature, seed=3), count)


def _joined() -> Place:
    place = Place.of(os.environ)
    assert place
    join_ranks(place, "cpu")
    return place


def _built(model: Any, place: Place | None) -> Assembly:
    if place:
        shard_model(model, place.rank, place.ranks)
    target = ArenaModel(model, Registry().backend("auto"))
    return Assembly(Registry(), target, catalog.byte_tokenizer(), max_rows=3, max_length=160)


@torch.inference_mode()
def _read(target: ArenaModel) -> tuple[Tensor, Tensor]:
    """Logits after the last tokens of ``TEXT``, and their states of a layer and after the final norm."""
    tokens = torch.tensor([TEXT])
    arena = target.arena(1, 32, 4)
    target.extend(arena, tokens[:, :5], 0, 0)
    window = Window.chain(tokens[:, 5], tokens[:, 6:], tokens.new_tensor([3]))
    logits, states = target.forward(arena, window, slice(0, 1), 5, TAPS)
    return logits.float(), states


def _apart(whole: Whole, cut: Assembly) -> float:
    return float((whole.logits - _read(cut.target)[0]).abs().max())


def _wrong_states(whole: Whole, cut: Assembly) -> str:
    logits, states = _read(cut.target)
    try:
        whole.unmodified.check(TEXT, TAPS, (states[0], logits[0]), "two ranks")
    except AssertionError as error:
        return str(error)
    return ""


def _compared(whole: Whole, expected: Sequence[Tokens], cut: Assembly, draft: str | None, work: list[Request]) -> Found:
    other = EngineSource(cut.engine(draft, k=4 if draft else None))
    found = other.tokens(work)
    bugs, equal = [], 0
    for request, want, got in zip(work, expected, found, strict=True):
        equal += want == got
        differences = whole.judge.compare(work, request, whole.source, other, (want, got))
        bugs += [str(one) for one in differences if not one.tie]
    return Found(equal, bugs, found)


def rank_texts(folder: Path, ranks: int = 2) -> Sequence[str]:
    """What each rank printed."""
    return [(folder / f"rank{rank}.txt").read_text() for rank in range(ranks)]
