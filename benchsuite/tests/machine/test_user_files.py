"""Files that users write: every usual encoding, line end and shape of value is taken, or refused by its name."""

from __future__ import annotations

import contextlib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.machine.user_files import UserFileError, parsed_json, user_json, user_text, user_yaml

TEXT = 'first: "é 😀"\nsecond: off\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_text_is_the_same_in_every_usual_encoding_and_with_every_line_end(
    encoding: str, end: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(TEXT.replace("\n", end).encode(encoding))
    assert user_text(path) == TEXT
    assert user_yaml(path) == {"first": "é 😀", "second": "off"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ok\ncaf\xe9\n", r"no text in UTF-8 \(line 2, invalid continuation byte\); save it as UTF-8"),
        (b"\n\n\xe9", r"no text in UTF-8 \(line 3, "),
        (b"caf\xe9", r"no text in UTF-8 \(line 1, "),
        (b"\xff\xfea", "no text in UTF-16"),
        (b"PK\x03\x04\xff", "no text in UTF-8"),
    ],
)
def test_another_encoding_is_refused_with_its_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserFileError, match=says):
        user_text(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "directory"), (tmp_path / "none", "No such file"), (Path("a\0b"), "null")):
        with pytest.raises(UserFileError, match=says):
            user_text(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "-Infinity is no number"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
        ('{"a": 1, "b": 1, "b": 2, "c": 3}', "'b' stands twice"),
        ('["caf\\ud83d"]', "half of a surrogate pair"),
        ("[" * 99_999, "nested too deeply"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_that_cannot_be_meant_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match=says):
        parsed_json(text)
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UserFileError, match=f"file.json is no JSON .*{says}"):
        user_json(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("off", "on", "yes", "NO", "08", "0x10", "1e-3", "1_000", "12:30", "2024-13-45")),
        *((word, word) for word in ("2024-01-01", ".5", "+1", ".inf", ".nan", "=", "<<")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("null", "Null", "NULL", "~", "")),
        ('"true"', "true"),
        ("[1, 08, off]", ["1", "08", "off"]),
        ("\n  - a\n  - b: 1", ["a", {"b": "1"}]),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("!!timestamp 2024-01-02", date(2024, 1, 2)),
        ("!!int 12", 12),
        ("{a: [{b: 1}]}", {"a": [{"b": "1"}]}),
    ],
)
def test_a_value_of_yaml_is_the_text_that_is_written_but_where_a_tag_says_what_it_is(
    text: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"name: {text}")
    assert user_yaml(path) == {"name": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "holds a list; expected a mapping"),
        ("a", "holds a text"),
        ("true", "holds true or false"),
        ("true: 1", "holds the name True"),
        ("a: 1\na: 2", "'a' stands twice"),
        ("a: {b: 1, b: 2}", "'b' stands twice"),
        ("a: [", "is no YAML"),
        ("a: 1\n\tb: 2", "is no YAML"),
        ("a: !!python/object:os.system x", "is no YAML"),
        ("a: 1\n---\nb: 2", "is no YAML"),
        ('a: "\\ud83d"', "half of a surrogate pair|is no YAML"),
        ("a: &x [*x]", "cannot be read"),
        ("a: &x {b: *x}", "cannot be read"),
        ("[a]: 1\n[b]: 2", "unhashable"),
        ("[a]: 1", "is no YAML|cannot be read"),
        ("a: " + "[" * 1000, "cannot be read|is no YAML"),
        ("a: 1\0", "is no YAML"),
    ],
)
def test_a_file_of_yaml_that_is_no_mapping_of_texts_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(UserFileError, match=says):
        user_yaml(path)


def test_an_empty_file_of_yaml_has_no_options(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("# nothing yet\n")
    assert user_yaml(tmp_path / "file.yaml") == {}


@pytest.mark.slow
@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    for read in (user_text, user_json, user_yaml):
        with contextlib.suppress(UserFileError):
            read(path)
