"""Long outputs: past the span where every layer slides, in the memory allocated at first; ended by length elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchsuite.conformance.models import families, tiny
from benchsuite.tests.rig import Make, slow_after
from specdec import Engine, Request, SamplingParams, catalog
from specdec.assembly import Assembly
from specdec.model import PREFILL_CHUNK, ArenaModel
from specdec_plugins.engines.transformers import generate_arguments

SPAN, LONG = 64, 1024


def sliding() -> ArenaModel:
    """A target whose layers all see the last 64 tokens; float64, in which outputs this long do not tie."""
    config: Any = families.CONFIGS["mistral"]()
    config.sliding_window = SPAN
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    return ArenaModel(model, tiny.registry().backend())


@pytest.mark.slow
def test_an_output_of_16_spans_where_every_layer_slides_equals_transformers_in_constant_memory() -> None:
    target = sliding()
    # Penalties, because a tiny model would soon repeat itself, and then any cache is right.
    params = SamplingParams(max_new_tokens=LONG, repetition_penalty=1.02, frequency_penalty=0.05)
    request = Request(0, tiny.prompts(1)[0], params)
    build = Assembly(tiny.registry(), target, catalog.byte_tokenizer(), max_rows=1, max_length=LONG + 64)
    outputs = [emitted_by(build.engine(draft, k=k), request) for draft, k in ((None, None), ("ngram", 4))]
    theirs: Any = target.twin().generate
    ids = torch.tensor([request.prompt])
    out = theirs(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=DynamicCache(config=target.model.config),
        pad_token_id=0,
        **generate_arguments(request),
    )
    expected = tuple(out[0, len(request.prompt) :].tolist())
    assert len(expected) == LONG
    assert len(set(expected[-SPAN:])) > 20, "the end of the text repeats itself"
    assert outputs == [expected, expected]


def emitted_by(engine: Engine, request: Request) -> tuple[int, ...]:
    """The output; asserts that no cell was copied and no memory allocated after the engine's construction."""
    tensors = (*engine.arena.keys, *engine.arena.values)
    before, cells = [tensor.data_ptr() for tensor in tensors], [tensor.shape[2] for tensor in tensors]
    done = engine.run([request])[0]
    assert [tensor.data_ptr() for tensor in tensors] == before
    assert max(cells) < SPAN + PREFILL_CHUNK + 8, "the ring, not the text, decides how much is allocated"
    counts = engine.stats.counts
    assert counts["kv_bytes_copied"] == counts["kv_rows_moved_bytes"] == 0
    return done.tokens


@pytest.mark.parametrize("draft", [None, "oracle(1.0)"])
@pytest.mark.parametrize("family", slow_after(1, ["llama", "gemma3", "gpt2"]))
def test_where_a_layer_sees_everything_an_output_ends_by_length_at_the_models_positions(
    family: str, draft: str | None, assemble: Make
) -> None:
    positions = 512
    engine = assemble(family, max_length=2 * positions).engine(draft, k=None if draft is None else 4)
    request = Request(0, tiny.prompts(1)[0] * 13, SamplingParams(max_new_tokens=positions))
    done = engine.run([request])[0]
    assert done.finish_reason == "length"
    assert len(request.prompt) + len(done.tokens) == positions
