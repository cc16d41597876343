"""What a class written for vLLM's proposers is given, call by call, and which of its answers are taken."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.conformance.exact.enumerator import context
from specdec import Context, Request, SpecdecError
from specdec_kernels.reference import Reference
from specdec_plugins.drafts.custom_class import FIELDS, LIMITS, CustomClass, VllmPart, _class_at, _is_id

ENVIRONMENT: Any = SimpleNamespace(max_window=5, max_rows=3, max_length=8, target=SimpleNamespace(vocabulary=7))


class Listens:
    """Notes what it is built with and asked, and answers what it was told to."""

    built: list[Listens]
    answer: Any = None

    def __init__(self, vllm_config: Any) -> None:
        self.config, self.calls, self.models = vllm_config, list[Any](), list[Any]()
        self.built.append(self)

    def load_model(self, model: Any) -> None:
        self.models.append(model)

    def propose(self, *given: Any, **named: Any) -> Any:
        sampled, lengths, tokens = given
        self.calls.append(
            (sampled, lengths.copy(), tokens.copy(), named, lengths.flags.writeable, tokens.flags.writeable)
        )
        return [[] for _ in sampled] if self.answer is None else self.answer


@pytest.fixture
def listens(monkeypatch: pytest.MonkeyPatch) -> type[Listens]:
    """A class of its own in a module named ``mine.part``."""
    made = type("Listens", (Listens,), {"built": [], "answer": None})
    module: Any = ModuleType("mine.part")
    module.Listens, module.number = made, 3
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))
    monkeypatch.setitem(sys.modules, "mine.part", module)
    return made


def draft_of(settings: str = "{}", path: str = "mine.part:Listens", **more: Any) -> CustomClass:
    return CustomClass(ENVIRONMENT, path, settings, **more)


def batch(texts: list[list[int]], room: list[int]) -> Context:
    history = np.zeros((len(texts), 8), dtype=np.int64)
    for row, text in enumerate(texts):
        history[row, : len(text)] = text
    length = np.array([len(text) for text in texts])
    return replace(
        context(Reference(), torch.arange(len(texts))),
        history=history,
        tokens=torch.from_numpy(history),
        length_host=length,
        length=torch.from_numpy(length),
        max_proposals_host=np.array(room),
        max_proposals=torch.tensor(room),
    )


def test_a_class_is_built_with_these_parts_of_vllms_config_and_no_others(listens: type[Listens]) -> None:
    draft = draft_of('{"prompt_lookup_min": 2, "additional_config": {"own": 1}}', "mine.part.Listens")
    [made] = listens.built
    assert draft.learns is False
    config = made.config

    def shown(part: VllmPart) -> dict[str, Any]:
        return {name: value for name, value in vars(part).items() if not name.startswith("_")}

    assert set(shown(config)) == {
        *("speculative_config", "model_config", "scheduler_config", "parallel_config", "additional_config")
    }
    assert shown(config.speculative_config) == {
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": None,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "method": "custom_class",
        "model": "mine.part.Listens",
    }
    assert set(shown(config.model_config)) == {"max_model_len", "get_vocab_size"}
    assert (config.model_config.max_model_len, config.model_config.get_vocab_size()) == (8, 7)
    assert shown(config.scheduler_config) == {"max_num_seqs": 3}
    assert shown(config.parallel_config) == {"tensor_parallel_size": 1}
    assert config.additional_config == {"own": 1}
    for part, name, known in (
        (
            config,
            "vllm_config",
            "speculative_config, model_config, scheduler_config, parallel_config, additional_config",
        ),
        (config.speculative_config, "vllm_config.speculative_config", ", ".join([*FIELDS, "method", "model"])),
        (config.model_config, "vllm_config.model_config", "max_model_len, get_vocab_size"),
        (config.scheduler_config, "vllm_config.scheduler_config", "max_num_seqs"),
        (config.parallel_config, "vllm_config.parallel_config", "tensor_parallel_size"),
        (made.models[0], "the target's model", "nothing"),
    ):
        assert not hasattr(part, "x")
        with pytest.raises(AttributeError) as refused:
            _ = part.x
        assert str(refused.value) == f"{name} has no 'x' here, only {known}; {LIMITS}"
    assert len(made.models) == 1
    assert draft_of()._config.additional_config == {}


def test_a_class_may_ask_for_any_number_of_tokens_up_to_k(listens: type[Listens]) -> None:
    for count in (0, 1, 4):
        assert draft_of(f'{{"num_speculative_tokens": {count}}}')._most == count
    for text, shown in (("5", "5"), ("-1", "-1"), ("true", "True"), ("2.0", "2.0"), ('"2"', "'2'"), ("null", "None")):
        with pytest.raises(SpecdecError) as refused:
            draft_of(f'{{"num_speculative_tokens": {text}}}')
        assert str(refused.value) == (
            f"num_speculative_tokens of mine.part:Listens is {shown} and this engine proposes at most 4 tokens; give K "
            "the same value (--specdec-k), or leave num_speculative_tokens out: it is then K"
        )


def test_a_class_is_told_of_each_token_once_and_reads_whole_texts_that_it_cannot_change(
    listens: type[Listens],
) -> None:
    draft = draft_of()
    [made] = listens.built
    draft.admit(0, Request(0, (1, 2, 3)), (1, 2, 3))
    draft.admit(1, Request(1, (4,)), (4,))
    draft.propose(batch([[1, 2, 3], [4]], [4, 4]))
    draft.propose(batch([[1, 2, 3, 5, 6], [4, 2]], [4, 4]))
    draft.move(1, 0, Request(1, (4,)), (4, 2))
    draft.propose(batch([[4, 2, 1]], [4]))
    draft.admit(1, Request(2, (6, 6)), (6, 6))
    draft.propose(batch([[4, 2, 1, 3], [6, 6]], [4, 4]))
    assert [call[0] for call in made.calls] == [[[3], [4]], [[5, 6], [2]], [[1]], [[3], [6]]]
    assert [call[1].tolist() for call in made.calls] == [[3, 1, 0], [5, 2, 0], [3, 0, 0], [4, 2, 0]]
    for (_, lengths, tokens, named, *writeable), texts in zip(
        made.calls,
        ([[1, 2, 3], [4]], [[1, 2, 3, 5, 6], [4, 2]], [[4, 2, 1]], [[4, 2, 1, 3], [6, 6]]),
        strict=True,
    ):
        assert (lengths.dtype, tokens.dtype, tokens.shape) == (np.int32, np.int32, (3, 8))
        assert named == {"slot_mappings": None}
        assert writeable == [False, False]
        for row, text in enumerate(texts):
            assert tokens[row, : len(text)].tolist() == text


def test_proposals_are_cut_to_a_rows_room(listens: type[Listens]) -> None:
    listens.answer = [[1, 2, 3], [4, 5, 6], [1]]
    draft = draft_of()
    for row in range(3):
        draft.admit(row, Request(row, (2,)), (2,))
    window = draft.propose(batch([[2], [2], [2]], [2, 0, 4]))
    assert window.width.tolist() == [3, 1, 2]
    assert window.tokens[0].tolist() == [2, 1, 2]
    assert window.tokens[2, :2].tolist() == [2, 1]
    assert window.q is None


def test_answers_are_lists_of_ids_that_exist_in_any_of_their_forms(listens: type[Listens]) -> None:
    draft = draft_of()
    given: Any = (
        [[0, 6], (1,)],
        (np.array([2, 3]), []),
        [[np.int64(4)], np.array([], dtype=np.int64)],
        [[1, 2, 3, 4], ()],
    )
    expected = [[[0, 6], [1]], [[2, 3], []], [[4], []], [[1, 2, 3, 4], []]]
    for answer, ids in zip(given, expected, strict=True):
        found = draft._checked(answer, 2)
        assert found == ids
        assert all(type(token) is int for row in found for token in row)
    for token, good in ((3, True), (np.int32(3), True), (True, False), (3.0, False), ("3", False), (None, False)):
        assert _is_id(token) is good


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        *[
            (
                answer,
                f"propose returned {got} for 2 rows; expected a list with one list of token ids for each list in "
                "sampled_token_ids, empty where nothing is proposed",
            )
            for answer, got in (([[1]], "1 lists"), (([], [], []), "3 lists"), (None, "a NoneType"), ({}, "a dict"))
        ],
        *[
            ([[], given], f"propose returned {given!r} for row 1; expected a list of whole numbers")
            for given in (None, 1, [1.0], [True], ["1"], [[1]], np.array([[1, 2]]), np.array([0.5]), np.array(1))
        ],
        (
            [[1, 1, 1, 1, 1], []],
            "propose returned 5 tokens for row 0; expected at most num_speculative_tokens, 4: raise K, or let the "
            "class read that number",
        ),
        *[
            (
                [[], ids],
                f"propose returned the token id {odd} for row 1; the target's vocabulary ends at 6. A row of "
                "token_ids_cpu is text up to num_tokens_no_spec only; propose fewer tokens in place of padding",
            )
            for ids, odd in (([7], 7), ([0, -1, 9], -1), ([6, 100], 100))
        ],
    ],
)
def test_any_other_answer_is_refused_with_what_it_was(answer: Any, says: str, listens: type[Listens]) -> None:
    with pytest.raises(SpecdecError) as refused:
        draft_of()._checked(answer, 2)
    assert str(refused.value) == f"mine.part:Listens: {says}"


def test_a_class_that_learns_is_built_anew_to_forget_and_any_other_stays(listens: type[Listens]) -> None:
    for learns, count in ((False, 1), (True, 2)):
        listens.built.clear()
        draft = draft_of(learns=learns)
        assert draft.learns is learns
        draft.forget()
        assert len(listens.built) == count
        assert draft._proposer is listens.built[-1]


def test_what_a_class_raises_is_told_with_the_call_and_the_place(listens: type[Listens]) -> None:
    listens.answer = property(lambda self: 1 // 0)
    draft = draft_of()
    draft.admit(0, Request(0, (2,)), (2,))
    with pytest.raises(SpecdecError) as refused:
        draft.propose(batch([[2]], [4]))
    text = str(refused.value)
    assert text.startswith("mine.part:Listens: propose raised ZeroDivisionError: integer division or modulo by zero (")
    assert "listens.answer = property(lambda self: 1 // 0)" in text, "the line itself, not the one that called it"
    assert text.endswith(f"). Mend the class, or give what it lacks in settings; {LIMITS}")


@pytest.mark.parametrize("path", ["", "Alone", ":Class", "mine.part:", "."])
def test_a_path_without_a_module_or_a_class_is_refused(path: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        _class_at(path)
    assert str(refused.value) == (
        f"custom_class was given path={path!r}; expected the class as package.module:Class, for example "
        "custom_class(path='mine.lookup:Proposer')"
    )


def test_a_path_names_a_class_with_a_colon_or_a_point(listens: type[Listens]) -> None:
    assert _class_at("mine.part:Listens") is _class_at("mine.part.Listens") is listens
    with pytest.raises(SpecdecError) as refused:
        _class_at("mine.part:number")
    assert str(refused.value) == "mine.part:number is a int; expected a class that takes a vllm_config"
