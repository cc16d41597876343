"""Runs of several ranks, forked from one process that has imported everything, and what is compared in them."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchsuite.measure.sources import EngineSource
from benchsuite.measure.ties import Judge
from benchsuite.prove import families, tiny
from specdec import Registry, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.ranks import Place, join_ranks
from specdec.sharding import shard_model


def forked(ranks: int, work: Callable[[], int]) -> list[int]:
    """Fork ``ranks`` processes with torchrun's variables, and end the others once one has failed, as torchrun does.

    What a rank prints goes to ``rank<number>.txt`` in the current folder. Returns their exit codes, negative for a
    signal.
    """
    made: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch exports it unsaid
    store = made("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: dict[int, int] = {}
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            texts = os.open(f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(texts, 1)
            os.dup2(texts, 2)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            code = 1
            try:
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        processes[process] = rank
    codes = dict.fromkeys(range(ranks), 0)
    while processes:
        ended, status = os.wait()
        codes[processes.pop(ended)] = code = os.waitstatus_to_exitcode(status)
        for other in processes if code else ():
            os.kill(other, signal.SIGTERM)
    return list(codes.values())


def ranked_pytest(*arguments: str) -> None:
    """Print the exit codes of two ranks of ``pytest`` as JSON."""
    print(json.dumps(forked(2, lambda: int(pytest.main(list(arguments))))))


FAMILIES = ("llama", "qwen3", "smollm2", "mistral")
DRAFTS = (None, "ngram(n_min=1)", "draft_model(layers=1)", "tree(beam=2, depth=3)")
HEADS = ("medusa(head_init=random)", "eagle")
"""Drafts that read the target's head themselves, on one family."""


@dataclass(frozen=True)
class Found:
    """What one case gave on one rank: outputs that are equal, differences that no tie explains, and all tokens."""

    equal: int
    bugs: list[str]
    tokens: list[tuple[int, ...]]


def ranked_cases() -> None:
    """Print what every tiny case gives on each of two ranks: beside the whole model in the same process."""
    forked(2, _tiny_rank)


def _tiny_rank() -> int:
    torch.set_num_threads(1)
    place = _joined()
    found: dict[str, Any] = {}
    for family in FAMILIES:
        whole, cut = (_built(families.build_model(family), place if several else None) for several in (False, True))
        judge = Judge(whole.target, tiny.prompts(1)[0])
        found[f"{family} logits"] = _logits_apart(whole.target, cut.target), judge.bound
        for draft in (*DRAFTS, *(HEADS if family == "llama" else ())):
            for temperature in (0.0, 1.0):
                found[f"{family} {draft} {temperature:g}"] = vars(_compared(judge, whole, cut, draft, temperature))
    Path(f"found{place.rank}.json").write_text(json.dumps(found))
    return 0


def ranked_smollm2() -> None:
    """Print what SmolLM2-135M gives on each of two ranks, beside the whole model in the same process."""
    forked(2, _smollm2_rank)


def _smollm2_rank() -> int:
    torch.set_num_threads(1)
    place = _joined()
    whole, cut = (
        _built(catalog.load("smollm2-135m", torch.device("cpu"), torch.float32).model, place if several else None)
        for several in (False, True)
    )
    judge = Judge(whole.target, tiny.prompts(1)[0])
    found: dict[str, Any] = {"cut": str(cut.target.sharding)}
    found["logits"] = _logits_apart(whole.target, cut.target), judge.bound
    for draft in (None, "ngram(n_min=1)", "tree(beam=2, depth=2)"):
        found[str(draft)] = vars(_compared(judge, whole, cut, draft, 0.0))
    Path(f"found{place.rank}.json").write_text(json.dumps(found))
    return 0


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
def _logits_apart(whole: ArenaModel, cut: ArenaModel) -> float:
    tokens = torch.tensor([tiny.prompts(1)[0][:9]])
    found = []
    for target in (whole, cut):
        arena = target.arena(1, 32, 4)
        target.extend(arena, tokens[:, :5], 0, 0)
        window = Window.chain(tokens[:, 5], tokens[:, 6:], tokens.new_tensor([3]))
        found.append(target.forward(arena, window, slice(0, 1), 5)[0].float())
    return float((found[0] - found[1]).abs().max())


def _compared(judge: Judge, whole: Assembly, cut: Assembly, draft: str | None, temperature: float) -> Found:
    work = tiny.requests(SamplingParams(max_new_tokens=6, temperature=temperature, seed=3), 3)
    plain, other = EngineSource(whole.engine(None)), EngineSource(cut.engine(draft, k=4 if draft else None))
    outputs = plain.tokens(work), other.tokens(work)
    bugs, equal = [], 0
    for request, want, got in zip(work, *outputs, strict=True):
        equal += want == got
        bugs += [str(one) for one in judge.compare(work, request, plain, other, (want, got)) if not one.tie]
    return Found(equal, bugs, outputs[1])


def rank_texts(folder: Path, ranks: int = 2) -> Sequence[str]:
    """What each rank printed."""
    return [(folder / f"rank{rank}.txt").read_text() for rank in range(ranks)]
