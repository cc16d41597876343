"""A head in a server beside our engine: equal engines are found equal, however they end, and another one is not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.benches.serving.restarts import ServersInTurn
from benchsuite.engines.record import read_recorded
from benchsuite.engines.served_head import (
    ENGINE,
    PromptSteps,
    ServedHead,
    ServedHeadPlan,
    SpeculatedText,
    compare_served_head,
    mean_difference,
    speculated_text,
)
from benchsuite.report.renderers import terminal
from benchsuite.report.served_head import served_head_document
from benchsuite.tests.our_server import Bugs, OurServer
from specdec import Registry, SpecdecError, catalog
from specdec.assembly import Assembly
from specdec.model import ArenaModel
from specdec_plugins.endpoints.answers import AnswerReader
from specdec_plugins.endpoints.replies import Reply
from specdec_plugins.heads.exported import export_eagle3
from specdec_plugins.heads.start import eagle3_start

RECORDED = Path(__file__).parents[1] / "recorded" / "engines"
K = 3


def drafted_answer(good: list[bool], k: int, first: int, capped: bool) -> SpeculatedText:
    """An answer of as many tokens as ``good`` has, by a draft that is right where it says, and behind the ``first``
    tokens. ``capped``: the engine proposes no more than fits; otherwise it counts what it cuts off."""
    steps, place = [], first
    while place < len(good):
        proposed = min(k, len(good) - place - 1) if capped else k
        ahead = (good + [True] * k)[place : place + proposed]
        accepted = ahead.index(False) if False in ahead else proposed
        steps.append((proposed, accepted))
        place += accepted + 1
    return SpeculatedText(tuple(range(len(good))), tuple(steps), first)


@pytest.mark.parametrize("seed", range(20))
def test_full_steps_do_not_depend_on_how_an_engine_begins_and_ends_an_answer(seed: int) -> None:
    dice = random.Random(seed)
    length, k = dice.randint(20, 60), dice.randint(1, 5)
    good = [dice.random() < 0.6 for _ in range(length)]
    served, ours = drafted_answer(good, k, first=1, capped=False), drafted_answer(good, k, first=0, capped=True)
    one = PromptSteps("chat", served, ours)
    steps = one.steps("served", k)
    assert steps == one.steps("ours", k)
    assert steps
    assert all(proposed == k and place + k < length for place, (proposed, _) in steps.items())
    assert one.difference(k) == 0
    good[next(place for place, (_, accepted) in steps.items() if accepted)] = False
    other = PromptSteps("chat", drafted_answer(good, k, first=1, capped=False), ours)
    assert other.steps("served", k) != other.steps("ours", k)


def recorded_reply(name: str, answer: str) -> Reply:
    """An answer of a real server, as the client reads it."""
    text = read_recorded(RECORDED / f"{name}.json.gz")["answers"][answer]["text"]
    reader = AnswerReader(32)
    reader.whole(text.encode(), 1.0)
    return reader.reply(1.0)


@pytest.mark.parametrize("answer", ["text-token-ids", "ends-token-ids", "sampled-token-ids"])
def test_the_steps_of_a_real_answer_yield_its_tokens(answer: str) -> None:
    found = speculated_text(recorded_reply("vllm-draft-model", answer), 4)
    end = found.first + sum(accepted + 1 for _, accepted in found.steps)
    assert 0 <= end - len(found.tokens) <= 4
    full = found.full_steps(len(found.tokens), 4)
    assert [*full.values()] == [*found.steps[: len(full)]]
    assert len(found.steps) - len(full) <= 5


def test_answers_without_steps_or_with_steps_that_proposed_nothing_are_refused() -> None:
    with pytest.raises(SpecdecError, match=r"32 token ids and 0 steps; expected .*metrics detailed"):
        speculated_text(recorded_reply("vllm-plain", "text-token-ids"), 4)
    with pytest.raises(SpecdecError, match="0 token ids"):
        speculated_text(recorded_reply("vllm-ngram", "text-whole"), 4)
    with pytest.raises(SpecdecError, match="yield 15 tokens for an answer of 32; .* steps without a proposal"):
        speculated_text(recorded_reply("vllm-ngram", "sampled-token-ids"), 4)


def test_the_interval_of_differences_covers_and_is_none_for_few_prompts() -> None:
    dice = random.Random(5)
    covered = 0
    for _ in range(300):
        made = {kind: [dice.gauss(0.2, 0.3) for _ in range(4)] for kind in ("chat", "code", "json")}
        middle, interval = mean_difference(made)
        assert interval
        assert interval[0] < middle < interval[1]
        covered += interval[0] <= 0.2 <= interval[1]
    assert 0.92 <= covered / 300 <= 0.98
    few, without = mean_difference({"chat": [0.1, 0.3]})
    assert few == pytest.approx(0.2)
    assert without is None
    assert mean_difference({"chat": [0.0] * 6}) == (0.0, (0.0, 0.0))


class SteppingServer(OurServer):
    """Decodes the first token of an answer plainly and counts each step behind it in vLLM's words."""

    def answer(self, asked: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
        """The objects of an answer, with the steps of all of it once it is whole."""
        counts: dict[str, Any] = {}
        first, _ = super().answer(asked | {"max_tokens": 1}, chat)
        earlier = len(self.engine.stats.steps)
        [choice] = first["choices"]
        prompt = [*asked["prompt"], choice["logprobs"]["content"][0]["id"]]
        rest = super().answer(asked | {"prompt": prompt, "max_tokens": asked["max_tokens"] - 1}, chat)
        for one in (first | {"choices": [choice | {"finish_reason": None}]}, *rest):
            rows = [step.each[0] for step in self.engine.stats.steps[earlier:]]
            counts |= {
                "num_spec_steps": len(rows),
                "num_draft_tokens": K * len(rows),  # also where fewer fit: it counts what it cuts off
                "num_accepted_draft_tokens": sum(row.accepted for row in rows),
                "per_step_drafted": [K] * len(rows),
                "per_step_accepted": [row.accepted for row in rows],
            }
            if usage := one.get("usage"):
                usage |= {"prompt_tokens": len(asked["prompt"]), "completion_tokens": usage["completion_tokens"] + 1}
            yield one | {"metrics": {"speculative_decoding": counts}}


@pytest.fixture(scope="module")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported head of the tiny target."""
    folder = tmp_path_factory.mktemp("heads") / "head"
    model = catalog.load("tiny", torch.device("cpu"), torch.float32).model
    ids = torch.arange(model.config.vocab_size - 3)
    export_eagle3(folder, eagle3_start(model, 2, ids, seed=0), ids, (0, 1), model, K)
    return folder


def beside_a_server(head: Path, draft: str, bugs: Bugs | None = None) -> ServedHead:
    """The head in our engine, beside a server of our own with another draft."""
    loaded = catalog.load("tiny", torch.device("cpu"), torch.float32)
    target = ArenaModel(loaded.model, Registry().backend("auto"))
    assembly = Assembly(Registry(), target, loaded.tokenizer, max_rows=1, max_length=2048)
    eos = catalog.end_tokens(loaded.model)
    with SteppingServer(assembly.engine(draft, k=K), bugs, eos) as server:
        port = int(server.url.rpartition(":")[2])
        return compare_served_head(
            ServedHeadPlan(str(head), "tiny", ("chat", "reasoning"), 3, 24, K, port), ServersInTurn({})
        )


@pytest.mark.slow
def test_the_same_head_in_another_process_accepts_the_same_in_every_step(tiny_head: Path) -> None:
    found = beside_a_server(tiny_head, f"eagle3(head='{tiny_head}')")
    assert found.agreement.equal == found.agreement.runs == 6
    assert found.same_steps == found.counts("served").drafts == found.counts("ours").drafts
    assert found.same_steps > 12
    shown = "\n".join(terminal(served_head_document(found)))
    assert "of vllm minus ours: +0.000 (+0.000 to +0.000)" in shown
    assert "outputs: 6/6 equal, token by token" in shown


@pytest.mark.slow
def test_a_server_that_accepts_more_or_writes_other_tokens_is_seen(tiny_head: Path) -> None:
    found = beside_a_server(tiny_head, "oracle(rate=1.0)")
    middle, interval = mean_difference(found.differences())
    assert interval
    assert 0 < interval[0] < middle
    served = found.counts("served")
    assert served.accepted == served.proposed
    assert found.same_steps < (served.drafts or 0)
    changed = beside_a_server(tiny_head, f"eagle3(head='{tiny_head}')", Bugs(change=8))
    different = changed.agreement.runs - changed.agreement.equal
    assert changed.ties < different
    assert f"{changed.ties} of {different} first differences are ties" in "\n".join(
        terminal(served_head_document(changed))
    )


def test_a_server_that_does_not_start_is_one_sentence(tiny_head: Path) -> None:
    plan = ServedHeadPlan(str(tiny_head), "tiny", ("chat",), 1, 8, K, 8123)
    with pytest.raises(SpecdecError, match=f"the server of {ENGINE} ended with 1"):
        compare_served_head(plan, ServersInTurn({ENGINE: "false"}))


def test_the_server_is_started_with_the_head_and_asked_for_its_steps() -> None:
    words = ServedHeadPlan("a/head", "models/small", ("chat",), 1, 8, 5, 8123).command(Path("e"))
    config = json.loads(words.split("--speculative-config '")[1].split("'")[0])
    assert config == {"method": "eagle3", "num_speculative_tokens": 5, "model": "a/head"}
    assert "--per-request-spec-decode-metrics detailed" in words
