"""custom_class: a class that was written for vLLM's custom proposers proposes here."""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from specdec import Context, Draft, Request, SpecdecError, Window, hookimpl
from specdec.errors import RAISED, unknown
from specdec.interfaces import DraftFactory, Env

LIMITS = "a class here proposes on the host, from token ids alone: there is no vLLM, no model and no hidden state"

OWN_CONFIG = "additional_config"
"""The setting that is vLLM's free mapping for plugins, and not a field of its ``speculative_config``."""

FIELDS: Mapping[str, Any] = {
    "num_speculative_tokens": None,
    "prompt_lookup_min": None,
    "prompt_lookup_max": None,
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_cached_requests": 10000,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
}
"""Fields of vLLM's ``speculative_config`` that its proposers on the host read, with vLLM's defaults."""


class VllmPart:
    """Part of a stand-in for vLLM's ``VllmConfig``: the attributes that proposers on the host read.

    Any other attribute raises an AttributeError that names it and those that exist, so that ``hasattr`` and ``getattr``
    with a default work as they do in vLLM.

    Example: ``VllmPart("vllm_config.scheduler_config", max_num_seqs=4).max_num_seqs`` is 4.
    """

    def __init__(self, where: str, **values: object) -> None:
        self.__dict__.update(values)
        self.__dict__["_where"] = where

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(key for key in vars(self) if not key.startswith("_")) or "nothing"
        raise AttributeError(f"{vars(self).get('_where')} has no {name!r} here, only {known}; {LIMITS}")


class CustomClass(Draft):
    """Runs a class with vLLM's ``propose``: the same class that vLLM's speculative method ``custom_class`` loads.

    Every step calls ``propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None)`` as vLLM's
    runner does. ``sampled_token_ids`` has for each of B rows the tokens that are new since the last call, at the first
    call a prompt's last token; the others are int32 [R] and [R, max_model_len] for R >= B rows, and may only be read. A
    request's row changes when others end, and the class is not told. It returns B lists of at most
    ``num_speculative_tokens`` ids, of which as many are used as there is room for. They are certain (q is None), as a
    lookup's are. ``load_model`` is called if there is one, with a model that has no attributes.

    Raises SpecdecError, which names the class, if it cannot be imported or built, raises anything, reads what is not
    there, or returns something else.

    Source: vLLM, vllm/v1/spec_decode/custom_class_proposer.py (f7490e78) and propose_draft_token_ids in
    vllm/v1/worker/gpu_model_runner.py (000fc94b).

    Example: ``custom_class(path='mine.lookup:Proposer', settings='{"prompt_lookup_min": 2, "prompt_lookup_max": 4}')``
    """

    def __init__(
        self,
        env: Env,
        path: Annotated[str, "the class, as package.module:Class; vLLM's package.module.Class is read too"] = "",
        settings: Annotated[str, "JSON: fields of vLLM's speculative_config, and additional_config"] = "{}",
        learns: Annotated[
            bool, "whether ended requests change what it proposes; it is then built anew to forget"
        ] = False,
    ) -> None:
        self._path, self.learns = path, learns
        self._made = _class_at(path)
        self._config = _config(path, settings, env)
        self._most: int = self._config.speculative_config.num_speculative_tokens
        self._vocabulary = env.target.vocabulary
        self._tokens = np.zeros((env.max_rows, env.max_length), dtype=np.int32)
        self._lengths = np.zeros(env.max_rows, dtype=np.int32)
        self._copied = [0] * env.max_rows  # tokens of a row that are in _tokens
        self._told = [0] * env.max_rows  # tokens of a row that the class has been told of
        self._proposer = self._built()

    def _built(self) -> Any:
        """An instance of the class, as vLLM makes it."""
        proposer = self._asked("its constructor", lambda: self._made(self._config))
        if not callable(getattr(proposer, "propose", None)):
            raise SpecdecError(
                f"{self._path} has no method propose; vLLM calls propose(sampled_token_ids, num_tokens_no_spec, "
                "token_ids_cpu, slot_mappings=None), which returns a list of token ids for each row"
            )
        if hasattr(proposer, "load_model"):
            self._asked("load_model", lambda: proposer.load_model(VllmPart("the target's model")))
        return proposer

    def _asked(self, what: str, call: Callable[[], Any]) -> Any:
        """What a call into the class returns; SpecdecError, with the class, for whatever it raises."""
        try:
            return call()
        except RAISED as error:
            place = traceback.extract_tb(error.__traceback__)[-1]  # an assert often says no more
            raise SpecdecError(
                f"{self._path}: {what} raised {type(error).__name__}: {error} ({Path(place.filename).name}:"
                f"{place.lineno}: {place.line}). Mend the class, or give what it lacks in settings; {LIMITS}"
            ) from error

    def forget(self) -> None:
        """Build the class anew, if it ``learns``: vLLM's interface has no call for it."""
        if self.learns:
            self._proposer = self._built()

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """The class is told of a prompt's last token as if it had just been sampled: vLLM never asks before that."""
        self._copied[row], self._told[row] = 0, len(prompt) - 1

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """The row's tokens move, and the class is not told: neither is it by vLLM."""
        self._tokens[row] = self._tokens[source]
        self._copied[row], self._told[row] = self._copied[source], self._told[source]

    def propose(self, context: Context) -> Window:
        """One call of the class for the whole batch, its answer checked and cut to each row's room."""
        sampled = []
        self._lengths[:] = 0
        for row in range(context.rows):
            length = int(context.length_host[row])
            fresh = slice(self._copied[row], length)
            self._tokens[row, fresh] = context.history[row, fresh]
            sampled.append(context.history[row, self._told[row] : length].tolist())
            self._lengths[row] = self._copied[row] = self._told[row] = length
        lengths, tokens = _read_only(self._lengths), _read_only(self._tokens)
        answer = self._asked("propose", lambda: self._proposer.propose(sampled, lengths, tokens, slot_mappings=None))
        proposed = self._checked(answer, context.rows)
        room = context.max_proposals_host
        return Window.ragged(context, [ids[: max(int(room[row]), 0)] for row, ids in enumerate(proposed)])

    def _checked(self, answer: Any, rows: int) -> list[list[int]]:
        """The answer as lists of token ids that exist; SpecdecError says what is wrong with any other."""
        if not isinstance(answer, list | tuple) or len(answer) != rows:
            got = f"{len(answer)} lists" if isinstance(answer, list | tuple) else f"a {type(answer).__name__}"
            raise SpecdecError(
                f"{self._path}: propose returned {got} for {rows} rows; expected a list with one list of token ids for "
                "each list in sampled_token_ids, empty where nothing is proposed"
            )
        checked = []
        for row, given in enumerate(answer):
            ids = given.tolist() if isinstance(given, np.ndarray) and given.ndim == 1 else given
            if not isinstance(ids, list | tuple) or not all(_is_id(token) for token in ids):
                raise SpecdecError(
                    f"{self._path}: propose returned {given!r} for row {row}; expected a list of whole numbers"
                )
            if len(ids) > self._most:
                raise SpecdecError(
                    f"{self._path}: propose returned {len(ids)} tokens for row {row}; expected at most "
                    f"num_speculative_tokens, {self._most}: raise K, or let the class read that number"
                )
            strange = [int(token) for token in ids if not 0 <= token < self._vocabulary]
            if strange:
                raise SpecdecError(
                    f"{self._path}: propose returned the token id {strange[0]} for row {row}; the target's vocabulary "
                    f"ends at {self._vocabulary - 1}. A row of token_ids_cpu is text up to num_tokens_no_spec only; "
                    "propose fewer tokens in place of padding"
                )
            checked.append([int(token) for token in ids])
        return checked


def _is_id(token: object) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool)


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _class_at(path: str) -> Callable[[Any], Any]:
    """The class that a path names; SpecdecError if there is none."""
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name or not name:
        raise SpecdecError(
            f"custom_class was given path={path!r}; expected the class as package.module:Class, for example "
            "custom_class(path='mine.lookup:Proposer')"
        )
    try:
        module = importlib.import_module(module_name)
    except RAISED as error:
        raise SpecdecError(
            f"custom_class cannot import {module_name!r} of {path!r}: {type(error).__name__}: {error}; install it, or "
            "put its folder into PYTHONPATH"
        ) from error
    made = getattr(module, name, None)
    if made is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise unknown(f"class of {module_name}", name, classes)
    if not callable(made):
        raise SpecdecError(f"{path} is a {type(made).__name__}; expected a class that takes a vllm_config")
    found: Callable[[Any], Any] = made
    return found


def _config(path: str, settings: str, env: Env) -> VllmPart:
    """The stand-in for vLLM's ``VllmConfig``; SpecdecError for settings that it does not have."""
    try:
        given = json.loads(settings)
    except (TypeError, ValueError) as error:
        raise SpecdecError(f"settings of {path} are no JSON: {error}; got {settings!r}") from None
    if not isinstance(given, dict):
        raise SpecdecError(f"settings of {path} are {settings!r}; expected a JSON object")
    for name in given:
        if name not in (*FIELDS, OWN_CONFIG):
            hint = f"A class's own values belong into {OWN_CONFIG!r}, which vLLM leaves to plugins."
            raise unknown("setting of custom_class", name, (*FIELDS, OWN_CONFIG), hint)
    most = env.max_window - 1
    count = given.get("num_speculative_tokens", most)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
        raise SpecdecError(
            f"num_speculative_tokens of {path} is {count!r} and this engine proposes at most {most} tokens; give K the "
            "same value (--specdec-k), or leave num_speculative_tokens out: it is then K"
        )
    own = given.pop(OWN_CONFIG, {})
    if not isinstance(own, dict):
        raise SpecdecError(f"{OWN_CONFIG} in the settings of {path} is {own!r}; expected a JSON object")
    fields = {**FIELDS, **given, "num_speculative_tokens": count, "method": "custom_class"}
    fields["model"] = path.replace(":", ".")
    vocabulary = env.target.vocabulary
    return VllmPart(
        "vllm_config",
        speculative_config=VllmPart("vllm_config.speculative_config", **fields),
        model_config=VllmPart(
            "vllm_config.model_config", max_model_len=env.max_length, get_vocab_size=lambda: vocabulary
        ),
        scheduler_config=VllmPart("vllm_config.scheduler_config", max_num_seqs=env.max_rows),
        parallel_config=VllmPart("vllm_config.parallel_config", tensor_parallel_size=1),
        additional_config=own,
    )


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``custom_class``."""
    register("custom_class", CustomClass)
