"""Settings of decoder layers as configs of transformers name them: those that matter to none, and spans."""

from __future__ import annotations

from transformers import PretrainedConfig

from specdec import SpecdecError
from specdec_plugins.published.checkpoint import Settings

_BASE = {*PretrainedConfig().to_dict()} - {"tie_word_embeddings"}
_OLD = (
    *("attention_dropout", "auto_map", "bos_token_id", "eos_token_id", "initializer_range", "max_position_embeddings"),
    *("pad_token_id", "pretraining_tp", "torch_dtype", "use_cache", "_name_or_path", "bad_words_ids"),
    *("cross_attention_hidden_size", "decoder_start_token_id", "do_sample", "early_stopping", "finetuning_task"),
    *("is_decoder", "max_length", "min_length", "num_beams", "pruned_heads", "repetition_penalty", "sep_token_id"),
    *("unk_token_id", "cls_token_id"),
    *("temperature", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "use_bfloat16"),
    *(
        "length_penalty",
        "typical_p",
        "num_return_sequences",
        "prefix",
        "return_dict_in_generate",
        "remove_invalid_values",
    ),
    *("add_cross_attention", "begin_suppress_tokens", "diversity_penalty", "encoder_no_repeat_ngram_size"),
    *("exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "no_repeat_ngram_size"),
    *(
        "num_beam_groups",
        "remove_invalid_values",
        "output_scores",
        "suppress_tokens",
        "task_specific_params",
        "tf_legacy_loss",
    ),
)


def layer_harmless(settings: Settings) -> None:
    """Take the keys of any config of transformers, new or old, that say nothing about what a layer computes."""
    settings.harmless(*_BASE, *_OLD)


def layer_spans(settings: Settings, layers: int) -> tuple[list[int | None] | None, int, str]:
    """The tokens over which each layer attends (None: all), the window that is named (0: none), and the key it is from.

    The list is None where a window is named and nothing says which layers have it.
    """
    window = settings.take("sliding_window", int, 0)
    used, first = settings.take("use_sliding_window", bool, None), settings.take("max_window_layers", int, 0)
    kinds = settings.peek("layer_types")
    settings.harmless("layer_types")
    if not window:
        return [None] * layers, 0, "sliding_window is absent"
    if isinstance(kinds, list) and len(kinds) >= layers and {*kinds} <= {"sliding_attention", "full_attention"}:
        return [window if kind == "sliding_attention" else None for kind in kinds[:layers]], window, "layer_types"
    if kinds is not None:
        raise SpecdecError(
            f"layer_types is {kinds!r}; expected {layers} of sliding_attention and full_attention, which can be read"
        )
    if used is None:
        return None, window, f"sliding_window is {window}, without layer_types or use_sliding_window"
    slides = [used and layer >= first for layer in range(layers)]
    return [window if one else None for one in slides], window, "use_sliding_window, max_window_layers"
