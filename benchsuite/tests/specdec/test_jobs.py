"""Lines of a file of requests: what each kind of value becomes, how it is refused, and what a fingerprint covers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec import SamplingParams, SpecdecError, catalog, jobs
from specdec.jobs import Job, read_jobs

PARAMS = SamplingParams()


def line_job(path: Path, line: object, defaults: SamplingParams = PARAMS, words: Any = (), **settings: object) -> Job:
    """The job of a file of one line."""
    path.write_text(line if isinstance(line, str) else json.dumps(line))
    (found,) = read_jobs(path, defaults, settings, words)
    return found


VALUES: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 3.0, TypeError),
    (int, True, TypeError),
    (int, "3", TypeError),
    (float, 3, 3.0),
    (float, 0.5, 0.5),
    (float, True, TypeError),
    (float, "3", TypeError),
    (str, "a", "a"),
    (str, 1, TypeError),
    (str, None, TypeError),
    (bool, True, True),
    (bool, 1, TypeError),
    (int | None, None, None),
    (int | None, 4, 4),
    (int | None, "4", TypeError),
    (Optional[float], 4, 4.0),  # noqa: UP045  # another type than the bar makes
    (str | int, 4, 4),
    (str | int, "4", "4"),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, ...], [], ()),
    (tuple[int, ...], [1, "2"], TypeError),
    (tuple[int, ...], 1, TypeError),
    (tuple[int, ...], {"1": 2}, TypeError),
    (tuple[int, float], [1, 2], (1, 2.0)),
    (tuple[int, float], [1], TypeError),
    (tuple[int, float], [1, 2, 3], TypeError),
    (tuple[int, float], [0.5, 2], TypeError),
    (list[float], [1, 2], [1.0, 2.0]),
    (list[float], {}, TypeError),
    (frozenset[int], [1, 1], frozenset({1})),
    (Sequence[str], ["a", "b"], ("a", "b")),
    (Sequence[str], "ab", TypeError),
    (Mapping[int, float], {"3": 1}, {3: 1.0}),
    (Mapping[str, int], {"3": 1}, {"3": 1}),
    (Mapping[int, float], {"x": 1}, TypeError),
    (Mapping[int, float], {"3": "1"}, TypeError),
    (Mapping[int, float], [1], TypeError),
    (dict[str, bool], {"a": True}, {"a": True}),
    (tuple[tuple[int, float], ...], {"4": 1}, ((4, 1.0),)),
    (tuple[tuple[int, float], ...], [[4, 1]], ((4, 1.0),)),
    (tuple[tuple[str, int], ...], {"b": 1, "a": 2}, (("b", 1), ("a", 2))),
    (tuple[tuple[int, ...], ...], [[1], []], ((1,), ())),
    (tuple[tuple[int, float], int], [[4, 1], 5], ((4, 1.0), 5)),
    (type(None), None, None),
    (type(None), 0, TypeError),
    (complex, 1, TypeError),
]


@pytest.mark.parametrize(("kind", "value", "made"), VALUES)
def test_a_value_of_json_becomes_one_of_the_fields_type_or_is_refused(kind: Any, value: Any, made: Any) -> None:
    if made is TypeError:
        with pytest.raises(TypeError):
            jobs._converted(kind, value)
    else:
        found = jobs._converted(kind, value)
        assert found == made
        assert type(found) is type(made)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (float, "a number"),
        (str, "a text"),
        (bool, "true or false"),
        (type(None), "null"),
        (int | None, "a whole number or null"),
        (Optional[str], "a text or null"),  # noqa: UP045  # another type than the bar makes
        (tuple[int, ...], "a list, each item a whole number"),
        (tuple[int, float], "a list of a whole number, a number"),
        (list[str], "a list, each item a text"),
        (frozenset[bool], "a list, each item true or false"),
        (Mapping[int, float], "an object whose names are a whole number and whose values are a number"),
        (tuple[tuple[str, int], ...], "a list, each item a list of a text, a whole number"),
    ],
)
def test_what_is_expected_is_said_in_words(kind: Any, words: str) -> None:
    assert jobs._words(kind) == words
    with pytest.raises(SpecdecError) as refused:
        jobs._typed("it", kind, {"a": {}})
    assert str(refused.value) == f'it is {{"a": {{}}}}; expected {words}'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("é", '"é"'),
        ("a" * 58, '"' + "a" * 58 + '"'),
        ("a" * 59, '"' + "a" * 56 + "..."),
        ([1, None, True], "[1, null, true]"),
    ],
)
def test_a_value_is_shown_as_it_was_written_in_60_characters_at_most(value: Any, shown: str) -> None:
    assert jobs._short(value) == shown
    assert len(shown) <= 60


TEXTS = "a list of objects with the texts role and content"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prompt", "", 'prompt is ""; expected a text that is not empty'),
        ("prompt", [], "prompt is []; expected a text that is not empty"),
        ("prompt_ids", [3, -1], "prompt_ids is [3, -1]; expected at least one token id, 0 or more"),
        ("prompt_ids", [], "prompt_ids is []; expected at least one token id, 0 or more"),
        ("prompt_ids", "a", 'prompt_ids is "a"; expected a list, each item a whole number'),
        ("messages", "a", f'messages is "a"; expected {TEXTS}, at least one'),
        ("messages", [], f"messages is []; expected {TEXTS}, at least one"),
        ("messages", {"role": "a"}, f'messages is {{"role": "a"}}; expected {TEXTS}, at least one'),
        ("messages", [1], f"messages has 1; expected {TEXTS}"),
        ("messages", [{"role": "a", "content": 1}], f'messages has {{"role": "a", "content": 1}}; expected {TEXTS}'),
        (
            "messages",
            [{"role": None, "content": ""}],
            f'messages has {{"role": null, "content": ""}}; expected {TEXTS}',
        ),
        ("messages", [{"content": "b"}], f'messages has {{"content": "b"}}; expected {TEXTS}'),
        (
            "messages",
            [{"role": "a", "content": "", "x": ""}],
            f'messages has {{"role": "a", "content": "", "x": ""}}; expected {TEXTS}',
        ),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_what_it_is(name: str, value: Any, message: str) -> None:
    with pytest.raises(SpecdecError) as refused:
        jobs._prompt(name, value)
    assert str(refused.value) == message


def test_a_prompt_is_a_text_token_ids_or_messages_of_a_role_and_a_content() -> None:
    assert jobs._prompt("prompt", " a") == " a"
    assert jobs._prompt("prompt_ids", [0]) == (0,)
    assert jobs._prompt("prompt_ids", [3, 0, 1]) == (3, 0, 1)
    chat = [{"role": "a", "content": "b"}, {"content": "", "role": ""}]
    assert jobs._prompt("messages", chat) == tuple(chat)


KNOWN_FIELDS = sorted(["id", "prompt", "prompt_ids", "messages", *(one.name for one in fields(SamplingParams))])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "zzzzzz": 1}, f"unknown field 'zzzzzz'; choices: {', '.join(KNOWN_FIELDS)}"),
        ({"id": 3}, "it has no prompt; expected exactly one of prompt, prompt_ids, messages"),
        (
            {"messages": [], "prompt_ids": [], "prompt": ""},
            "it has prompt and prompt_ids and messages; expected exactly one of prompt, prompt_ids, messages",
        ),
        ({"prompt": "a", "id": True}, "id is true; expected a text or a whole number"),
        ({"prompt": "a", "id": None}, "id is null; expected a text or a whole number"),
        ('{"prompt": "a", "seed": 1, "seed": 1, "top_k": 1}', "the field 'seed' is there twice; keep one"),
        ('{"prompt": "a", "top_p": Infinity}', "Infinity is no JSON; write a number"),
        ('"a"', '"a" is no object; expected one, for example {"prompt": "Hello"}'),
        (
            {"prompt": "a", "bad_words": ["b", " "]},
            'bad_words is ["b", " "]; expected words of at least one visible character',
        ),
    ],
)
def test_a_line_that_cannot_be_a_request_is_refused_with_what_it_has(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecdecError) as refused:
        line_job(tmp_path / "in", line)
    assert str(refused.value) == f"line 1: {message}"


def test_a_file_may_begin_with_a_mark_of_its_bytes_order_and_have_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n \n\n{"prompt": "\xc3\xa9", "id": ""}')
    found = read_jobs(path, PARAMS, {})
    assert [(job.index, job.line, job.id, job.prompt) for job in found] == [(0, 1, 1, "a"), (3, 4, "", "é")]
    path.write_text('{"prompt": "a", "id": "2"}\n{"prompt": "b"}')
    assert [job.id for job in read_jobs(path, PARAMS, {})] == ["2", 2], "a text is no number"
    with pytest.raises(SpecdecError) as refused:
        read_jobs(tmp_path / "none", PARAMS, {})
    assert str(refused.value) == (
        f"the requests {str(tmp_path / 'none')!r} cannot be read: No such file or directory; name a file"
    )
    path.write_text("\n")
    with pytest.raises(SpecdecError) as refused:
        read_jobs(path, PARAMS, {})
    assert str(refused.value) == f"the requests {str(path)!r} hold no line; write one JSON object a line"


def test_a_fingerprint_is_the_digest_that_earlier_files_have(tmp_path: Path) -> None:
    path = tmp_path / "in"

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    assert line_job(path, {"prompt": "a"}, target="tiny").fingerprint == digest(
        '[{"target": "tiny"}, 0, 1, "prompt", "a", {}]'
    )
    line = {"prompt_ids": [5], "id": "x", "seed": 3, "bad_words": ["no", [1]], "logit_bias": {"7": 1, "2": 0.5}}
    changed = '{"bad_words": [[1]], "logit_bias": [[2, 0.5], [7, 1.0]], "seed": 3}'
    assert line_job(path, line).fingerprint == digest(f'[{{}}, 0, "x", "prompt_ids", [5], {changed}, "no"]')
    mapping = {2: "b", 1: "a"}
    assert line_job(path, {"prompt": "a"}, b=1, a=mapping, c=path).fingerprint == digest(
        f'[{{"a": {{"1": "a", "2": "b"}}, "b": 1, "c": {json.dumps(repr(path))}}}, 0, 1, "prompt", "a", {{}}]'
    )
    assert jobs._plain(mapping.items()) == repr(mapping.items())

    class Odd(Mapping[str, int]):
        def __init__(self, *pairs: tuple[str, int]) -> None:
            self._pairs = dict(pairs)

        def __getitem__(self, name: str) -> int:
            return self._pairs[name]

        def __iter__(self) -> Any:
            return iter(self._pairs)

        def __len__(self) -> int:
            return len(self._pairs)

    assert jobs._plain(Odd(("b", 1), ("a", 2))) == [("a", 2), ("b", 1)]


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 9) | st.text("ab", min_size=1, max_size=2),
    "max_new_tokens": st.integers(1, 9),
    "temperature": st.sampled_from([0, 0.5, 1]),
    "top_k": st.integers(0, 3),
    "top_p": st.sampled_from([0.5, 1]),
    "min_p": st.sampled_from([0, 0.5]),
    "seed": st.integers(0, 3),
    "eos": st.lists(st.integers(0, 3), max_size=2),
    "stop": st.lists(st.text("ab", min_size=1, max_size=2), max_size=2),
    "bad_words": st.lists(st.text("ab", min_size=1, max_size=2), max_size=2),
    "repetition_penalty": st.sampled_from([1, 1.5]),
}


@pytest.mark.slow
@given(data=st.data())
def test_two_lines_have_one_fingerprint_only_if_they_decode_alike(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``"eos": []`` never ends a text, and without the field the model's own end tokens do."""
    path = tmp_path_factory.getbasetemp() / "in"
    one = data.draw(st.fixed_dictionaries({}, optional=FIELDS))
    other = dict(one)
    for name in data.draw(st.lists(st.sampled_from([*FIELDS]), max_size=2)):
        if data.draw(st.booleans()):
            other.pop(name, None)
        else:
            other[name] = data.draw(FIELDS[name])
    made = [line_job(path, {"prompt": "a", **line}) for line in (one, other)]
    decided = [(job.id, job.params, job.ends, job.words) for job in made]
    assert (made[0].fingerprint == made[1].fingerprint) == (decided[0] == decided[1])


def test_a_field_has_its_default_the_result_of_its_factory_or_none_at_all() -> None:
    @dataclass
    class Three:
        bare: int
        given: int = 3
        made: list[int] = field(default_factory=lambda: [4])

    bare, given, made = fields(Three)
    assert jobs._default(bare) is bare.default
    assert (jobs._default(given), jobs._default(made)) == (3, [4])


def test_a_line_has_its_own_ends_and_bad_words_or_those_of_the_options(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "in", catalog.byte_tokenizer()
    bare = line_job(path, {"prompt": "a"}, SamplingParams(eos=(4,), bad_words=((9,),)), ("no",))
    assert (bare.ends, bare.words) == (False, ("no",))
    both = tuple(tuple(tokenizer.encode(text)) for text in ("no", " no"))
    request = bare.request([1, 2], (8,), tokenizer)
    assert (request.id, request.prompt) == (0, (1, 2))
    assert (request.params.eos, request.params.bad_words) == ((8,), ((9,), *both))
    assert bare.request([1], tokenizer=tokenizer).params.eos == ()
    own = line_job(path, {"prompt": "a", "eos": [], "bad_words": [[5]]}, SamplingParams(eos=(4,)), ("no",))
    assert (own.ends, own.words) == (True, ())
    request = own.request([1], (8,))
    assert (request.params.eos, request.params.bad_words) == ((), ((5,),))
    least = Job(4, "x", "a", SamplingParams())
    assert (least.line, least.ends, least.fingerprint, least.words) == (5, False, "", ())
    assert least.request((1,), (8,)).params.eos == (8,)


def test_the_longest_requests_go_first_when_they_are_grouped() -> None:
    def job(index: int, most: int) -> Job:
        return Job(index, index, "a", SamplingParams(max_new_tokens=most))

    assert [jobs.in_turn(job(3, 5), 7, grouped) for grouped in (True, False)] == [(-12, 3), (0, 3)]
    lengths = {0: (3, 9), 1: (9, 3), 2: (10, 3), 3: (1, 20)}
    order = sorted(lengths, key=lambda index: jobs.in_turn(job(index, lengths[index][1]), lengths[index][0], True))
    assert order == [3, 2, 0, 1]
