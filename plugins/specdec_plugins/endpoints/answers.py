"""The reader of an answer of the OpenAI API: what a server sent, whole or as a stream, becomes a ``Reply``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specdec.characters import whole_characters
from specdec_plugins.endpoints.events import EventStream, ServerEvent
from specdec_plugins.endpoints.replies import Chunk, Reply, Token

LONGEST_TOKEN = 128
"""Characters of a token, at most: vocabularies have tokens of so many blanks."""

DEEPEST = 100
"""Levels of an answer's JSON, at most: how deep Python can read depends on who calls it."""

OURS = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint")
"""Names of the OpenAI API itself; whatever else an object has is the server's own word."""

HELD_BACK = 8
"""The most tokens that a server may hold back at the end of a text, which are no whole character: a sampled text may
begin several of them (llama.cpp held back four)."""

BESIDE = ("token_ids", "prompt_token_ids", "meta_info")
"""What vLLM and SGLang say beside the text of a choice."""

_SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z/_]+\]")
"""A token of a vocabulary that texts do not show."""

_NO_TEXT = re.compile(r"^bytes:|^token_id:|^<0x")
"""How a server writes a token that it writes by its name."""


class AnswerError(Exception):
    """An answer that cannot be used. ``kind``: one of ``FAILURES``; ``excerpt``: what the server sent, to be shown."""

    def __init__(self, kind: str, said: str, excerpt: str = "") -> None:
        super().__init__(said)
        self.kind, self.said, self.excerpt = kind, said, excerpt


class AnswerReader:
    """Reads one answer as it comes: ``feed`` for the pieces of a stream, ``whole`` for an answer in one piece; then
    ``reply``.

    ``most``: the request's ``max_tokens``; ``echo``: the prompt's tokens come as well. Every method raises AnswerError,
    and nothing else, whatever the server sends: what the API and the servers' own documentation allow is read, and what
    is none of it is refused by the name of its field.

    Example:

        reader = AnswerReader(16)
        for seconds, piece in pieces:
            reader.feed(piece, seconds)
        reply = reader.reply(seconds)
    """

    def __init__(self, most: int, echo: bool = False) -> None:
        self.most, self.echo = most, echo
        self.done = False
        """Whether the mark of the end came."""
        self._streamed = False
        self._events = EventStream()
        self._finish: str | None = None
        self._unsaid = False  # a finish_reason of no letters: this server does not say why an answer ends
        self._text: list[str] = []
        self._tokens: list[Token] = []
        self._chunks: list[Chunk] = []
        self._totals: list[int | None] = []  # the tokens of the answer so far, by usage, at each chunk
        self._usage: Mapping[str, Any] = {}
        self._own: dict[str, Any] = {}
        self._pending = 0  # tokens whose text has not come yet
        self._ended: float | None = None  # when the last piece of text came, or the reason why it is the last
        self._half = ""  # the first half of a character, of which JSON writes the other one into the next piece

    def feed(self, piece: bytes, seconds: float) -> None:
        """Read the next piece of a stream, which came at ``seconds``. What follows ``[DONE]`` is not read."""
        self._streamed = True
        try:
            events = self._events.feed(piece)
        except UnicodeDecodeError as error:
            raise AnswerError("invalid", f"a line of the stream is not UTF-8: {error}") from None
        except OverflowError as error:
            raise AnswerError("endless", str(error)) from None
        self._take(events, seconds)

    def whole(self, body: bytes, seconds: float) -> None:
        """Read an answer in one piece, which was there at ``seconds``."""
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise AnswerError("invalid", f"the answer is not UTF-8: {error}") from None
        self._object(text, seconds)

    def reply(self, seconds: float) -> Reply:
        """The whole answer, checked; ``seconds`` is when the server had sent all that it sends.

        The answer itself ends with the last piece of its text, or with its ``finish_reason`` if that comes later: what
        is sent behind them (counts, the mark of the end) is no part of it.
        """
        if self._streamed and not self.done:
            try:
                events = self._events.end()
            except UnicodeDecodeError as error:
                raise AnswerError("invalid", f"a line of the stream is not UTF-8: {error}") from None
            self._take(events, seconds)
            if not self.done and self._finish is None:
                raise AnswerError("truncated", "the stream ended without [DONE] and without finish_reason")
        if self._finish is None and not self._unsaid:
            raise AnswerError("cut_off", "the answer has no finish_reason")
        text = "".join(self._text) + whole_characters(self._half)
        prompt, completion = (_count(self._usage, name) for name in ("prompt_tokens", "completion_tokens"))
        if completion is not None and completion > self.most:
            raise AnswerError("usage", f"usage says {completion} tokens, max_tokens was {self.most}")
        if completion == 0 and text:
            raise AnswerError("usage", "usage says 0 tokens, and a text came")
        tokens = self._named(completion, text)
        chunks = _with_tokens(self._chunks, self._totals, completion)
        ended = seconds if self._ended is None else self._ended
        details = self._usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, Mapping) else None
        return Reply(text, tokens, chunks, ended, prompt, completion, self._finish, 1, self._own, cached)

    def _named(self, completion: int | None, text: str) -> tuple[Token, ...]:
        """The tokens, if the server named all of them; they must be as many as it counted, and spell its text."""
        seen = len(self._tokens)
        if not seen or self.echo:
            return tuple(self._tokens)
        more = 0 if completion is None else completion - seen
        # Some servers count and do not send the token that ended the text (vLLM), or those of a character that
        # max_tokens cut (llama.cpp). Streams are timed: a count of more than they send would be speed.
        cut = HELD_BACK if completion == self.most and not self._streamed else 0
        fitting = 0 <= more <= (cut if self._finish == "length" else 1)
        spelt = _spell(self._tokens, text, self._finish) if fitting else False
        unnamed = any(chunk.text and chunk.tokens is None for chunk in self._chunks)
        if unnamed and (completion is None or spelt is not True):
            return ()  # llama.cpp names no token of a step that speculated, in a stream
        if not fitting:
            raise AnswerError("usage", f"usage says {completion} tokens, {seen} came with log-probabilities")
        if spelt is False:
            said = "".join(token.text for token in self._tokens)
            raise AnswerError("usage", "the tokens with log-probabilities spell another text", f"{said} for {text}")
        return tuple(self._tokens)

    def _take(self, events: Sequence[ServerEvent], seconds: float) -> None:
        for event in events:
            if self.done:
                return
            if event.error:
                raise AnswerError("server_error", "an error in the stream", event.data)
            if event.data == "[DONE]":
                self.done = True
            elif event.data:
                self._object(event.data, seconds)

    def _object(self, text: str, seconds: float) -> None:
        self._add(parsed(text), seconds)

    def _add(self, found: Mapping[str, Any], seconds: float) -> None:
        """One object of a stream, or the whole answer."""
        if found.get("error") or found.get("object") == "error":
            raise AnswerError("server_error", "an error in the answer", json.dumps(found.get("error") or found))
        usage = found.get("usage")
        if usage is not None and not isinstance(usage, Mapping):
            raise AnswerError("invalid", "expected an object of counts as usage", json.dumps(usage))
        self._usage = usage or self._usage
        self._own |= self_reported(found)
        choices = found.get("choices")
        if choices is None and not self._usage:
            raise AnswerError("invalid", "no choices in the answer", json.dumps(found))
        if choices is None or choices == []:
            return  # the last object of a stream has the usage alone
        try:
            self._choice(choices, seconds)
        except ValueError as error:
            raise AnswerError("invalid", f"a choice cannot be read: {error}", json.dumps(choices)) from None

    def _choice(self, choices: object, seconds: float) -> None:
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
            raise ValueError("expected a list of one choice")
        choice = choices[0]
        if choice.get("index") not in (None, 0):
            raise ValueError(f"its index is {choice['index']!r}, and one answer was asked for")
        text, tokens = choice_text(choice, self._streamed), choice_tokens(choice)
        ids = _ids_of(choice)
        reason = choice.get("finish_reason")
        if not isinstance(reason, str | None):
            raise ValueError(f"finish_reason is {reason!r}; expected a word")
        self._unsaid |= reason == ""
        self._finish = reason or self._finish
        self._own |= {name: writable(choice[name]) for name in BESIDE if choice.get(name) is not None}
        self._tokens += tokens
        self._pending += len(tokens) or len(ids)
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = whole_characters(text.removesuffix(self._half))
        if text or tokens or reason:
            self._ended = seconds
        if text or tokens:
            self._chunks.append(Chunk(seconds, text, self._pending or None))
            self._totals.append(_count(self._usage, "completion_tokens") if self._usage else None)
            self._pending = 0
        self._text.append(text)
        if not self.echo and (len(self._tokens) > self.most or sum(map(len, self._text)) > self.most * LONGEST_TOKEN):
            sent = f"{len(self._tokens)} tokens" if self._tokens else f"{sum(map(len, self._text))} characters"
            raise AnswerError("endless", f"{sent} for max_tokens {self.most}")


def parsed(text: str) -> dict[str, Any]:
    """Return the object that a text of JSON is. Raises AnswerError for any other text, and for one of more than
    ``DEEPEST`` levels."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise AnswerError("invalid", "JSON too deep to be read", text) from None
    except ValueError as error:
        ended = getattr(error, "pos", 0) >= len(text.rstrip()) or "Unterminated" in str(error)
        raise AnswerError("truncated" if ended else "invalid", f"no JSON ({error})", text) from None
    if not isinstance(found, dict):
        raise AnswerError("invalid", "expected an object", text)
    if text.count("[") + text.count("{") > DEEPEST and _levels(found) > DEEPEST:
        raise AnswerError("invalid", "JSON too deep to be read", text)
    return found


def _levels(found: object) -> int:
    """The levels of a value of JSON: 0 of a number or a text, 1 of a list of them."""
    levels, inside = 0, [found]
    while inside := [value for value in inside if isinstance(value, dict | list)]:
        levels += 1
        inside = [one for value in inside for one in (value.values() if isinstance(value, dict) else value)]
    return levels


def models_of(text: str) -> list[str]:
    """Return the names of the models that the page ``/v1/models`` lists. Raises AnswerError for another page."""
    try:
        found = parsed(text)
        if found.get("data") is None:
            raise ValueError("there is no data")
        return [_name(one, "id") for one in _list(found, "data")]
    except ValueError as error:
        raise AnswerError("invalid", f"no list of models ({error})", text) from None


def self_reported(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an object has beyond the OpenAI API; numbers that are not finite become None.

    Example: llama.cpp's ``timings``.
    """
    return {name: writable(value) for name, value in found.items() if name not in OURS and value is not None}


def writable(value: Any) -> Any:
    """Return JSON without what a file of JSON cannot hold: Infinity and NaN become None, half characters U+FFFD."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [writable(one) for one in value]
    if isinstance(value, dict):
        return {whole_characters(name): writable(one) for name, one in value.items()}
    return value


def choice_text(choice: Mapping[str, Any], streamed: bool) -> str:
    """Return the text that a choice adds to the answer: thought, answer, refusal.

    A text under two names is one text. Raises ValueError for two different ones, for a call of a tool, and for what is
    neither text nor a list of parts of text.

    Sources: OpenAI API reference, chat completions and completions; vLLM and SGLang (``reasoning_content``, later
    ``reasoning``).
    """
    order = ("delta", "message") if streamed else ("message", "delta")
    part: Any = next((choice[name] for name in order if choice.get(name) is not None), {})
    if not isinstance(part, Mapping):
        raise ValueError(f"expected an object as {order[0]}, got {part!r}")
    for name in ("tool_calls", "function_call"):
        if part.get(name):
            raise ValueError(f"it has {name}: the model called a tool, and a text was asked for")
    thought = _one_text({name: part.get(name) for name in ("reasoning_content", "reasoning")})
    said = _one_text({"content": part.get("content"), "text": part.get("text"), "its text": choice.get("text")})
    return thought + said + _one_text({"refusal": part.get("refusal")})


def _one_text(named: Mapping[str, object]) -> str:
    texts = {name: _text(name, value) for name, value in named.items()}
    different = {name: text for name, text in texts.items() if text}
    if len(set(different.values())) > 1:
        raise ValueError(f"{' and '.join(different)} are different texts of one thing")
    return next(iter(different.values()), "")


def _text(name: str, value: object) -> str:
    """A text, or the texts of a list of parts (``{"type": "text", "text": …}``, or Mistral's ``thinking``)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(name, one) for one in value)
    if isinstance(value, Mapping) and value.get("type") in ("text", "output_text", "thinking", "refusal"):
        kind = "text" if value["type"] == "output_text" else str(value["type"])
        return _text(name, value.get(kind))
    raise ValueError(f"{name} is {value!r}; expected a text")


def choice_tokens(choice: Mapping[str, Any]) -> tuple[Token, ...]:
    """Return the tokens of a choice: of completions (lists side by side) or chat (``logprobs.content``); () if the
    server gives none. A likeliest token without a finite number is left out: null is how some write minus infinity.

    Raises ValueError for lists of different lengths, for numbers that are none, and for anything else.

    Sources: OpenAI API reference, completions and chat completions; vllm-project/vllm (``token_ids`` beside a choice
    with ``return_token_ids``, ``token_id:7`` as text with ``return_tokens_as_token_ids``); ggml-org/llama.cpp
    (``tools/server/README.md``: ``logprobs.content`` with ``id``, also for completions).
    """
    found = choice.get("logprobs")
    if found is None:
        return ()
    if not isinstance(found, Mapping):
        raise ValueError(f"logprobs are {found!r}; expected an object")
    if found.get("content") is not None:
        tokens = [_of_content(one) for one in _list(found, "content")]
    else:
        tokens = _of_lists(found)
    ids = _ids_of(choice)
    if ids and len(ids) < len(tokens):
        ids = [*_ids_of(choice, "prompt_token_ids"), *ids]  # with the prompt's tokens before the answer's
    if ids and tokens and len(ids) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have log-probabilities, and there are {len(ids)} token_ids")
    return tuple(replace(token, id=number) for token, number in zip(tokens, ids, strict=True)) if ids else (*tokens,)


def _ids_of(choice: Mapping[str, Any], name: str = "token_ids") -> list[int]:
    ids = [_whole(name, one) for one in _list(choice, name)]
    return [one for one in ids if one is not None]


def _of_content(one: object) -> Token:
    if not isinstance(one, Mapping):
        raise ValueError(f"a token is {one!r}; expected an object")
    tops = [(_name(top), _logprob(top)) for top in _list(one, "top_logprobs")]
    return Token(_name(one), _whole("id", one.get("id")), _logprob(one), _sorted(tops))


def _of_lists(found: Mapping[str, Any]) -> list[Token]:
    names = _list(found, "tokens")
    given = _list(found, "token_logprobs") or [None] * len(names)
    tops = _list(found, "top_logprobs") or [None] * len(names)
    if not len(names) == len(given) == len(tops):
        raise ValueError(f"{len(names)} tokens, {len(given)} token_logprobs, {len(tops)} top_logprobs")
    return [
        Token(_name({"token": name}), None, _logprob({"token": name, "logprob": logprob}), _sorted(_likeliest(top)))
        for name, logprob, top in zip(names, given, tops, strict=True)
    ]


def _likeliest(found: object) -> list[tuple[str, float | None]]:
    """The likeliest tokens at one position: an object of names, or a list of objects."""
    if isinstance(found, Mapping):
        return [(_name({"token": name}), _logprob({"token": name, "logprob": one})) for name, one in found.items()]
    if isinstance(found, list):
        return [(_name(one), _logprob(one)) for one in found]
    if found is None:
        return []
    raise ValueError(f"top_logprobs has {found!r}; expected an object of log-probabilities")


def _name(one: object, field: str = "token") -> str:
    name = one.get(field) if isinstance(one, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"{field} is {name!r} in {one!r}; expected a text")
    return whole_characters(name)


def _logprob(one: Mapping[str, Any]) -> float | None:
    """A log-probability; None for null and for minus infinity."""
    value = one.get("logprob")
    if value is None or (value == -math.inf and isinstance(value, float)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= 1e-3:
        raise ValueError(f"the token {one['token']!r} has the log-probability {value!r}")
    return float(value)


def _sorted(pairs: Sequence[tuple[str, float | None]]) -> tuple[tuple[str, float], ...]:
    known = [(name, logprob) for name, logprob in pairs if logprob is not None]
    return tuple(sorted(known, key=lambda pair: -pair[1]))


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list | None):
        raise ValueError(f"{name} is {value!r}; expected a list")
    return value or []


def _whole(name: str, value: object) -> int | None:
    """A number of things: 3, or 3.0; None for null. Raises ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}; expected a whole number of 0 or more")
    return value


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    try:
        return _whole(f"usage's {name}", usage.get(name))
    except ValueError as error:
        raise AnswerError("invalid", str(error)) from None


def _with_tokens(chunks: Sequence[Chunk], totals: Sequence[int | None], completion: int | None) -> tuple[Chunk, ...]:
    """The chunks with their tokens by the usage of each piece, where every piece says how many there are so far."""
    known = [total for total in totals if total is not None]
    counts = [after - before for before, after in zip([0, *known], known, strict=False)]
    fits = len(known) == len(chunks) and completion in (sum(counts), sum(counts) + 1) and min(counts, default=0) >= 0
    if not fits or any(chunk.tokens for chunk in chunks):
        return tuple(chunks)
    return tuple(replace(chunk, tokens=count) for chunk, count in zip(chunks, counts, strict=True))


def _spell(tokens: Sequence[Token], text: str, finish: str | None) -> bool | None:
    """Whether the tokens spell the text, blanks apart, up to what follows a stop and is not shown. None where it cannot
    be known: tokens by their names or as parts of characters, special tokens in the middle."""
    names = [token.text for token in tokens]
    while names and _SPECIAL.fullmatch(names[-1].strip()):
        names.pop()
    odd = set("".join(names)) - set(text)
    if any(_NO_TEXT.search(name) or _SPECIAL.fullmatch(name.strip()) for name in names) or not "".join(odd).isascii():
        return None
    spelt, shown = ("".join(one.split()) for one in ("".join(names), text))
    with_ends = "".join("".join(token.text for token in tokens).split())
    if finish == "length":
        return shown in (spelt, with_ends)
    return spelt.startswith(shown) or with_ends == shown
