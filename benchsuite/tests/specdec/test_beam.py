"""Beam search finds transformers' texts with transformers' scores, and copies no more rows than it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
)

from benchsuite.conformance.guards.read_guard import only_engine_reads
from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import prompts, registry
from benchsuite.measure import workloads
from benchsuite.tests.rig import loaded_smollm2, slow_after
from specdec import Request, SamplingParams, SpecdecError
from specdec.arena import Arena, LayerShape
from specdec.beam import FLOOR, Beams, BeamSearch, Hypothesis
from specdec.model import ArenaModel
from specdec_plugins.engines.transformers import generate_arguments

PROMPT = prompts(1)[0]
FAMILIES = ("llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt2")
TOKENS = 10
EARLY = (False, True, "never")


class Parents(DynamicCache):  # type: ignore[misc]  # transformers is typed in parts only
    """transformers' own cache, which also writes down which beam each beam of a step grew out of."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.seen: list[list[int]] = []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.seen.append(beam_idx.tolist())
        super().reorder_cache(beam_idx)


@dataclass(frozen=True)
class Theirs:
    """What transformers' ``generate`` found: new tokens and score of each text; its steps, and their parents."""

    tokens: list[tuple[int, ...]]
    scores: list[float]
    steps: int
    parents: list[list[int]]


@cache
def models(family: str) -> tuple[ArenaModel, PreTrainedModel]:
    """The target and transformers' model of the same weights.

    In float64 both compute the same log-probabilities, so that no text differs because two of them nearly tie.
    """
    theirs = families.build_model(family, dtype=torch.float64)
    theirs.generation_config = GenerationConfig()  # without the config's own end token
    return ArenaModel(families.build_model(family, dtype=torch.float64), registry().backend()), theirs


def search(family: str, width: int = 4, max_length: int = 128) -> BeamSearch:
    """A beam search over the family's target."""
    return BeamSearch(models(family)[0], width=width, max_length=max_length)


def request(eos: tuple[int, ...] = (), most: int = TOKENS, prompt: tuple[int, ...] = PROMPT) -> Request:
    """A request for ``most`` tokens."""
    return Request(0, prompt, SamplingParams(max_new_tokens=most, eos=eos))


@torch.inference_mode()
def generate(model: PreTrainedModel, asked: Request, beams: Beams) -> Theirs:
    """What transformers finds for the request."""
    ids, eos = torch.tensor([asked.prompt]), asked.params.eos
    cache = Parents(config=model.config)
    generate: Any = model.generate
    out = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        num_beams=beams.width,
        num_return_sequences=beams.returned,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **generate_arguments(asked),
    )
    texts = [row[len(asked.prompt) :] for row in out.sequences.tolist()]
    # After an end token there is only padding.
    cut = [next((i + 1 for i, token in enumerate(text) if token in eos), len(text)) for text in texts]
    tokens = [tuple(text[:n]) for text, n in zip(texts, cut, strict=True)]
    return Theirs(tokens, out.sequences_scores.tolist(), len(out.scores), cache.seen)


def assert_equal(ours: tuple[Hypothesis, ...], theirs: Theirs, asked: Request) -> None:
    """Assert that texts, scores and their order are the same, and that each text's reason to end is the true one."""
    assert [one.tokens for one in ours] == theirs.tokens
    assert [one.score for one in ours] == pytest.approx(theirs.scores, rel=1e-5)
    for one in ours:
        assert one.finish_reason == ("eos" if one.tokens[-1] in asked.params.eos else "length")


@cache
def ends(family: str) -> tuple[int, ...]:
    """Two tokens with which texts of the family's model end: in the middle of its best and of its third text."""
    found = search(family).run([request()], Beams(returned=4))[0]
    return found[0].tokens[5], found[2].tokens[3]


@pytest.mark.slow
@pytest.mark.parametrize("early", EARLY, ids=["at_the_heuristic", "when_full", "never"])
@pytest.mark.parametrize("family", slow_after(1, FAMILIES))
def test_texts_and_scores_are_those_of_transformers_generate(family: str, early: Any) -> None:
    beam_search = search(family)
    reasons = set()
    # Without end tokens every search goes to its end, whatever the early stopping.
    for eos in ((), ends(family)) if early is False else (ends(family),):
        for penalty in (1.0, -1.0, 2.5) if eos else (1.0,):
            beams, asked = Beams(4, 4, penalty, early), request(eos)
            found = beam_search.run([asked], beams)[0]
            theirs = generate(models(family)[1], asked, beams)
            assert_equal(found, theirs, asked)
            assert beam_search.counts["target_forwards"] == theirs.steps
            reasons |= {one.finish_reason for one in found}
    assert "eos" in reasons


@pytest.mark.slow
@pytest.mark.parametrize("early", EARLY, ids=["at_the_heuristic", "when_full", "never"])
@pytest.mark.parametrize("penalty", slow_after(1, [0.0, 1.0]))
def test_two_beams_are_transformers_two_beams_on_every_prompt(penalty: float, early: Any) -> None:
    beam_search = search("llama")
    for prompt in prompts(3):
        asked, beams = request(ends("llama"), prompt=prompt), Beams(2, 2, penalty, early)
        assert_equal(beam_search.run([asked], beams)[0], generate(models("llama")[1], asked, beams), asked)


@pytest.mark.slow
@pytest.mark.parametrize("returned", [1, 2, 3])
def test_the_returned_texts_are_the_best_of_the_beams(returned: int) -> None:
    asked, all_of_them = request(ends("qwen2")), search("qwen2").run([request(ends("qwen2"))], Beams(4, 4))[0]
    found = search("qwen2").run([asked], Beams(4, returned))[0]
    assert found == all_of_them[:returned]
    assert_equal(found, generate(models("qwen2")[1], asked, Beams(4, returned)), asked)


@pytest.mark.parametrize("early", EARLY, ids=["at_the_heuristic", "when_full", "never"])
def test_one_beam_is_greedy_decoding_whatever_the_early_stopping(early: Any) -> None:
    model = models("gpt2")[1]
    generate: Any = model.generate
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        out = generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        text = out[0, len(PROMPT) :]
        log_probs = model(out).logits[0, len(PROMPT) - 1 : -1].log_softmax(dim=-1)
    each = log_probs.gather(1, text[:, None])[:, 0]
    for eos in ((), (int(text[4]),)):
        n = next((i + 1 for i, token in enumerate(text.tolist()) if token in eos), TOKENS)
        found = search("gpt2").run([request(eos)], Beams(1, 1, 2.0, early))[0]
        assert [one.tokens for one in found] == [tuple(text[:n].tolist())]
        assert found[0].score == pytest.approx(float(each[:n].sum()) / n**2, rel=1e-5)


@pytest.mark.parametrize("family", slow_after(1, ["llama", "mistral", "gemma3"]))
def test_a_row_is_copied_for_every_beam_beyond_the_first_of_its_parent_and_for_no_other(family: str) -> None:
    """The parents are those that transformers' cache was reordered by; its last reordering is for a step never run."""
    target, theirs = models(family)
    prompt = (PROMPT * 9)[:300]  # longer than a sliding layer's ring, 24 + 256 - 1 cells, and than one prefill forward
    for text in (PROMPT, prompt):
        asked, most = request(prompt=text), len(text) + TOKENS
        beam_search = search(family, max_length=most)
        found = beam_search.run([asked], Beams(4, 4))[0]
        expected = generate(theirs, asked, Beams(4, 4))
        assert_equal(found, expected, asked)
        rows = size = 0
        for cells, parents in enumerate(expected.parents[:-1], start=len(text)):
            copies = len(parents) - len(set(parents))
            rows += copies
            for layer in target.layers:
                held = cells if layer.span is None else min(cells, layer.span + min(256, most) - 1)
                size += copies * held * 2 * layer.heads * layer.head_dim * 8
        assert rows > 3, "only the prompt was copied"
        assert beam_search.counts == {
            "target_forwards": TOKENS,
            "prefill_forwards": -(-(len(text) - 1) // 256),
            "host_reads": TOKENS,
            "kv_beam_rows_copied": rows,
            "kv_beam_bytes_copied": size,
        }


def test_a_single_beam_copies_nothing() -> None:
    alone = search("llama", width=1)
    alone.run([request()], Beams(1))
    assert alone.counts["kv_beam_bytes_copied"] == alone.counts["kv_beam_rows_copied"] == 0


def test_a_copy_of_the_first_cells_changes_no_other_cell_and_no_other_row() -> None:
    shapes = [LayerShape(2, 4, None), LayerShape(2, 4, 3)]
    arena = Arena(shapes, rows=3, max_length=16, max_window=4, dtype=torch.float64, device=torch.device("cpu"))
    for tensor in (*arena.keys, *arena.values):
        tensor.copy_(torch.rand_like(tensor))
    arena.committed[:] = torch.tensor([9, 2, 5])
    before = [tensor.clone() for tensor in (*arena.keys, *arena.values)]
    copied = arena.move(0, 2, cells=9)
    for tensor, old in zip((*arena.keys, *arena.values), before, strict=True):
        assert torch.equal(tensor[2, :, :9], old[0, :, :9])
        assert torch.equal(tensor[2, :, 9:], old[2, :, 9:])
        assert torch.equal(tensor[:2], old[:2])
    assert arena.committed.tolist() == [9, 2, 9]
    assert copied == 2 * 2 * 4 * 8 * (9 + 6)  # the ring of the second layer has 3 + 4 - 1 cells


def test_the_arena_is_allocated_once_and_one_request_changes_nothing_for_the_next() -> None:
    beam_search = search("mistral")

    def pointers() -> list[int]:
        arena = beam_search.arena
        return [tensor.data_ptr() for tensor in (*arena.keys, *arena.values, arena.committed)]

    before = pointers()
    asked = [request(prompt=prompt, most=6) for prompt in prompts(3)]
    together = beam_search.run(asked, Beams(4, 4))
    assert together == [search("mistral").run([one], Beams(4, 4))[0] for one in asked]
    assert beam_search.run(asked[:1], Beams(2, 2)) == search("mistral", width=2).run(asked[:1], Beams(2, 2))
    assert pointers() == before


def test_a_step_reads_the_device_once() -> None:
    beam_search = search("llama")
    with only_engine_reads(beam_search) as guard:
        beam_search.run([request()], Beams(4))
    assert beam_search.counts["host_reads"] == beam_search.counts["target_forwards"] == TOKENS
    assert guard.seen > 0, "the guard saw no read: it guards nothing"


PROCESSORS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {5: 3.0, 17: -4.0}},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": -1.5},
    "bad words": {"bad_words": ((4,), (9, 12), (200, 3, 1))},
    "least length": {"min_new_tokens": 7},
    "all": {
        "logit_bias": {5: 3.0},
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.7,
        "bad_words": ((4,), (9, 12)),
        "min_new_tokens": 4,
    },
}


@pytest.mark.parametrize("params", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("family", slow_after(1, ["llama", "qwen2", "gemma3", "gpt2"]))
def test_a_processor_sees_each_beam_with_its_own_text_as_in_transformers(family: str, params: dict[str, Any]) -> None:
    asked = request(ends(family))
    asked = replace(asked, params=replace(asked.params, **params))
    found = search(family).run([asked], Beams(4, 4))[0]
    assert_equal(found, generate(models(family)[1], asked, Beams(4, 4)), asked)


def only(*steps: Mapping[int, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Bad words that leave, at step i, to the text that ends with token t only the tokens ``steps[i][t]``; a text that
    ends with another token may not go on."""
    tokens, words = range(families.CONFIGS["llama"]().vocab_size), []
    befores = [PROMPT[-1:]]
    for step in steps:
        for before in befores:
            words += [(*before, token) for token in tokens if token not in step.get(before[-1], ())]
        befores = [(*before, token) for before in befores for token in step.get(before[-1], ())]
    return tuple(words)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_rows_without_a_beam_have_no_part_in_a_search(family: str) -> None:
    """Of four beams only the last may go on, by two tokens: two rows below its own then hold none for a step."""
    four, first = request(most=1), {PROMPT[-1]: (0, 1, 2, 3)}
    four = replace(four, params=replace(four.params, bad_words=only(first)))
    last = search(family).run([four], Beams(4, 4))[0][3].tokens[0]
    asked = request()
    asked = replace(asked, params=replace(asked.params, bad_words=only(first, {last: (0, 1)})))
    found = search(family).run([asked], Beams(4, 4))[0]
    assert_equal(found, generate(models(family)[1], asked, Beams(4, 4)), asked)
    assert {one.tokens[0] for one in found} == {last}


def test_a_request_that_allows_one_text_gives_one_hypothesis_and_no_copy() -> None:
    asked = request()
    asked = replace(asked, params=replace(asked.params, bad_words=tuple((token,) for token in range(1, 258))))
    ours = search("llama")
    found = ours.run([asked], Beams(4, 4))[0]
    assert [one.tokens for one in found] == [(0,) * TOKENS]
    assert ours.counts["kv_beam_rows_copied"] == 0


def test_texts_that_score_below_the_floor_end_the_search_and_are_left_out() -> None:
    asked, beams = request(most=60), Beams(2, 2, -5.0)
    beam_search, theirs = search("llama"), generate(models("llama")[1], asked, beams)
    assert beam_search.run([asked], beams) == [()]
    assert theirs.scores == [FLOOR, FLOOR]
    assert beam_search.counts["target_forwards"] == theirs.steps < 60


def test_an_output_ends_where_the_arena_or_the_model_ends() -> None:
    found = search("llama", max_length=len(PROMPT) + 3).run([request()], Beams(4, 4))[0]
    assert {(len(one.tokens), one.finish_reason) for one in found} == {(3, "length")}
    long = (PROMPT * 20)[:510]  # of the model's 512 positions
    found = search("llama", max_length=600).run([request(prompt=long)], Beams(2, 2))[0]
    assert {(len(one.tokens), one.finish_reason) for one in found} == {(2, "length")}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("width", 0, "1 or more"),
        ("width", True, "1 or more"),
        ("returned", 0, "from 1 to the width, 4"),
        ("returned", 5, "from 1 to the width, 4"),
        ("length_penalty", float("nan"), "from -5.0 to 5.0"),
        ("length_penalty", 5.5, "from -5.0 to 5.0"),
        ("length_penalty", "1", "from -5.0 to 5.0"),
        ("early_stopping", "always", 'True, False or "never"'),
        ("early_stopping", 1, 'True, False or "never"'),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(field: str, value: Any, expected: str) -> None:
    with pytest.raises(SpecdecError, match=rf"^{field} is {value!r}; expected .*{expected}$"):
        Beams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.5), ("top_k", 3), ("top_p", 0.9), ("stop", ("end",))], ids=lambda x: str(x)
)
def test_a_sampling_parameter_without_use_is_refused_by_its_name(field: str, value: Any) -> None:
    beam_search = search("llama")
    asked = Request(7, PROMPT, SamplingParams(**{field: value}))
    with pytest.raises(SpecdecError, match=f"^{field} of request 7 is .*a beam search does not use it: expected"):
        beam_search.run([request(), asked], Beams(4))
    assert not beam_search.counts, "the request before it ran"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ((), "has 0 tokens; expected 1 to 39"),
        ((1,) * 40, "has 40 tokens; expected 1 to 39"),
        ((1, 258), "token id 258"),
    ],
    ids=["empty", "long", "strange"],
)
def test_a_prompt_that_does_not_fit_is_refused(prompt: tuple[int, ...], said: str) -> None:
    with pytest.raises(SpecdecError, match=said):
        search("llama", max_length=40).run([request(prompt=prompt)], Beams(4))


def test_more_beams_than_the_search_has_rows_are_refused() -> None:
    with pytest.raises(SpecdecError, match=r"^width is 3; expected 1 to 2"):
        search("llama", width=2).run([request()], Beams(3))
    with pytest.raises(SpecdecError, match=r"^width is 0; expected a whole number, 1 or more"):
        search("llama", width=0)


@pytest.mark.slow
def test_texts_and_scores_of_the_embedded_model_are_those_of_transformers_generate() -> None:
    """In float32, as it is used: of these texts no two candidates of a step are closer than 0.005."""
    loaded, target = loaded_smollm2()
    theirs = target.twin()
    theirs.generation_config = GenerationConfig()
    for kind in workloads.KINDS[:2]:
        prompt = workloads.load_workload(kind).first(1).encode(loaded.tokenizer)[0][-40:]
        asked, beams = request((2,), 6, prompt), Beams(4, 4)
        ours = BeamSearch(target, width=4, max_length=len(prompt) + 6)
        assert_equal(ours.run([asked], beams)[0], generate(theirs, asked, beams), asked)
