"""A file of requests: read and checked, run in batches, each result written as its request ends.

A line of the file is a JSON object with ``prompt`` (text), ``prompt_ids`` (token ids) or ``messages`` (a chat), perhaps
an ``id``, and any field of ``SamplingParams``; ``bad_words`` may also be texts. A run that was killed is gone on with
by the same call.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, Union, get_args, get_origin, get_type_hints

from specdec.errors import SpecdecError, unknown
from specdec.request import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec.engine import Engine
    from specdec.queue import Completion

PROMPTS = ("prompt", "prompt_ids", "messages")
"""The fields of which a line has exactly one."""

TOGETHER = 64
"""Prompts that are tokenised in one call."""

AHEAD = 4096
"""Tokenised requests that are looked at for the longest; more are not tokenised before some have begun."""

ROOM = 1024
"""Tokens of a row that cost too little for prompts to be tokenised beforehand, only to allocate fewer."""

Ids = tuple[int, ...]
Chat = tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Job:
    """One line of a file of requests.

    ``index`` counts lines from 0 and is the request's id in the engine, so that its noise does not depend on what else
    runs. ``words`` are bad words given as texts; ``ends`` says that the line has its own ``eos``. ``fingerprint`` is a
    digest of all that decides its output.
    """

    index: int
    id: str | int
    prompt: str | Ids | Chat
    params: SamplingParams
    ends: bool = False
    fingerprint: str = ""
    words: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        """The number of its line, from 1, as editors and errors count."""
        return self.index + 1

    def request(
        self, prompt: Sequence[int], eos: Ids = (), tokenizer: PreTrainedTokenizerBase | None = None
    ) -> Request:
        """The engine's request for a tokenised prompt; ``eos`` are the ends of a line without its own.

        ``tokenizer`` turns ``words`` into token ids; a line without any needs none.
        """
        params = self.params if self.ends else replace(self.params, eos=eos)
        if self.words:
            from specdec.catalog import word_ids

            assert tokenizer
            params = replace(params, bad_words=(*params.bad_words, *word_ids(tokenizer, self.words)))
        return Request(self.index, tuple(prompt), params)


def read_jobs(
    path: Path, defaults: SamplingParams, settings: Mapping[str, object], words: tuple[str, ...] = ()
) -> list[Job]:
    """All lines of a file of requests, checked; empty lines are skipped. Imports nothing slow.

    ``defaults`` holds the parameters that a line does not name, ``words`` the bad words, as texts, of lines without
    any; ``settings`` is what else decides outputs (the model, the strategies), for the fingerprints.
    Raises SpecdecError, which begins with the line's number, for what is not a JSON object, unknown fields, values of
    another type or out of range, a line without exactly one prompt, and an id that another line has.

    Example: ``read_jobs(Path("requests.jsonl"), SamplingParams(), {"target": "tiny"})``
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SpecdecError(f"the requests {str(path)!r} cannot be read: {error.strerror}; name a file") from error
    jobs: list[Job] = []
    seen: dict[tuple[type, str | int], int] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            job = _job(index, _object(line), defaults, settings, words)
            first = seen.setdefault((type(job.id), job.id), job.line)
            if first != job.line:
                raise SpecdecError(f"the id {job.id!r} is that of line {first}; give each line its own, or none")
        except SpecdecError as error:
            raise SpecdecError(f"line {index + 1}: {error}") from error
        jobs.append(job)
    if not jobs:
        raise SpecdecError(f"the requests {str(path)!r} hold no line; write one JSON object a line")
    return jobs


def _object(line: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise SpecdecError(f"the field {twice[0]!r} is there twice; keep one")
        return dict(pairs)

    def strange(name: str) -> None:
        raise SpecdecError(f"{name} is no JSON; write a number")

    try:
        found = json.loads(line.decode("utf-8-sig"), object_pairs_hook=once, parse_constant=strange)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise SpecdecError("a text has half of a surrogate pair, which no tokenizer takes; write the whole") from error
    except (ValueError, RecursionError) as error:
        raise SpecdecError(f'not JSON ({error}); expected one object, for example {{"prompt": "Hello"}}') from error
    if not isinstance(found, dict):
        raise SpecdecError(f'{_short(found)} is no object; expected one, for example {{"prompt": "Hello"}}')
    return found


def _job(
    index: int,
    found: dict[str, Any],
    defaults: SamplingParams,
    settings: Mapping[str, object],
    words: tuple[str, ...],
) -> Job:
    kinds = get_type_hints(SamplingParams)
    known = ("id", *PROMPTS, *(f.name for f in fields(SamplingParams)))
    for name in found:
        if name not in known:
            raise unknown("field", name, known)
    given = [name for name in PROMPTS if name in found]
    if len(given) != 1:
        raise SpecdecError(f"it has {' and '.join(given) or 'no prompt'}; expected exactly one of {', '.join(PROMPTS)}")
    number = found.get("id", index + 1)
    if isinstance(number, bool) or not isinstance(number, str | int):
        raise SpecdecError(f"id is {_short(number)}; expected a text or a whole number")
    if isinstance(bad := found.get("bad_words"), list):
        words = tuple(word for word in bad if isinstance(word, str))
        found["bad_words"] = [word for word in bad if not isinstance(word, str)]
        if not all(word.strip() for word in words):
            raise SpecdecError(f"bad_words is {_short(bad)}; expected words of at least one visible character")
    values = {name: _typed(name, kinds[name], found[name]) for name in kinds if name in found}
    params = replace(defaults, **values)
    prompt = _prompt(given[0], found[given[0]])
    changed = {f.name: value for f in fields(params) if (value := getattr(params, f.name)) != _default(f)}
    # Only what is not the default, so that a field that is new some day leaves out files as they are.
    endless = [{"eos": "none"}] if "eos" in found and not params.eos else []  # without the field, the model's own
    decides = [dict(settings), index, number, given[0], prompt, changed, *words, *endless]
    digest = sha256(json.dumps(decides, sort_keys=True, default=_plain).encode()).hexdigest()
    return Job(index, number, prompt, params, "eos" in found, digest[:16], words)


def _default(one: Any) -> object:
    return one.default_factory() if one.default is MISSING and one.default_factory is not MISSING else one.default


def _plain(value: object) -> object:
    return sorted(value.items()) if isinstance(value, Mapping) else repr(value)


def _prompt(name: str, value: object) -> str | Ids | Chat:
    if name == "prompt":
        if not isinstance(value, str) or not value.strip():
            raise SpecdecError(f"prompt is {_short(value)}; expected a text that is not empty")
        return value
    if name == "prompt_ids":
        ids: Ids = _typed(name, tuple[int, ...], value)
        if not ids or min(ids) < 0:
            raise SpecdecError(f"prompt_ids is {_short(value)}; expected at least one token id, 0 or more")
        return ids
    expected = "a list of objects with the texts role and content"
    if not isinstance(value, list) or not value:
        raise SpecdecError(f"messages is {_short(value)}; expected {expected}, at least one")
    for message in value:
        whole = isinstance(message, dict) and message.keys() == {"role", "content"}
        if not whole or not all(isinstance(text, str) for text in message.values()):
            raise SpecdecError(f"messages has {_short(message)}; expected {expected}")
    return tuple(value)


def _typed(name: str, kind: Any, value: object) -> Any:
    """A JSON value as a field of a type holds it; SpecdecError with the field's name if it is of another."""
    try:
        return _converted(kind, value)
    except TypeError:
        raise SpecdecError(f"{name} is {_short(value)}; expected {_words(kind)}") from None


def _converted(kind: Any, value: Any) -> Any:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        for part in parts:
            with suppress(TypeError):
                return _converted(part, value)
        raise TypeError
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {_key(parts[0], key): _converted(parts[1], item) for key, item in value.items()}
    if origin is tuple and isinstance(value, dict) and get_origin(parts[0]) is tuple:
        key, item = get_args(parts[0])  # pairs, which JSON writes as an object
        return tuple((_key(key, k), _converted(item, v)) for k, v in value.items())
    if origin in (tuple, list, frozenset, Sequence) and isinstance(value, list):
        if origin is tuple and parts[-1] is not Ellipsis:
            if len(parts) != len(value):
                raise TypeError
            return tuple(_converted(part, item) for part, item in zip(parts, value, strict=True))
        items = (_converted(parts[0], item) for item in value)
        return list(items) if origin is list else frozenset(items) if origin is frozenset else tuple(items)
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin in (int, float, str, bool, NoneType) and type(value) is origin:
        return value
    raise TypeError


def _key(kind: Any, text: str) -> Any:
    # Keys of a JSON object are texts, those of a mapping from token ids are not.
    if kind is not int:
        return _converted(kind, text)
    try:
        return int(text)
    except ValueError:
        raise TypeError from None


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind) or kind, get_args(kind)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}
    if origin in names:
        return names[origin]
    if origin in (Union, UnionType):
        return " or ".join(map(_words, parts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"an object whose names are {_words(parts[0])} and whose values are {_words(parts[1])}"
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"a list of {', '.join(map(_words, parts))}"
    return f"a list, each item {_words(parts[0])}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


class OutFile:
    """The file of results: one JSON object a line, appended, and on the disk when ``keep`` returns.

    Opening it reads what an earlier run wrote: ``done`` holds the indexes of those jobs, and a last line that a kill
    cut off is removed. Use it as a context; it is locked meanwhile, where the system has locks.
    Raises SpecdecError, and changes nothing, if a line is no result of these jobs.

    Example: ``with OutFile(Path("out.jsonl"), jobs) as out: out.keep(job, completion, text)``
    """

    def __init__(self, path: Path, jobs: Sequence[Job]) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise SpecdecError(f"the results {str(path)!r} are no ordinary file, which could be gone on with; name one")
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise SpecdecError(f"the results {str(path)!r} cannot be written: {error.strerror}; name a file") from error
        try:
            self._lock()
            self.done = self._read({job.index: job for job in jobs})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpecdecError(
                f"another run writes to {str(self.path)!r}; wait for its end, or name another"
            ) from error

    def _read(self, jobs: Mapping[int, Job]) -> set[int]:
        self._file.seek(0)
        *lines, rest = self._file.read().split(b"\n")
        done: set[int] = set()
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                index, fingerprint = found["index"], found["request"]
            except (ValueError, TypeError, KeyError):
                raise self._foreign(f"line {number} is no result of this command") from None
            if index not in jobs or fingerprint != jobs[index].fingerprint or index in done:
                raise self._foreign(
                    f"line {number}, of the id {found.get('id')!r}, comes from another request or other options"
                )
            done.add(index)
        begins = b'{"id": '
        if rest and not (rest.startswith(begins) or begins.startswith(rest)):
            raise self._foreign("its last line is no result of this command")
        if rest:
            self._file.truncate(sum(len(line) + 1 for line in lines))
            os.fsync(self._file.fileno())
        return done

    def _foreign(self, why: str) -> SpecdecError:
        return SpecdecError(
            f"the results {str(self.path)!r} do not belong to these requests: {why}; "
            "name another file, move this one away, or run with the requests and options that made it"
        )

    def keep(self, job: Job, done: Completion, text: str) -> None:
        """Append a result and wait until it is on the disk; SpecdecError if there is no room."""
        result = {
            "id": job.id,
            "index": job.index,
            "request": job.fingerprint,
            "finish_reason": done.finish_reason,
            "prompt_tokens": len(done.request.prompt),
            "text": text,
            "tokens": done.tokens,
            "kinds": Counter(done.kinds),
            **({"logprobs": [token.as_json() for token in done.logprobs]} if done.logprobs else {}),
            "times": {"prefill_s": done.prefill_s, "first_s": done.times[0], "last_s": done.times[-1]},
        }
        line = json.dumps(result, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SpecdecError(
                f"a result cannot be written to {str(self.path)!r}: {error.strerror}; "
                "make room and run the same command again, which goes on here"
            ) from error
        self.done.add(job.index)


class Prompts:
    """Tokenises the prompts of jobs, beside whatever else runs: in one thread, many in a call, each text once.

    ``raw`` leaves ``prompt`` texts as they are; otherwise they are put into the chat template as one user's message.
    ``take`` gives the jobs in their order; ``left`` counts those that it has not given. Use it as a context. The
    tokenizer must be its own, because a tokenizer does not serve two threads at once.
    Raises SpecdecError, with the line, for messages that the chat template refuses.

    Example: ``with Prompts(tokenizer, jobs) as prompts: prompts.take(wait=True)``
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, jobs: Sequence[Job], raw: bool = False) -> None:
        self._tokenizer, self.jobs, self.left = tokenizer, jobs, len(jobs)
        self._texts = [None if _is_ids(job.prompt) else self._rendered(job, raw) for job in jobs]
        self._users = Counter(text for text in self._texts if text)
        self._known: dict[_Rendered, Ids] = {}
        self._asked: set[_Rendered] = set()
        self._flying: deque[tuple[slice, list[_Rendered], Future[list[Ids]] | None]] = deque()
        self._begun = 0
        self._pool = ThreadPoolExecutor(1, "tokenise")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _rendered(self, job: Job, raw: bool) -> _Rendered:
        if isinstance(job.prompt, str):
            if raw:
                return _Rendered(job.prompt)
            messages: list[Any] = [{"role": "user", "content": job.prompt}]
        else:
            messages = list(job.prompt)
        if not self._tokenizer.chat_template:
            return _Rendered("\n".join(message["content"] for message in messages))
        from specdec.catalog import chat_text

        try:
            text = chat_text(self._tokenizer, messages)
        except SpecdecError as error:
            raise SpecdecError(f"line {job.line}: {error}") from error
        return _Rendered(text, special=False)  # the template has written them

    def _encode(self, texts: list[_Rendered]) -> list[Ids]:
        found: dict[_Rendered, Ids] = {}
        for special in (True, False):
            alike = [text for text in texts if text.special is special]
            if alike:
                plain = [text.text for text in alike]
                rows = self._tokenizer(plain, add_special_tokens=special, verbose=False)["input_ids"]
                found |= {text: tuple(row) for text, row in zip(alike, rows, strict=True)}
        return [found[text] for text in texts]

    def longest(self, limit: int | None) -> int:
        """The most tokens that prompt and output of one job may have together; at most the model's ``limit``.

        It is exact or, up to ``ROOM`` tokens, an upper bound: a token has at least one byte, so that only prompts of
        more bytes than that need to be tokenised to know, longest first, until no other can be longer.
        Raises SpecdecError, with the line, for a prompt that leaves the model no position.
        """
        known: list[int] = []
        unsure: list[tuple[int, int, Job, _Rendered]] = []
        for job, text in zip(self.jobs, self._texts, strict=True):
            if text is None:
                known.append(self._fitting(job, len(job.prompt), limit))
            else:
                most = self._most_tokens(text)
                unsure.append((-most - job.params.max_new_tokens, job.index, job, text))
        unsure.sort(key=lambda entry: entry[:2])
        surely = [entry for entry in unsure if limit is not None and self._most_tokens(entry[3]) >= limit]
        perhaps = deque(entry for entry in unsure if limit is None or self._most_tokens(entry[3]) < limit)
        best = max(known, default=0)
        while surely or (perhaps and -perhaps[0][0] > max(best, ROOM) and (limit is None or best < limit)):
            some = surely[:TOGETHER] or [perhaps.popleft() for _ in range(min(TOGETHER, len(perhaps)))]
            del surely[:TOGETHER]
            new = list(dict.fromkeys(text for *_, text in some if text not in self._known))
            self._known |= zip(new, self._encode(new), strict=True)
            best = max(best, *(self._fitting(job, len(self._known[text]), limit) for *_, job, text in some))
        self._asked |= self._known.keys()
        best = max(best, -perhaps[0][0] if perhaps else 0)
        return best if limit is None else min(best, limit)

    def _most_tokens(self, text: _Rendered) -> int:
        if text in self._known:
            return len(self._known[text])
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or backend.normalizer is not None:
            return 2**31  # a normaliser can make a text longer: nothing is known
        return len(text.text.encode()) + 8  # special tokens, and a space in front

    def _fitting(self, job: Job, length: int, limit: int | None) -> int:
        if limit is not None and length >= limit:
            raise SpecdecError(
                f"line {job.line}: the prompt has {length} tokens and the model {limit} positions, of which the output "
                f"needs one at least: at most {limit - 1} fit; shorten it"
            )
        return length + job.params.max_new_tokens

    def _fly(self) -> None:
        """Give the thread its next batches; few, so that what is tokenised ahead stays bounded."""
        while len(self._flying) < 2 and self._begun < len(self.jobs):
            span = slice(self._begun, min(self._begun + TOGETHER, len(self.jobs)))
            self._begun = span.stop
            new = list(dict.fromkeys(t for t in self._texts[span] if t and t not in self._asked))
            self._asked.update(new)
            self._flying.append((span, new, self._pool.submit(self._encode, new) if new else None))

    def take(self, wait: bool) -> list[tuple[Job, Ids]]:
        """The next jobs with their prompts' token ids, as many as are tokenised; with ``wait``, at least one if any is
        left."""
        taken: list[tuple[Job, Ids]] = []
        self._fly()
        while self._flying and len(taken) < AHEAD:
            span, new, future = self._flying[0]
            if future and not future.done() and not (wait and not taken):
                break
            self._flying.popleft()
            self._fly()
            self._known |= zip(new, future.result() if future else [], strict=True)
            for job, text in zip(self.jobs[span], self._texts[span], strict=True):
                if text is None:
                    assert _is_ids(job.prompt)
                    taken.append((job, job.prompt))
                    continue
                taken.append((job, self._known[text]))
                self._users[text] -= 1
                if not self._users[text]:
                    del self._known[text]
        self.left -= len(taken)
        return taken


@dataclass(frozen=True)
class _Rendered:
    """A text to tokenise, and whether the tokenizer adds its special tokens."""

    text: str
    special: bool = True


def _is_ids(prompt: str | Ids | Chat) -> TypeGuard[Ids]:
    return not isinstance(prompt, str) and isinstance(prompt[0], int)


def in_turn(job: Job, length: int, grouped: bool) -> tuple[int, int]:
    """The key by which tokenised jobs begin, least first; ``length`` is that of the prompt, in tokens.

    ``grouped``: the longest prompt and output first, because all rows of a batch read as many cells as its longest one
    has, so that alike ones are best together; and a long one begun last would run alone. Else in the file's order.
    """
    return (-(length + job.params.max_new_tokens) if grouped else 0, job.index)


def run_jobs(
    engine: Engine,
    prompts: Prompts,
    eos: Ids = (),
    *,
    grouped: bool = True,
    stepped: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Job, Completion]]:
    """Run the jobs of ``prompts``; yields each with its completion as it ends. ``stepped`` is called after every step.

    ``eos`` are the ends of jobs without their own; ``grouped`` as in ``in_turn``. At most as many requests wait in the
    engine as it has rows, so that a longer prompt tokenised later can go first. Completions are taken out of
    ``engine.finished``. Closing the generator cancels what runs.
    Raises SpecdecError, with the line, for a request that the engine refuses; those of token ids before anything runs.

    Example: ``for job, done in run_jobs(engine, prompts): out.keep(job, done, "")``
    """
    for job in prompts.jobs:
        if _is_ids(job.prompt):
            with _at_line(job):
                engine.refuse_unfit(job.request(job.prompt, eos, engine.tokenizer))
    ready: list[tuple[tuple[int, int], Job, Ids]] = []
    begun: dict[int, Job] = {}
    try:
        while True:
            if prompts.left and len(ready) < AHEAD:
                for job, ids in prompts.take(wait=not ready and not begun):
                    heapq.heappush(ready, (in_turn(job, len(ids), grouped), job, ids))
            while ready and engine.waiting < engine.max_rows:
                _, job, ids = heapq.heappop(ready)
                with _at_line(job):
                    last = not ready and not prompts.left
                    engine.submit([job.request(ids, eos, engine.tokenizer)], closed=last)
                begun[job.index] = job
            if not begun:
                return
            engine.step()
            stepped()
            for number in [number for number in engine.finished if number in begun]:
                yield begun.pop(number), engine.finished.pop(number)
    finally:
        engine.cancel(list(begun))


@contextmanager
def _at_line(job: Job) -> Iterator[None]:
    try:
        yield
    except SpecdecError as error:
        raise SpecdecError(f"line {job.line}: {error}") from error
