"""Drafts of this project inside vLLM, as its speculative method ``custom_class`` loads them.

::

    vllm serve MODEL --additional-config '{"specdec_draft": "suffix(min_match=3)"}' --speculative-config \\
        '{"method": "custom_class", "model": "specdec_plugins.for_vllm.SpecdecProposer", "num_speculative_tokens": 4}'

Nothing of vLLM is imported: it imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from specdec import Context, Draft, Env, Registry, Request, SpecdecError
from specdec.runtime import Eager
from specdec.taps import Taps

KEY = "specdec_draft"
"""The key of vLLM's ``additional_config`` that names the draft; ``speculative_config`` takes no keys of others."""


FORGETS = "specdec_forgets"
"""The key by which the draft forgets everything whenever a request begins alone, so that runs of one text repeat."""


class SpecdecProposer:
    """Proposes by a draft of specdec in vLLM's runner.

    The draft is one that looks up (``Draft.looks_up``): ``ngram``, ``suffix``, a ``hybrid`` of such, or anybody's; it
    is named in ``additional_config["specdec_draft"]``, options included. vLLM gives a custom class no model and no
    hidden states, so that any other draft is refused by name, and so are drafts that propose trees.

    vLLM names no requests, and rows of its batch enter, leave and swap places between two calls. A row is recognised by
    its whole text: it continues the row of the last call whose text it has, before its newly sampled tokens. A row that
    is not there has ended, as far as anybody can tell; one that comes back later is a new request with a longer prompt,
    so that a draft that learns counts the text of a preempted request twice. It goes on learning for as long as vLLM
    runs, unless ``additional_config["specdec_forgets"]`` is true.

    Raises SpecdecError for a draft that does not exist or cannot run there, and where vLLM calls otherwise.

    Source: vLLM, vllm/v1/spec_decode/custom_class_proposer.py (f7490e78) and propose_draft_token_ids in
    vllm/v1/worker/gpu_model_runner.py (000fc94b).
    """

    def __init__(self, vllm_config: Any) -> None:
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        self._rows, self._longest = int(vllm_config.scheduler_config.max_num_seqs), int(model.max_model_len)
        self._k = int(speculative.num_speculative_tokens)
        registry = Registry()
        given = vllm_config.additional_config or {}
        text, self._forgets = given.get(KEY), bool(given.get(FORGETS))
        if not isinstance(text, str):
            raise SpecdecError(
                f"SpecdecProposer was given no draft (got {text!r}); name one in vLLM's additional_config, for example "
                f'--additional-config \'{{"{KEY}": "suffix"}}\'. {_choices(registry)}'
            )
        self._draft = _built(registry, text, self._rows, self._longest, self._k, int(model.get_vocab_size()))
        # A draft's row is a place of its own here, which a request keeps however vLLM moves it. Memory that no text has
        # reached is not touched, so that this costs what the texts do.
        self._history = np.zeros((self._rows, self._longest), dtype=np.int64)
        self._lengths = np.zeros(self._rows, dtype=np.int64)
        self._live: list[int | None] = []  # by vLLM's row at the last call
        self._admitted = 0

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """The proposals of each row: at most ``num_speculative_tokens`` ids, none where nothing was sampled.

        ``sampled_token_ids``: for each of B rows the tokens of this step, which its text already ends with, empty while
        its prompt is read; ``num_tokens_no_spec`` int32 [R] and ``token_ids_cpu`` int32 [R, max_model_len], R >= B.
        ``slot_mappings`` is not read.
        """
        texts = [
            _Text(token_ids_cpu[row, : int(num_tokens_no_spec[row])], len(sampled)) if sampled else None
            for row, sampled in enumerate(sampled_token_ids)
        ]
        for text, sampled in zip(texts, sampled_token_ids, strict=True):
            if text and text.tokens[text.known :].tolist() != list(sampled):
                raise SpecdecError(
                    f"vLLM sampled {list(sampled)} for a row whose tokens end with "
                    f"{text.tokens[text.known :].tolist()}; SpecdecProposer needs both on the host when it is asked, "
                    "which asynchronous scheduling does not give: turn that off (--no-async-scheduling)"
                )
        self._follow(texts)
        return self._proposed()

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Do nothing: drafts that look up have no model."""

    def _follow(self, texts: Sequence[_Text | None]) -> None:
        """Release the rows that left, admit those that came, and note the new tokens of all."""
        left = {place for place in self._live if place is not None}
        self._live = [self._place_of(row, text, left) for row, text in enumerate(texts)]
        for place in left:
            self._draft.release(place, tuple(self._history[place, : self._lengths[place]].tolist()))
        if self._forgets and not any(place is not None for place in self._live):
            self._draft.forget()
        free = [place for place in range(self._rows) if place not in self._live]
        for row, text in enumerate(texts):
            if text is None:
                continue
            found = self._live[row]
            place = self._admit(free.pop(), text) if found is None else found
            length = len(text.tokens)
            self._history[place, text.known : length] = text.tokens[text.known :]
            self._live[row], self._lengths[place] = place, length

    def _admit(self, place: int, text: _Text) -> int:
        prompt = tuple(text.tokens[: text.known].tolist())
        self._history[place, : text.known] = prompt
        self._draft.admit(place, Request(self._admitted, prompt), prompt)
        self._admitted += 1
        return place

    def _place_of(self, row: int, text: _Text | None, left: set[int]) -> int | None:
        """The place of a request that goes on, taken out of ``left``; None for one that is new.

        Rows with equal texts are interchangeable: what a draft holds of a row follows from its text.
        """
        if text is None:
            return None
        same = self._live[row] if row < len(self._live) else None  # nearly always the one, so it is compared first
        places = (place for place in (same, *left) if place is not None and self._continues(place, text, left))
        found = next(places, None)
        if found is not None:
            left.remove(found)
        return found

    def _continues(self, place: int, text: _Text, left: set[int]) -> bool:
        known = text.known
        alike = place in left and self._lengths[place] == known
        return alike and np.array_equal(self._history[place, :known], text.tokens[:known])

    def _proposed(self) -> list[list[int]]:
        """What the draft finds for each of vLLM's rows, within its room: one more token than the proposals must fit."""
        rooms = np.clip(self._longest - 1 - self._lengths, 0, self._k)
        # The tensors are the arrays' memory.
        context = Context(
            request=torch.arange(self._rows),
            tokens=torch.from_numpy(self._history),
            history=self._history,
            length=torch.from_numpy(self._lengths),
            length_host=self._lengths,
            max_proposals=torch.from_numpy(rooms),
            max_proposals_host=rooms,
            params=cast(Any, _Absent("the sampling parameters")),
            ops=cast(Any, _Absent("the ops")),
            coupled=False,
        )
        found: list[list[int]] = []
        for place in self._live:
            paths = () if place is None or rooms[place] < 1 else self._draft.look_up(context, place)
            found.append([int(token) for token in paths[0]] if paths else [])
        return found


@dataclass(frozen=True)
class _Text:
    """A row's tokens, of which the last ``fresh`` have just been sampled."""

    tokens: npt.NDArray[np.int32]
    fresh: int

    @property
    def known(self) -> int:
        """How many tokens the row had before this step."""
        return len(self.tokens) - self.fresh


class _Absent:
    """What a draft in vLLM cannot have; any use of it is an error that says so."""

    def __init__(self, what: str, **values: object) -> None:
        self.__dict__.update(values)
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise SpecdecError(f"it reads {name!r} of {vars(self).get('_what')}, and vLLM gives that to no custom class")


def _choices(registry: Registry) -> str:
    makers = {name: registry.entry("draft", name).factory for name in registry.names("draft")}
    able = [name for name, one in makers.items() if getattr(one, "looks_up", 0) and not getattr(one, "branches", 0)]
    return f"Drafts that run in vLLM look their proposals up: {', '.join(able)}, or a hybrid of these"


def _built(registry: Registry, text: str, rows: int, longest: int, k: int, vocabulary: int) -> Draft:
    """The draft that a text names, in an environment without a model; SpecdecError if it needs more."""

    def no_plain(request: Request) -> tuple[int, ...]:
        raise SpecdecError("it asks for plain decoding's output, and vLLM gives that to no custom class")

    entry, _ = registry.parse("draft", text)
    target = _Absent("the target", vocabulary=vocabulary, device=torch.device("cpu"))
    tokenizer, ops = _Absent("the tokenizer"), _Absent("the ops")
    env = Env(
        cast(Any, target),
        cast(Any, tokenizer),
        cast(Any, ops),
        rows,
        longest,
        k + 1,
        0,
        no_plain,
        lambda part: registry.draft(part, env),
        Eager(),
        cast(Any, _Absent("the calibration")),
    )
    needs = f"the draft {text!r} of {entry.owner} cannot run in vLLM"
    try:
        draft = registry.draft(text, env)
    except SpecdecError as error:
        raise SpecdecError(f"{needs}: {error}. {_choices(registry)}") from error
    if Taps.of([draft]) or draft.needs_logits or not draft.looks_up:
        raise SpecdecError(f"{needs}: it is no lookup on the host. {_choices(registry)}")
    if draft.branches:
        trees = "it proposes trees, and a custom class proposes chains; leave out an option that asks for trees"
        raise SpecdecError(f"{needs}: {trees}. {_choices(registry)}")
    return draft
