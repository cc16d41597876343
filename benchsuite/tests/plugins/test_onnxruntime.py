"""ONNX Runtime's peers hand a stand-in what the real one was seen to want, and read what it was seen to answer.

Seen of onnxruntime-genai 0.18.0 on a tiny Llama: a call gives one token; a round's others come from a buffer, during
which no counter moves; ``eos_token_id`` must be [] for a text to go on; with top_k=0 and top_p=0.3 it drew 282 of 600
tokens from the five within top_p, with top_k=258, the whole vocabulary, 600 of 600.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.conformance.engines import kit_env
from benchsuite.conformance.models import families
from specdec import DraftCounts, Registry, Request, SamplingParams, SpecdecError, catalog
from specdec_plugins.engines import onnxruntime

ROUNDS = (("step", 1, 0, 0), ("round", 3, 4, 2), ("step", 1, 0, 0), ("round", 1, 2, 0), ("round", 5, 4, 4))
"""What the stand-in's forwards do: their kind, tokens, proposals, and those that are accepted."""


class OrtStandIn:
    """onnxruntime_genai, without a model."""

    __version__ = "9.8"

    def __init__(self) -> None:
        self.folders: list[dict[str, Any]] = []
        self.overlays: list[dict[str, Any]] = []
        self.asked: list[tuple[dict[str, Any], dict[str, Any] | None, list[int]]] = []

    def Config(self, folder: str) -> Any:
        self.folders.append(json.loads((Path(folder) / "genai_config.json").read_text())["model"])
        return SimpleNamespace(overlay=lambda text: self.overlays.append(json.loads(text)["model"]))

    def Model(self, config: Any) -> str:
        return "model"

    def GeneratorParams(self, model: str) -> Any:
        given = SimpleNamespace(search={}, speculative=None)
        given.set_search_options = lambda **options: given.search.update(options)
        given.set_speculative_options = lambda **options: setattr(given, "speculative", options)
        return given

    def Generator(self, model: str, params: Any) -> Any:
        return OrtGenerator(self, params)


class OrtGenerator:
    """Its generator: token n of a text is n."""

    def __init__(self, owner: OrtStandIn, params: Any) -> None:
        self.owner, self.params, self.work, self.buffered, self.last = owner, params, [*ROUNDS], 0, -1
        self.stats = dict.fromkeys(
            ("target_forward_passes", "standard_fallback_steps", "draft_tokens_proposed", "draft_tokens_accepted"), 0
        )

    def append_tokens(self, ids: np.ndarray[Any, Any]) -> None:
        assert ids.dtype == np.int32
        self.owner.asked.append((self.params.search, self.params.speculative, ids[0].tolist()))
        self.read = ids.shape[1]

    def generate_next_token(self) -> None:
        if not self.buffered:
            kind, self.buffered, proposed, accepted = self.work.pop(0)
            self.stats["target_forward_passes" if kind == "round" else "standard_fallback_steps"] += 1
            self.stats["draft_tokens_proposed"] += proposed
            self.stats["draft_tokens_accepted"] += accepted
        self.buffered -= 1
        self.last += 1

    def get_next_tokens(self) -> list[int]:
        return [self.last]

    def get_speculative_stats(self) -> dict[str, int]:
        return dict(self.stats)

    def get_logits(self) -> np.ndarray[Any, Any]:
        return np.array([[[0.0], [float(self.read)]]])


@pytest.fixture
def ort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OrtStandIn:
    """The stand-in in the package's place; a model is converted to its config alone."""

    def saves(model: Any, tokenizer: Any, folder: Path) -> None:
        decoder = {"filename": "model.onnx", "hidden_size": model.config.hidden_size}
        said = {"model": {"vocab_size": model.config.vocab_size, "decoder": decoder}}
        (folder / "genai_config.json").write_text(json.dumps(said))

    stand_in = OrtStandIn()
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", stand_in)
    monkeypatch.setitem(sys.modules, "onnx_ir", SimpleNamespace())
    monkeypatch.setattr(onnxruntime, "save_onnx", saves)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return stand_in


def ort_peer(text: str, **changed: Any) -> Any:
    return Registry().peer(text, replace(kit_env(lambda: families.build_model("llama-16")), **changed))


SESSION: dict[str, Any] = {
    "intra_op_num_threads": 1,
    "inter_op_num_threads": 1,
    "session.intra_op.allow_spinning": "0",
}


@pytest.mark.parametrize(
    ("text", "threads", "speculative", "described"),
    [
        ("onnxruntime", 1, None, "1 threads that wait asleep"),
        ("onnxruntime(threads=3)", 3, None, "3 threads that wait asleep"),
        (
            "onnxruntime_speculative",
            1,
            {"max_draft_tokens": 4, "ngram_size": 3, "ngram_chained_lookup": False},
            "1 threads that wait asleep; n-grams of 2, k=4",
        ),
        (
            "onnxruntime_speculative(k=16, ngram=15, chained=True, threads=2)",
            2,
            {"max_draft_tokens": 16, "ngram_size": 16, "ngram_chained_lookup": True},
            "2 threads that wait asleep; n-grams of 15, chained, k=16",
        ),
    ],
)
def test_onnx_runtime_sleeps_while_it_waits_ends_at_no_token_of_its_own_and_is_told_what_looks_up(
    text: str, threads: int, speculative: object, described: str, ort: OrtStandIn
) -> None:
    built = ort_peer(text)
    session = {**SESSION, "intra_op_num_threads": threads}
    assert ort.overlays == [{"eos_token_id": [], "decoder": {"session_options": session}}]
    assert built.set_up_seconds.keys() == {"convert", "load"}
    assert built.conditions() == {"dtype": "float32", "compile": "no"}
    assert built.described() == f"ONNX Runtime GenAI 9.8: float32, {described}"
    built.generate([Request(0, (7, 8), SamplingParams(max_new_tokens=4))])
    assert ort.asked == [({"max_length": 6, "do_sample": False}, speculative, [7, 8])]


def test_a_draft_model_stands_beside_the_target_in_a_folder_of_both(ort: OrtStandIn) -> None:
    built = ort_peer("onnxruntime_speculative(model=tiny, k=2)")
    assert ort.folders == [
        {
            "vocab_size": 258,
            "decoder": {"filename": "decoder/model.onnx", "hidden_size": 64},
            "draft": {"filename": "draft/model.onnx", "hidden_size": 64},
        }
    ]
    options = {"session_options": SESSION}
    assert ort.overlays == [{"eos_token_id": [], "decoder": options, "draft": options}]
    assert built.described().endswith("; draft model tiny, k=2")
    built.generate([Request(0, (7,), SamplingParams(max_new_tokens=1))])
    assert ort.asked[0][1] == {"max_draft_tokens": 2}


@pytest.mark.parametrize(
    ("most", "eos", "tokens", "counts", "forwards", "said"),
    [
        (1, (), 1, [1], 0, DraftCounts.of_steps([])),
        (3, (), 3, [1, 2], 1, DraftCounts.of_steps([(4, 2)])),
        (9, (3,), 4, [1, 3], 1, DraftCounts.of_steps([(4, 2)])),
        (11, (), 11, [1, 3, 1, 1, 5], 4, DraftCounts.of_steps([(4, 2), (2, 0), (4, 4)])),
    ],
)
def test_the_tokens_of_one_round_arrive_together_until_the_end_or_the_budget(
    most: int, eos: tuple[int, ...], tokens: int, counts: list[int], forwards: int, said: DraftCounts, ort: OrtStandIn
) -> None:
    built = ort_peer("onnxruntime_speculative")
    [done] = built.generate([Request(0, (1,), SamplingParams(max_new_tokens=most, eos=eos))])
    assert done.tokens == tuple(range(tokens))
    assert [new for _, new in done.emissions] == counts
    assert (done.forwards, done.counts) == (forwards, said)
    times = [0.0, *(at for at, _ in done.emissions), done.seconds]
    assert times == sorted(times)


def test_without_speculation_each_token_is_a_forward_and_nothing_is_counted(ort: OrtStandIn) -> None:
    [done] = ort_peer("onnxruntime").generate([Request(0, (1,), SamplingParams(max_new_tokens=5))])
    assert ([new for _, new in done.emissions], done.forwards, done.counts) == ([1] * 5, 4, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0.5, "seed": 7}, {"temperature": 0.5, "top_p": 1.0, "top_k": 258, "random_seed": 10}),
        ({"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5, "top_k": 258, "random_seed": 3}),
        ({"temperature": 1.0, "top_k": 5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 5, "random_seed": 3}),
    ],
)
def test_onnx_runtime_draws_from_the_whole_vocabulary_by_its_number(
    given: dict[str, Any], expected: dict[str, Any], ort: OrtStandIn
) -> None:
    built, params = ort_peer("onnxruntime"), SamplingParams(max_new_tokens=1, **given)
    built.check_params(params)
    built.generate([Request(3, (1,), params)])
    assert ort.asked[0][0] == {"max_length": 2, "do_sample": True, **expected}
    with pytest.raises(SpecdecError, match="onnxruntime cannot decode with min_p; it takes temperature, top_k, top_p"):
        built.check_params(SamplingParams(temperature=1.0, min_p=0.5))


def test_logits_are_read_after_the_text_before_the_token_without_speculation(ort: OrtStandIn) -> None:
    built = ort_peer("onnxruntime_speculative")
    request = Request(0, (7, 8), SamplingParams(max_new_tokens=4, temperature=1.0))
    logits = built.logits_at(request, 2)
    assert (logits.dtype, logits.tolist()) == (torch.float32, [4.0]), "of the last position, after 4 tokens"
    assert ort.asked[1] == ({"max_length": 5, "do_sample": False}, None, [7, 8, 0, 1])
    assert built.logits_at(request, 4) is None


@pytest.mark.parametrize(("dtype", "own"), [(torch.float32, False), (torch.bfloat16, True)])
def test_beside_another_dtype_the_arithmetic_is_its_own(dtype: torch.dtype, own: bool, ort: OrtStandIn) -> None:
    assert ort_peer("onnxruntime", dtype=dtype).own_arithmetic is own


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("onnxruntime(threads=0)", "threads of the peer onnxruntime is 0; expected a whole number, 1 or more"),
        ("onnxruntime_speculative(threads=0)", "threads of the peer onnxruntime is 0; expected a whole number"),
        ("onnxruntime_speculative(k=0)", "k of the peer onnxruntime_speculative is 0; expected a whole number"),
        ("onnxruntime_speculative(k=17)", "k of the peer onnxruntime_speculative is 17; expected 16 or less"),
        ("onnxruntime_speculative(ngram=16)", "ngram of the peer onnxruntime_speculative is 16; expected 15 or less"),
        ("onnxruntime_speculative(chained=1)", "chained of the peer .* is 1; expected True or False"),
    ],
)
def test_wrong_options_of_onnx_runtime_are_refused(text: str, says: str, ort: OrtStandIn) -> None:
    with pytest.raises(SpecdecError, match=says):
        Registry().parse_peer(text)


def test_a_draft_model_with_other_tokens_is_refused_by_onnx_runtime(
    ort: OrtStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"a": 0}), model=None)
    monkeypatch.setattr(catalog, "load", lambda *given, **more: other)
    with pytest.raises(SpecdecError, match="the draft model 'x' has another tokenizer than the target"):
        ort_peer("onnxruntime_speculative(model=x)")


def test_heads_that_onnx_runtime_does_not_take_and_what_its_builder_refuses_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecdecError, match="the heads of LlamaForCausalLM have 8 numbers; .* multiples of 16"):
        onnxruntime.save_onnx(families.build_model("llama"), catalog.byte_tokenizer(), tmp_path)
    failed = SimpleNamespace(returncode=1, stderr="Traceback\nNotImplementedError: no such model\n")
    monkeypatch.setattr("subprocess.run", lambda *given, **more: failed)
    (tmp_path / "made").mkdir()
    with pytest.raises(SpecdecError, match="could not convert LlamaForCausalLM: NotImplementedError: no such model"):
        onnxruntime.save_onnx(families.build_model("llama-16"), catalog.byte_tokenizer(), tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made"], "the source that the builder read is gone"


def test_a_closed_peer_of_onnx_runtime_says_so(ort: OrtStandIn) -> None:
    built = ort_peer("onnxruntime")
    built.close()
    built.close()
    with pytest.raises(SpecdecError, match=r"^this peer of ONNX Runtime is closed; build another$"):
        built.generate([Request(0, (1,))])


def test_onnx_runtime_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.peer.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "onnxruntime_genai", raising=False)
    for text in ("onnxruntime", "onnxruntime_speculative"):
        with pytest.raises(
            SpecdecError, match=r"onnxruntime_genai is not installed; pip install 'specdec-bench\[onnxr"
        ):
            Registry().parse_peer(text)
