"""Modules for multi-token prediction: inside a model's own checkpoint, and in the form of speculators."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from specdec import SpecdecError
from specdec_plugins.heads.mtp_head import MtpHead
from specdec_plugins.published.checkpoint import Checkpoint, Settings
from specdec_plugins.published.reading import VALUES, Choice, Published, Reading, TargetSizes, settled

FORM = "mtp"


@dataclass(frozen=True)
class MtpNames:
    """The names of one dialect: what all begin with, what the layer's begin with, and the other parts.

    ``order``: what comes first in the input of ``project``. ``source``: the program that reads the dialect so.
    """

    dialect: str
    start: str
    layer: str
    project: str
    token_norm: str
    hidden_norm: str
    last: str
    order: str
    source: str

    @property
    def whole(self) -> bool:
        """Whether the checkpoint is that of the whole model; speculators has the module alone."""
        return self.dialect != "speculators"

    def of(self, name: str) -> str:
        """The dialect's name of a tensor of ``MtpHead.shapes``."""
        if name.startswith("layers.0."):
            return self.layer + name.removeprefix("layers.0.")
        part, _, rest = name.removeprefix("entry.").partition(".")
        return f"{self.start}{getattr(self, part)}.{rest}"


_PARTS = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")

_DIALECTS = (
    MtpNames(
        *("DeepSeek", "model.layers.{n}.", "model.layers.{n}.", "eh_proj", "enorm", "hnorm", "shared_head.norm"),
        *("embedding", "transformers' MtpModel"),
    ),
    MtpNames(
        *("Qwen", "mtp.", "mtp.layers.0.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
        *("embedding", "transformers' MtpModel"),
    ),
    MtpNames("MiMo", *("model.mtp_layers.0.", "model.mtp_layers.0.", *_PARTS, "state", "vLLM's MiMoMTP")),
    MtpNames("speculators", *("mtp_layers.0.", "mtp_layers.0.", *_PARTS, "embedding", "speculators' MTPDraftModel")),
)
"""``{n}`` is the number of the target's layers. MiMo's names and speculators' differ in their beginning alone, and what
they name differs in its order."""

_LIKE = {"mimo": "qwen2"}
"""Kinds of models that transformers has not, and the kind whose layers they have."""

_HARMLESS = (
    *("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range"),
    *("use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"),
    *("unk_token_id", "sep_token_id", "cls_token_id"),
    *("pretraining_tp", "ep_size", "aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "output_router_logits"),
    *("mamba_ssm_dtype", "max_window_layers"),
)
"""Settings that say nothing about what the module computes."""

_OF_IMAGES = (
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype", "tie_word_embeddings"),
)
"""Settings beside the ``text_config`` of a model that sees."""

_OLDER = ("rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim", "full_attention_interval")
"""Settings that transformers takes beside the fields of a config."""

_FIXED: dict[str, tuple[object, ...]] = {
    "num_nextn_predict_layers": (1,),
    "mtp_num_hidden_layers": (1,),
    "mtp_use_dedicated_embeddings": (False,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
    "attn_output_gate": (True,),
    "use_mrope": (False,),
    "use_sliding_window": (False,),
}
"""Settings with the only values with which transformers' layers compute what is meant."""

_OF_TARGET = ("model.embed_tokens.*", "model.norm.*", "lm_head.*", "model.visual.*", "model.language_model.*")
"""Tensors of a whole model outside of its layers."""


def knows(checkpoint: Checkpoint) -> bool:
    """Whether it has such a module, by the names of its tensors."""
    return _dialect(checkpoint) is not None


def read(checkpoint: Checkpoint, sizes: TargetSizes, reading: Reading) -> Published[MtpHead]:
    """The module, whatever else of its model the checkpoint has; see ``Form``.

    SpecdecError, beside what a ``Checkpoint`` refuses, for a module of another model, for more than one, for a kind of
    model that transformers has not, and for quantised weights.
    """
    names = _dialect(checkpoint)
    assert names is not None
    if any(asked is not None for asked in (reading.layers, reading.ids, reading.window)):
        raise SpecdecError("a module for multi-token prediction has no layers, ids or window: leave these options out")
    config = _config(checkpoint, names, sizes)
    tensors, whole = checkpoint.tensors, (sizes.vocabulary, sizes.hidden)
    embedding = f"{names.start if names.whole else ''}embed_tokens.weight"
    output = f"{names.start}shared_head.head.weight" if names.whole else "lm_head.weight"
    rule, option = f"{names.source} reads {names.dialect}'s names so", "mtp(head=…, {})"
    choices = (
        settled("order", reading.order, [(names.order, rule)], option.format("order=embedding")),
        settled("states", reading.states, [("after", rule)], option.format("states=after")),
        settled("final", reading.final, [("after", rule)], option.format("final=after")),
        settled(
            "embedding",
            reading.embedding,
            [("own", f"tensor {embedding}") if embedding in tensors else ("target", f"no tensor {embedding}")],
            option.format("embedding=own"),
        ),
    )
    taken = Reading.of(**{choice.what: str(choice.value) for choice in choices})
    head = MtpHead(config, taken.order == "state", taken.states == "before")
    head.fill({name: _tensor(checkpoint, names.of(name), shape) for name, shape in head.shapes.items()})
    if taken.embedding == "own":
        head.embedding = torch.nn.Parameter(tensors.take(embedding, whole), requires_grad=False)
    tensors.harmless(embedding)
    rows = tensors.take(output, whole, optional=True)
    head.output = None if rows is None else torch.nn.Parameter(rows, requires_grad=False)
    if not names.whole:
        tensors.harmless("verifier_lm_head.weight")  # speculators saves it, and its module does not read it
    else:
        tensors.harmless(*_OF_TARGET, *(f"model.layers.{layer}.*" for layer in range(sizes.layers)))
    said = Choice("output", *(("target", f"no tensor {output}") if rows is None else ("own", f"tensor {output}")))
    return Published(FORM, names.dialect, head, taken, (*choices, said))


def alternatives(published: Published[MtpHead], sizes: TargetSizes) -> dict[str, Reading]:
    """Each convention read the other way; see ``Form``."""
    now = {what: str(getattr(published.reading, what)) for what in ("states", "final", "order", "embedding")}
    found = dict[str, Reading]()
    for what, text in (
        ("states", "its own states from {} its last norm"),
        ("final", "the target's states from {} its last norm"),
        ("order", "the {} first in the joined input"),
        ("embedding", "the embeddings of its {}"),
    ):
        [other] = [value for value in VALUES[what] if value != now[what]]
        if what != "embedding" or now[what] == "own":  # there may be none of its own
            found[text.format(other)] = Reading.of(**now | {what: other})
    return found


def _dialect(checkpoint: Checkpoint) -> MtpNames | None:
    """The dialect of a checkpoint's names, with the number of its layer in it; None if it has no module."""
    for names in _DIALECTS:
        pattern = re.escape(f"{names.start}{names.project}.weight").replace(r"\{n\}", r"(\d+)")
        found = [match for match in (re.fullmatch(pattern, name) for name in checkpoint.tensors.shapes) if match]
        if len(found) > 1:
            modules = ", ".join(sorted(match[0] for match in found))
            raise SpecdecError(f"{checkpoint.path} has {len(found)} modules, {modules}; expected one, all that is run")
        if found:
            number = "".join(found[0].groups())
            return replace(names, start=names.start.replace("{n}", number), layer=names.layer.replace("{n}", number))
    return None


def _config(checkpoint: Checkpoint, names: MtpNames, sizes: TargetSizes) -> PretrainedConfig:
    """The config of the model whose layer the module has, from all settings of the checkpoint."""
    settings = checkpoint.settings
    if not names.whole:
        settings.fixed("speculators_model_type", FORM)
        settings.fixed("num_nextn_predict_layers", 1)
        settings.harmless("architectures", "speculators_version", "speculators_config", *_HARMLESS)
        settings = settings.inside("transformer_layer_config")
    elif "text_config" in settings:
        settings.harmless(*_OF_IMAGES)
        settings = settings.inside("text_config")
    if "quantization_config" in settings:
        problem = "has quantised weights; convert them to bfloat16, and leave its quantization_config out"
        raise SpecdecError(f"{checkpoint.path} {problem}")
    config = _known(settings, checkpoint.path)
    fits = {
        "hidden_size": (config.hidden_size, sizes.hidden),
        "vocab_size": (config.vocab_size, sizes.vocabulary),
        "num_hidden_layers": (settings.peek("num_hidden_layers") if names.whole else sizes.layers, sizes.layers),
    }
    if wrong := [f"{key} is {got} and the target's {wanted}" for key, (got, wanted) in fits.items() if got != wanted]:
        raise SpecdecError(f"{checkpoint.path} is of another model: {', '.join(wrong)}; choose the target's own")
    return config


def _known(settings: Settings, path: str) -> PretrainedConfig:
    kind = settings.take("model_type", str)
    try:
        usual = AutoConfig.for_model(_LIKE.get(kind, kind))
    except ValueError as error:
        raise SpecdecError(
            f"{path} is of the kind {kind!r}, which transformers has not, so that nothing can run its layer; expected "
            f"one of transformers' kinds or {', '.join(_LIKE)}"
        ) from error
    fields = {*usual.to_dict(), *usual.attribute_map, *_OLDER} - {*_HARMLESS, *_FIXED}
    settings.harmless(*fields, *_HARMLESS)
    for key, values in _FIXED.items():
        settings.fixed(key, *values)
    if kind == "mimo":
        settings.fixed("attention_bias", True)  # as all layers of Qwen2 have it
    return AutoConfig.for_model(usual.model_type, **{key: settings.peek(key) for key in fields if key in settings})


def _tensor(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor, or of all experts together those of each, which most checkpoints have."""
    take, (before, _, last) = checkpoint.tensors.take, name.rpartition(".")
    if name in checkpoint.tensors or not before.endswith(".experts"):
        return take(name, shape)
    parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    each = shape[1] // len(parts), shape[2]
    return torch.stack(
        [torch.cat([take(f"{before}.{i}.{part}.weight", each) for part in parts]) for i in range(shape[0])]
    )
