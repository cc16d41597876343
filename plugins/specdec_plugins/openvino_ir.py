"""A transformers model as OpenVINO's IR: traced in float32, with its cache as state, as openvino-genai reads it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from specdec import SpecdecError
from specdec.layers import layer_shapes

_EXAMPLE = 2, 3, 5
"""Rows, new tokens and tokens before of the traced forward: none is 1 or 0, which would be traced as constants."""


class _OverTensors(nn.Module):
    """The model with its cache as arguments and results: keys and values by turns, [B, heads, length, size] each."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> Any:
        cache = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer: Any = DynamicLayer()  # an empty one would be traced as such
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
            cache.layers.append(layer)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return out.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def save_ir(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model in float32 on the CPU, and its tokenizer, to a folder that ``openvino_genai`` loads.

    openvino-genai replaces the attention by its own over pages. Raises SpecdecError for a model with sliding or
    recurrent layers, or whose attention is not ``scaled_dot_product_attention`` as it is: another text would come out.

    Source: openvinotoolkit/openvino, tools/ovc (``convert_model``); huggingface/optimum-intel,
    exporters/openvino/stateful.py (the names, the state and ``beam_idx``).
    """
    shapes = layer_shapes(model.config)
    if any(shape.span is not None for shape in shapes):
        raise SpecdecError(
            f"{type(model).__name__} has sliding layers, which the peers of OpenVINO would decode as full ones; leave "
            "these peers out (--specdec-peer)"
        )
    if any(shape.heads == 0 for shape in shapes):
        raise SpecdecError(
            f"{type(model).__name__} has layers without keys and values, whose states the peers of OpenVINO do not "
            "hold; leave these peers out (--specdec-peer)"
        )
    ov, rows, (new, past) = import_module("openvino"), _EXAMPLE[0], _EXAMPLE[1:]
    example = (
        torch.ones(rows, new, dtype=torch.long),
        torch.ones(rows, new + past, dtype=torch.long),
        torch.arange(past, past + new).repeat(rows, 1),
        *(torch.zeros(rows, shape.heads, past, shape.head_dim) for shape in shapes for _ in range(2)),
    )
    with _attends_by_torch(model), _quietly(), torch.no_grad():
        ir = ov.convert_model(_OverTensors(model).eval(), example_input=example)
    attentions = sum(op.get_type_name() == "ScaledDotProductAttention" for op in ir.get_ops())
    if attentions != len(shapes):
        raise SpecdecError(
            f"OpenVINO found {attentions} scaled_dot_product_attention in {type(model).__name__}; expected "
            f"{len(shapes)}, one a layer: its peers cannot decode this model. Leave them out (--specdec-peer)"
        )
    _name(ov, ir, [(shape.heads, shape.head_dim) for shape in shapes])
    ov.save_model(ir, folder / "openvino_model.xml", compress_to_fp16=False)
    model.config.save_pretrained(folder)
    with _quietly():
        pair = import_module("openvino_tokenizers").convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, part in zip(("openvino_tokenizer", "openvino_detokenizer"), pair, strict=True):
        ov.save_model(part, folder / f"{name}.xml")


def _name(ov: Any, ir: Any, shapes: list[tuple[int, int]]) -> None:
    """Give inputs and outputs the names that openvino-genai reads, and make the cache a state of the model."""
    ops: Any = import_module("openvino.opset13")
    ir.outputs[0].get_tensor().set_names({"logits"})
    beams = ops.parameter([-1], dtype=ov.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    states = {}
    for index, (heads, size) in enumerate(shape for shape in shapes for _ in range(2)):
        past, present = ir.inputs[3 + index], ir.outputs[1 + index]
        name = f"{index // 2}.{('key', 'value')[index % 2]}"
        states[f"past_key_values.{name}"] = f"present.{name}"
        past.get_tensor().set_names({f"past_key_values.{name}"})
        present.get_tensor().set_names({f"present.{name}"})
        past.get_node().set_partial_shape(ov.PartialShape([-1, heads, -1, size]))
        readers = past.get_target_inputs()
        picked = ops.gather(past, beams, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(picked.output(0))
    ir.add_parameters([beams])
    ir.validate_nodes_and_infer_types()
    import_module("openvino._offline_transformations").apply_make_stateful_transformation(ir, states)
    rows = ops.gather(ops.shape_of(ir.input("input_ids"), output_type="i64"), ops.constant([0]), ops.constant(0))
    for read in [op for op in ir.get_ops() if op.get_type_name() == "ReadValue"]:  # at first it is empty
        heads, size = (read.get_output_partial_shape(0)[axis].get_length() for axis in (1, 3))
        shape = ops.concat([rows, *(ops.constant([length]) for length in (heads, 0, size))], axis=0)
        read.set_arguments([ops.broadcast(ops.constant(0.0, dtype=read.get_output_element_type(0)), shape)])
    ir.validate_nodes_and_infer_types()


@contextmanager
def _attends_by_torch(model: Any) -> Iterator[None]:
    """Let the model attend by torch's ``scaled_dot_product_attention``, and afterwards as it did."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what torch, transformers and OpenVINO warn of in every trace, and OpenVINO's report to its makers."""
    logger = logging.getLogger("transformers")
    level, ci = logger.level, os.environ.get("CI")
    logger.setLevel(logging.ERROR)
    os.environ["CI"] = "true"  # with which openvino_telemetry sends nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        os.environ.pop("CI") if ci is None else os.environ.update(CI=ci)
