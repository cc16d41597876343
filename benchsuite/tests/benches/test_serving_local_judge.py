"""A local model reads outputs: its lists are those of the model after each beginning, for texts, numbers and chats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from benchsuite.benches.serving.local_judge import LocalJudge
from benchsuite.conformance.models import families
from benchsuite.tests.made_up_servers import made_up_reply
from specdec import SpecdecError, catalog
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Token

ASK = Ask("say: ", 3)


@pytest.fixture(scope="module")
def tiny_judge(tmp_path_factory: pytest.TempPathFactory) -> LocalJudge:
    """A tiny model whose tokenizer puts a token before every text, as that of Llama does."""
    path: Path = tmp_path_factory.mktemp("judge")
    families.build_model("llama").save_pretrained(path)
    tokenizer: Any = catalog.byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", 256)])
    tokenizer.save_pretrained(path)
    return LocalJudge(str(path))


def lists_after(before: Sequence[int], output: Sequence[int], most: int = 5) -> list[Token]:
    """An output's tokens and so many likeliest at their places, each from a forward of its own beginning."""
    model: Any = families.build_model("llama")
    names: Any = catalog.byte_tokenizer().convert_ids_to_tokens
    found = []
    for place, token in enumerate(output):
        with torch.inference_mode():
            chances = model(torch.tensor([[*before, *output[:place]]])).logits[0, -1].log_softmax(0)
        order = sorted(range(len(chances)), key=lambda number: -float(chances[number]))[:most]
        top = tuple((str(names(number)), float(chances[number])) for number in order)
        found.append(Token(str(names(token)), token, float(chances[token]), top))
    return found


def ids_of(text: str) -> list[int]:
    """The tokens of a text alone."""
    return list(catalog.byte_tokenizer()(text)["input_ids"])


def test_a_token_that_the_judges_model_lacks_is_an_error_with_the_judges_name(tiny_judge: LocalJudge) -> None:
    reply = made_up_reply("abc", tokens=(Token("a", 10**6),))
    with pytest.raises(
        SpecdecError, match=r"^--specdec-certify-by .* cannot read 'abc': IndexError: .*; name the model"
    ):
        tiny_judge.read(ASK, reply)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "numbers", "chat"])
@pytest.mark.parametrize("named", [True, False], ids=["by numbers", "by its text"])
def test_an_output_has_the_models_own_lists_at_its_places(kind: str, named: bool, tiny_judge: LocalJudge) -> None:
    text, output = "abc", ids_of("abc")
    befores = {
        "text": (ASK, [256, *ids_of("say: ")]),
        "numbers": (Ask((5, 6, 7), 3), [5, 6, 7]),
        "chat": (Ask("say: ", 3, chat=True), catalog.chat_ids(catalog.byte_tokenizer(), "say: ")),
    }
    ask, before = befores[kind]
    tokens = [Token("?", number) for number in output] if named else []
    read = tiny_judge.read(ask, made_up_reply("else" if named else text, tokens, 3))
    assert read is not None
    expected = lists_after(before, output)
    assert [(one.text, one.id) for one in read] == [(one.text, one.id) for one in expected]
    assert [[name for name, _ in one.top] for one in read] == [[name for name, _ in one.top] for one in expected]
    assert [one.logprob for one in read] == pytest.approx([one.logprob for one in expected], abs=1e-4)
    chances = [[chance for _, chance in one.top] for one in read]
    assert chances == [pytest.approx([chance for _, chance in one.top], abs=1e-4) for one in expected]


def test_what_was_sampled_is_read_with_long_lists_and_every_token_of_them_has_a_name(tiny_judge: LocalJudge) -> None:
    """A filter is seen where its end is listed; and a list with one text twice says nothing."""
    read = tiny_judge.read(Ask("say: ", 3, 1.0), made_up_reply("abc", (), 3))
    assert read is not None
    for one, expected in zip(read, lists_after([256, *ids_of("say: ")], ids_of("abc"), 1000), strict=True):
        assert len(one.top) == len(expected.top) > 5
        assert len({name for name, _ in one.top}) == len(one.top)
        assert [chance for _, chance in one.top] == pytest.approx([chance for _, chance in expected.top], abs=1e-4)


@pytest.mark.parametrize(
    ("text", "counted", "reason", "is_read"),
    [
        ("abc", 3, "length", True),
        ("abc", 3, "stop", True),
        ("abc", 4, "stop", True),  # with the end token, which has no text
        ("abc", 5, "stop", False),
        ("abc", 2, "stop", False),
        ("abc", 4, "length", False),
        ("abc", 4, None, False),
        ("abc", None, "length", False),
        ("", 0, "length", False),
    ],
)
def test_a_text_is_read_where_it_is_as_many_tokens_as_the_server_counted(
    text: str, counted: int | None, reason: str | None, is_read: bool, tiny_judge: LocalJudge
) -> None:
    read = tiny_judge.read(ASK, made_up_reply(text, (), counted, finish_reason=reason))
    assert (read is not None) == is_read
    assert read is None or [one.id for one in read] == ids_of(text)


def test_tokens_of_which_one_has_no_number_are_those_of_their_text(tiny_judge: LocalJudge) -> None:
    tokens = [Token("a", 1), Token("b"), Token("c", 2)]
    read = tiny_judge.read(ASK, made_up_reply("abc", tokens))
    assert read is not None
    assert [one.id for one in read] == ids_of("abc")
