"""Processors give what transformers' classes give, for the history of every slot of chains and trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchsuite.workshop.machines.arena_machine import parents_of
from benchsuite.workshop.machines.processed import counted_params, slots_beside_transformers
from specdec import Request, SamplingParams, SpecdecError, Window
from specdec.ledger import adjusts, output_paths, stacked
from specdec.processors import process

VOCABULARY = 23
IDS = st.integers(0, VOCABULARY - 1)


def drawn_params(temperatures: tuple[float, ...] = (0.0, 0.4, 1.0, 1.7)) -> st.SearchStrategy[SamplingParams]:
    """Parameters with any of the processors, each of them on or off."""
    words = st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=3, unique=True).map(tuple)

    def built(bad_words: tuple[tuple[int, ...], ...], eos: tuple[int, ...], **rest: Any) -> SamplingParams:
        kept = tuple(word for word in bad_words if len(word) > 1 or word[0] not in eos)
        return SamplingParams(max_new_tokens=12, bad_words=kept, eos=eos, **rest)

    return st.builds(
        built,
        temperature=st.sampled_from(temperatures),
        top_k=st.sampled_from([0, 1, 4, 500]),
        top_p=st.sampled_from([0.3, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 0.4]),
        repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
        presence_penalty=st.sampled_from([0.0, -1.0, 2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.3, -0.5]),
        logit_bias=st.dictionaries(IDS, st.sampled_from([-9.0, -1.0, 1.0, 6.0]), max_size=3),
        bad_words=words,
        eos=st.lists(IDS, max_size=2, unique=True).map(tuple),
        min_new_tokens=st.integers(0, 8),
        seed=st.integers(0, 3),
    )


@pytest.mark.parametrize(
    ("given_", "changes"),
    [
        ({}, False),
        ({"temperature": 0.7, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "logprobs": 3, "seed": 5}, False),
        ({"eos": (3,)}, False),
        ({"min_new_tokens": 3}, False),
        ({"eos": (3,), "min_new_tokens": 1}, True),
        ({"logit_bias": {0: 0.5}}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"bad_words": ((3,),)}, True),
    ],
    ids=str,
)
def test_logits_are_adjusted_for_requests_that_ask_for_it_alone(given_: dict[str, Any], changes: bool) -> None:
    """A least length without an end token forbids nothing, nor does an end token without a least length."""
    assert adjusts(SamplingParams(max_new_tokens=9, **given_)) is changes


@pytest.mark.slow
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_every_slot_of_ragged_rows_has_the_distribution_of_transformers_classes(data: st.DataObject, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    requests, outputs = [], []
    for row in range(rows):
        prompt = tuple(data.draw(st.lists(IDS, min_size=1, max_size=7)))
        requests.append(Request(row, prompt, data.draw(drawn_params())))
        outputs.append(tuple(data.draw(st.lists(IDS, max_size=5))))
    parents = [data.draw(parents_of(size)) for _ in range(rows)]
    tokens = torch.randint(0, VOCABULARY, (rows, size), generator=generator)
    window = Window(tokens, torch.tensor(parents), torch.full((rows,), size))
    logits = 3 * torch.randn(rows, size, VOCABULARY, generator=generator, dtype=torch.float64)
    for place, ours, theirs in slots_beside_transformers(requests, outputs, window, logits):
        torch.testing.assert_close(ours, theirs, msg=place)


@pytest.mark.slow
@given(params=drawn_params(), output=st.lists(IDS, min_size=1, max_size=8).map(tuple), seed=st.integers(0, 99))
def test_a_request_after_its_output_is_the_request_that_emitted_it(
    params: SamplingParams, output: tuple[int, ...], seed: int
) -> None:
    logits = torch.randn(1, 1, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    request = Request(0, (1, 2), params)
    cpu = torch.device("cpu")
    counted = process(logits, counted_params([request], [output], VOCABULARY), output_paths([0], cpu))
    again = process(logits, stacked([request.after(output)], VOCABULARY, cpu), output_paths([0], cpu))
    assert torch.equal(counted, again)


def test_a_greedy_row_has_the_one_hot_distribution_beside_sampled_rows() -> None:
    logits = torch.randn(2, 1, 50)
    requests = [Request(0, (1,)), Request(1, (1,), SamplingParams(temperature=1.0))]
    distribution = process(logits, stacked(requests, 50, torch.device("cpu"))).softmax(dim=-1)
    assert distribution[0, 0, logits[0, 0].argmax()] == 1
    torch.testing.assert_close(distribution[1], logits[1].softmax(dim=-1))


def test_logprobs_of_a_greedy_row_are_of_its_adjusted_logits_without_temperature_and_filters() -> None:
    """Beside a sampled row of the same parameters, whose distribution stays what it is."""
    given = SamplingParams(temperature=0.5, top_k=3, top_p=0.6, min_p=0.3, logit_bias={4: 2.0})
    requests = [Request(0, (1,), replace(given, temperature=0.0)), Request(1, (1,), given)]
    logits, params = torch.randn(2, 1, 9), stacked(requests, 9, torch.device("cpu"))
    paths = output_paths([0], torch.device("cpu")).expand(2, -1, -1)
    found = process(logits, params.ungreedy(), paths)
    bias = torch.zeros(9)
    bias[4] = 2.0
    torch.testing.assert_close(found[0, 0], logits[0, 0] + bias)
    assert torch.equal(found[1], process(logits, params, paths)[1])
    assert int(found[1].isfinite().sum()) <= 3


def test_the_places_of_adjustments_are_those_of_all_their_tensors() -> None:
    """A recorded step reads its tensors where they were: any other tensor makes it another step."""
    request = Request(
        0,
        (1, 2),
        SamplingParams(presence_penalty=1.0, logit_bias={1: 1.0}, bad_words=((3, 4),), eos=(5,), min_new_tokens=2),
    )
    whole = stacked([request], VOCABULARY, torch.device("cpu")).adjustments
    assert whole is not None

    def others(part: Any) -> list[Any]:
        """The same with one tensor at another place, for each tensor."""
        found = []
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                found.append(replace(part, **{name: value.clone()}))
            elif value is not None:
                found += [replace(part, **{name: inner}) for inner in others(value)]
        return found

    moved = others(whole)
    assert len(moved) == 12
    assert len({whole.places, *(other.places for other in moved)}) == 13
    bare = replace(whole, bias=None, penalties=None, words=None)
    assert [len(bare.places), len({whole.places, bare.places})] == [len(whole.places), 2]


def test_the_texts_of_a_batch_are_as_long_as_its_prompts() -> None:
    penalised = SamplingParams(presence_penalty=1.0)
    requests = [Request(0, (1, 2, 3), penalised), Request(1, (4,), penalised)]
    found = stacked(requests, VOCABULARY, torch.device("cpu")).adjustments
    assert found is not None
    assert found.length.tolist() == [3, 1]
    assert [row[:length] for row, length in zip(found.tokens.tolist(), (3, 1), strict=True)] == [[1, 2, 3], [4]]


@pytest.mark.parametrize("least", [0, 1, 2])
def test_an_end_token_is_forbidden_before_the_least_length_and_at_no_later_place(least: int) -> None:
    """A chain of two proposals after a prompt: slot n follows n tokens of output."""
    request = Request(0, (1, 2), SamplingParams(temperature=1.0, eos=(5,), min_new_tokens=least))
    window = Window.chain(torch.tensor([2]), torch.tensor([[7, 8]]), torch.tensor([2]))
    found = process(torch.zeros(1, 3, 9), stacked([request], 9, torch.device("cpu")), window.paths)
    assert [bool(slot[5].isfinite()) for slot in found[0]] == [count >= least for count in range(3)]


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_one_filter_that_leaves_one_token_is_enough(filters: dict[str, Any]) -> None:
    request = Request(0, (1,), SamplingParams(temperature=1.0, **filters))
    found = process(torch.tensor([[[0.0, 3.0, 1.0]]]), stacked([request], 3, torch.device("cpu")))
    assert found[0, 0].isfinite().tolist() == [False, True, False]


def test_where_everything_is_forbidden_nothing_is() -> None:
    words = tuple((token,) for token in range(5))
    request = Request(0, (1,), SamplingParams(bad_words=words, temperature=1.0))
    logits = torch.randn(1, 1, 5)
    found = process(logits, stacked([request], 5, torch.device("cpu")), output_paths([0], torch.device("cpu")))
    torch.testing.assert_close(found, logits)


@pytest.mark.slow
@given(size=st.integers(1, 7), data=st.data())
def test_a_window_s_paths_are_the_proposals_on_the_way_to_each_slot(size: int, data: st.DataObject) -> None:
    parents = data.draw(parents_of(size))
    tokens = [data.draw(IDS) for _ in range(size)]
    paths = Window(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([size])).paths
    for slot in range(size):
        way: list[int] = []
        at = slot
        while at > 0:
            way.insert(0, tokens[at])
            at = parents[at]
        assert paths[0, slot].tolist() == way + [-1] * (size - 1 - len(way))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", 1e-7),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", True),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("min_p", True),
        ("top_k", True),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", False),
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("eos", 5),
        ("eos", (-1,)),
        ("eos", (True,)),
        ("eos", [5]),
        ("stop", ["END"]),
        ("stop", (5,)),
        ("bad_words", [(3,)]),
        ("stop", ("",)),
        ("stop", "END"),
        ("presence_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", None),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("logit_bias", {3: 100.5}),
        ("logit_bias", {3: -100.5}),
        ("logit_bias", ((3, 1.0, 2.0),)),
        ("logit_bias", [(3, 1.0)]),
        ("logit_bias", {3: float("-inf")}),
        ("logit_bias", {"3": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", ((3, 1.0), (3, 2.0))),
        ("bad_words", ((),)),
        ("bad_words", ("no",)),
        ("bad_words", ((3, -4),)),
        ("min_new_tokens", -1),
        ("min_new_tokens", 65),
        ("logprobs", -1),
        ("logprobs", 101),
        ("logprobs", True),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SpecdecError, match=f"^{field} is .*; expected "):
        replace(SamplingParams(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", (0, 1e-6, 1e9)),
        ("top_k", (0, 1)),
        ("top_p", (1e-9, 1, 1.0)),
        ("min_p", (0, 0.0, 1, 1.0)),
        ("seed", (0, 2**63 - 1)),
        ("max_new_tokens", (1, 10**9)),
        ("min_new_tokens", (0, 64)),
        ("eos", ((), (0, 1))),
        ("stop", ((), ("x", "yz"))),
        ("presence_penalty", (-2, 0, 2)),
        ("frequency_penalty", (-2, 0, 2)),
        ("repetition_penalty", (1e-9, 1e9)),
        ("logit_bias", ((), {0: -100}, {0: 100, 1: 0})),
        ("bad_words", ((), ((0,), (1, 2)))),
        ("logprobs", (None, 0, 100)),
    ],
)
def test_both_ends_of_a_range_are_accepted(field: str, values: tuple[object, ...]) -> None:
    for value in values:
        replace(SamplingParams(), **{field: value})  # type: ignore[arg-type]


def test_a_bad_word_that_is_an_end_token_is_refused() -> None:
    with pytest.raises(SpecdecError, match="bad_words is .* forbids 7, which is in eos"):
        SamplingParams(bad_words=((7,),), eos=(7,))


def test_equal_parameters_are_equal_however_the_bias_was_given() -> None:
    a, b = SamplingParams(logit_bias={5: 1.0, 2: 3.0}), SamplingParams(logit_bias=((2, 3.0), (5, 1.0)))
    assert a == b
    assert hash(a) == hash(b)
