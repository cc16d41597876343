"""Models and tokenizers with another vocabulary than the tiny targets have, for drafts that translate."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchsuite.conformance.models import families
from specdec import Draft, Env
from specdec.catalog import Loaded
from specdec_plugins.drafts.translated import TranslatedDraft

BYTES = 256
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The byte tokenizer's tokens, by id."""

SPECIAL = ("<|end|>", "<|turn|>")
"""The byte tokenizer's special tokens, from id 256 on."""


def byte_level(
    vocabulary: Sequence[str], merges: Sequence[tuple[str, str]] = (), special: Sequence[str] = SPECIAL
) -> PreTrainedTokenizerBase:
    """A byte-level tokenizer of these tokens in this order, then these special ones."""
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=made)


def renamed(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """A copy of a model whose token i is the model's token ``kept[i]``."""
    made = copy.deepcopy(model)
    made.resize_token_embeddings(len(kept))
    made.config.pad_token_id = made.config.eos_token_id = made.generation_config.eos_token_id = None
    for new, old in (
        (made.get_input_embeddings(), model.get_input_embeddings()),
        (made.get_output_embeddings(), model.get_output_embeddings()),
    ):
        new.weight.data = old.weight.data[list(kept)].clone()
    return made


def shuffled(family: str, without: Sequence[int] = ()) -> Loaded:
    """The family's target with its tokens in another order, and without some of its byte tokens."""
    return own_copy(_shuffled(family, tuple(without)))


@cache
def _shuffled(family: str, without: tuple[int, ...]) -> Loaded:
    kept = [token for token in range(BYTES) if token not in without]
    random.Random(0).shuffle(kept)
    tokenizer = byte_level([LETTERS[token] for token in kept], special=SPECIAL[::-1])
    return Loaded("shuffled", renamed(families.build_model(family), [*kept, 257, 256]), tokenizer)


def own_copy(loaded: Loaded) -> Loaded:
    """The same with a copy of the model, which a draft changes in place."""
    return replace(loaded, model=copy.deepcopy(loaded.model))


def shuffled_draft(env: Env) -> Draft:
    """The target under other ids, and without an eighth of its tokens."""
    return TranslatedDraft(env, shuffled("llama", without=range(0, BYTES, 8)))
