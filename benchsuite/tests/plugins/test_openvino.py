"""OpenVINO's peers hand a stand-in what the real one was seen to want, and read what it was seen to answer.

Seen of openvino-genai 2026.4.1.0 on a tiny Llama (``conformance.engine``, without the stand-in): a step answers each
request by its handle, whose ``read`` gives the new tokens alone; ``ignore_eos`` turns off ``stop_token_ids`` too.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchsuite.conformance.engines import kit_env
from benchsuite.conformance.models import families, tiny
from specdec import DraftCounts, Registry, Request, SamplingParams, SpecdecError, catalog
from specdec_plugins.engines import openvino

STEPS: tuple[tuple[int, ...], ...] = ((4,), (5, 6, 7), (), (8,), (9, 10), (11,))
"""The tokens that the stand-in's steps give every request."""


class OpenVinoStandIn:
    """openvino_genai and openvino, without a model."""

    __version__ = "2026.9.1.0-77-abc"

    def __init__(self) -> None:
        self.pipelines: list[Any] = []
        self.asked: list[tuple[int, list[list[int]], dict[str, Any]]] = []
        self.live: dict[int, list[Any]] = {}

    def SchedulerConfig(self) -> SimpleNamespace:
        return SimpleNamespace(enable_prefix_caching=True)

    def GenerationConfig(self) -> SimpleNamespace:
        return SimpleNamespace(eos_token_id=-1, stop_token_ids=set(), ignore_eos=False)

    def draft_model(self, folder: str, device: str, **given: Any) -> Any:
        return folder, device, given

    def Tensor(self, array: np.ndarray[Any, Any]) -> list[list[int]]:
        assert array.dtype == np.int64
        found: list[list[int]] = array.tolist()
        return found

    def ContinuousBatchingPipeline(self, folder: str, scheduler: Any, device: str, given: dict[str, Any]) -> Any:
        self.pipelines.append((folder, vars(scheduler), device, given))
        return self

    def add_request(self, name: int, ids: list[list[int]], config: SimpleNamespace) -> Any:
        self.asked.append((name, ids, vars(config)))
        left = [list(step) for step in STEPS]
        queue: list[Any] = []
        self.live[name] = [left, queue, config.max_new_tokens]

        def read() -> dict[int, Any]:
            return {0: SimpleNamespace(generated_ids=queue.pop(0))}

        return SimpleNamespace(can_read=lambda: bool(queue), read=read)

    def has_non_finished_requests(self) -> bool:
        return bool(self.live)

    def step(self) -> None:
        for name, work in list(self.live.items()):
            new = work[0].pop(0)[: work[2]]
            work[1] += [[token] for token in new]  # what one step gave may be read in parts
            work[2] -= len(new)
            if not work[2]:
                del self.live[name]


@pytest.fixture
def genai(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OpenVinoStandIn:
    """The stand-in in the place of both packages; models are converted to empty folders."""
    stand_in = OpenVinoStandIn()
    for name in ("openvino", "openvino_genai"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(openvino, "save_ir", lambda model, tokenizer, folder: None)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return stand_in


def openvino_peer(text: str, **changed: Any) -> Any:
    return Registry().peer(text, replace(kit_env(lambda: families.build_model("llama")), **changed))


PROPERTIES: dict[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
    "ENABLE_CPU_PINNING": False,
}


@pytest.mark.parametrize(
    ("text", "changed", "config", "described"),
    [
        ("openvino", {}, {}, "1 threads, no prefix caching"),
        ("openvino(threads=3)", {"INFERENCE_NUM_THREADS": 3}, {}, "3 threads, no prefix caching"),
        (
            "openvino_prompt_lookup",
            {"prompt_lookup": True},
            {"num_assistant_tokens": 5, "max_ngram_size": 3},
            "1 threads, no prefix caching; prompt lookup k=5, ngram=3",
        ),
        (
            "openvino_prompt_lookup(k=2, ngram=4, threads=2)",
            {"prompt_lookup": True, "INFERENCE_NUM_THREADS": 2},
            {"num_assistant_tokens": 2, "max_ngram_size": 4},
            "2 threads, no prefix caching; prompt lookup k=2, ngram=4",
        ),
    ],
)
def test_openvino_computes_in_float32_without_prefix_caching_and_is_told_what_looks_up(
    text: str, changed: dict[str, Any], config: dict[str, Any], described: str, genai: OpenVinoStandIn
) -> None:
    built = openvino_peer(text)
    [(folder, scheduler, device, given)] = genai.pipelines
    assert Path(folder).parent.name == "converted"
    assert Path(folder).name.startswith("openvino-2026.9.1.0-")
    assert scheduler == {"enable_prefix_caching": False, "max_num_seqs": 4, "max_num_batched_tokens": 768}
    assert (device, given) == ("CPU", {**PROPERTIES, **changed})
    assert built.set_up_seconds.keys() == {"convert", "load"}
    assert built.conditions() == {"dtype": "float32", "compile": "by OpenVINO"}
    assert built.described() == f"OpenVINO GenAI {genai.__version__}: float32, cache in float32, {described}"
    built.generate([Request(0, (1,), SamplingParams(max_new_tokens=4))])
    assert config.items() <= genai.asked[0][2].items()


def test_a_draft_model_is_converted_and_computes_as_the_target(genai: OpenVinoStandIn, tmp_path: Path) -> None:
    built = openvino_peer(f"openvino_draft(model={tiny.save_target('llama', tmp_path / 'draft')}, k=3, threads=2)")
    [(folder, _, _, given)] = genai.pipelines
    properties = {**PROPERTIES, "INFERENCE_NUM_THREADS": 2}
    draft, device, of_draft = given.pop("draft_model")
    assert (device, of_draft, given) == ("CPU", properties, properties)
    assert Path(draft).parent == Path(folder).parent
    assert built.described().endswith(f"; draft model {tmp_path / 'draft'}, k=3")
    [done] = built.generate([Request(0, (1,), SamplingParams(max_new_tokens=8))])
    assert genai.asked[0][2]["num_assistant_tokens"] == 3
    # After the prefill's token steps accepted 2, 0 and 1; the last had no room left for a proposal.
    assert [new for _, new in done.emissions] == [1, 3, 1, 2, 1]
    assert done.counts == DraftCounts(3, None, 3, (2, 1))


@pytest.mark.parametrize(
    ("most", "tokens", "counts"),
    [(1, (4,), [1]), (2, (4, 5), [1, 1]), (4, (4, 5, 6, 7), [1, 3]), (5, (4, 5, 6, 7, 8), [1, 3, 1])],
)
def test_the_tokens_of_one_step_arrive_together_and_a_step_without_tokens_is_none(
    most: int, tokens: tuple[int, ...], counts: list[int], genai: OpenVinoStandIn
) -> None:
    built = openvino_peer("openvino")
    params = SamplingParams(max_new_tokens=most)
    for call in range(2):
        first, second = built.generate([Request(0, (1, 2), params), Request(1, (3,), replace(params, eos=(9, 8)))])
        for done in (first, second):
            assert done.tokens == tokens
            assert [new for _, new in done.emissions] == counts
            assert (done.forwards, done.counts) == (len(counts) - 1, None)
            times = [0.0, *(at for at, _ in done.emissions), done.seconds]
            assert times == sorted(times)
        assert first.emissions == second.emissions, "they ran in the same steps"
        assert [name for name, _, _ in genai.asked] == list(range(2 * call + 2)), "every request has a name of its own"
    (_, ids, free), (_, others, ended) = genai.asked[:2]
    assert (ids, others) == ([[1, 2]], [[3]])
    assert (free["ignore_eos"], ended["ignore_eos"]) == (True, False)
    assert (ended["eos_token_id"], ended["stop_token_ids"]) == (9, {8, 9})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"do_sample": False}),
        ({"temperature": 0.5, "seed": 7}, {"do_sample": True, "temperature": 0.5, "top_p": 1.0, "rng_seed": 10}),
        (
            {"temperature": 1.0, "top_k": 5},
            {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 5, "rng_seed": 3},
        ),
        ({"temperature": 1.0, "top_p": 0.5}, {"do_sample": True, "temperature": 1.0, "top_p": 0.5, "rng_seed": 3}),
    ],
)
def test_openvino_is_given_these_parameters_and_no_others(
    given: dict[str, Any], expected: dict[str, Any], genai: OpenVinoStandIn
) -> None:
    built, params = openvino_peer("openvino"), SamplingParams(max_new_tokens=1, **given)
    built.check_params(params)
    built.generate([Request(3, (1,), params)])
    usual = {"eos_token_id": -1, "stop_token_ids": set(), "ignore_eos": True, "max_new_tokens": 1}
    assert genai.asked[0][2] == {**usual, **expected}


@pytest.mark.parametrize(
    ("text", "params", "says"),
    [
        ("openvino", {"temperature": 1.0, "top_k": 5, "top_p": 0.5}, "applies top_p before top_k, our engine after"),
        ("openvino", {"temperature": 1.0, "min_p": 0.5}, "openvino cannot decode with min_p; it takes temperature"),
        ("openvino_draft(model={})", {"temperature": 1.0}, "draws other tokens each time, whatever the seed"),
    ],
)
def test_what_openvino_draws_otherwise_is_refused(
    text: str, params: dict[str, Any], says: str, genai: OpenVinoStandIn, tmp_path: Path
) -> None:
    built = openvino_peer(text.format(tiny.save_target("llama", tmp_path / "draft")))
    built.check_params(SamplingParams(top_k=5, top_p=0.5))  # at temperature 0 nothing is drawn
    with pytest.raises(SpecdecError, match=says):
        built.check_params(SamplingParams(**params))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("openvino(threads=0)", "threads of the peer openvino is 0; expected a whole number, 1 or more"),
        ("openvino_prompt_lookup(threads=0)", "threads of the peer openvino is 0; expected a whole number"),
        ("openvino_prompt_lookup(k=0)", "k of the peer openvino_prompt_lookup is 0; expected a whole number"),
        ("openvino_prompt_lookup(ngram=0)", "ngram of the peer openvino_prompt_lookup is 0; expected a whole number"),
        ("openvino_draft(model=x, k=0)", "k of the peer openvino_draft is 0; expected a whole number"),
        ("openvino_draft(model=x, threads=0)", "threads of the peer openvino is 0; expected a whole number"),
        ("openvino_draft", r"model of the peer openvino_draft is None; expected .*: openvino_draft\(model=path"),
    ],
)
def test_wrong_options_of_openvino_are_refused(text: str, says: str, genai: OpenVinoStandIn) -> None:
    with pytest.raises(SpecdecError, match=says):
        Registry().parse_peer(text)


def test_a_draft_model_with_other_tokens_is_refused(genai: OpenVinoStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"a": 0}), model=None)
    monkeypatch.setattr(catalog, "load", lambda *given, **more: other)
    with pytest.raises(
        SpecdecError, match="the draft model 'x' has another tokenizer than the target .*, or use openv"
    ):
        openvino_peer("openvino_draft(model=x)")
    assert not genai.pipelines


def test_a_closed_peer_of_openvino_says_so(genai: OpenVinoStandIn) -> None:
    built = openvino_peer("openvino")
    built.close()
    built.close()
    with pytest.raises(SpecdecError, match=r"^this peer of OpenVINO is closed; build another$"):
        built.generate([Request(0, (1,))])


def test_openvino_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.peer.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "openvino_genai", raising=False)
    for text in ("openvino", "openvino_prompt_lookup", "openvino_draft(model=x)"):
        with pytest.raises(SpecdecError, match=r"openvino_genai is not installed; pip install 'specdec-bench\[openvin"):
            Registry().parse_peer(text)
