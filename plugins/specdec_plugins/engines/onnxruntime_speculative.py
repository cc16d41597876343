"""onnxruntime_speculative: ONNX Runtime GenAI with its own speculation, n-grams or a draft model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from specdec import PeerEnv, SpecdecError, catalog, hookimpl
from specdec.peer import PeerFactory, require_whole
from specdec_plugins.engines.onnxruntime import OnnxRuntime, Threads

MOST = 16
"""Most proposals of a step, and tokens of an n-gram with the one that follows it."""


class OnnxRuntimeSpeculative(OnnxRuntime):
    """ONNX Runtime GenAI that looks up n-grams, or with ``model`` has a smaller model propose ``k`` tokens a step.

    After a rejection it runs one forward more (re-anchoring), which counts as one.

    Source: microsoft/onnxruntime-genai, docs/SpeculativeDecoding.md.
    """

    reference = "onnxruntime"

    def __init__(
        self,
        env: PeerEnv,
        k: Annotated[int, "proposals of a step, max_draft_tokens; at most 16"] = 4,
        ngram: Annotated[int, "tokens that are looked up, ngram_size less 1; at most 15"] = 2,
        chained: Annotated[bool, "a short continuation is looked up in turn, ngram_chained_lookup"] = False,
        model: Annotated[str | None, "the draft model: name, folder, GGUF file or hub id; none: n-grams"] = None,
        threads: Threads = None,
    ) -> None:
        self._k = k
        if model is None:
            self._proposes = f"n-grams of {ngram}" + ", chained" * chained
            options: dict[str, int | bool] = {"ngram_size": ngram + 1, "ngram_chained_lookup": chained}
            self._load(env, threads, self._converted(env, env.model()), {"max_draft_tokens": k, **options})
            return
        self._proposes = f"draft model {model}"
        loaded = catalog.load(model, env.device, env.dtype)
        if loaded.tokenizer.get_vocab() != env.tokenizer.get_vocab():
            raise SpecdecError(
                f"the draft model {model!r} has another tokenizer than the target {env.target!r}; give one with the "
                "same token ids, or none, for n-grams"
            )
        target = self._converted(env, env.model())
        seconds = self.set_up_seconds["convert"]
        draft = self._converted(env, loaded.model)
        self.set_up_seconds = {"convert": seconds + self.set_up_seconds["convert"]}
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            self._load(env, threads, paired_folder(target, draft, Path(folder)), {"max_draft_tokens": k})

    @classmethod
    def check_options(cls, **options: object) -> None:
        """Whole numbers within ONNX Runtime's bounds, and a truth value."""
        require_whole("onnxruntime_speculative", k=options["k"], ngram=options["ngram"])
        for name, most in (("k", MOST), ("ngram", MOST - 1)):
            if int(str(options[name])) > most:
                raise SpecdecError(
                    f"{name} of the peer onnxruntime_speculative is {options[name]}; expected {most} or less"
                )
        if not isinstance(options["chained"], bool):
            raise SpecdecError(
                f"chained of the peer onnxruntime_speculative is {options['chained']!r}; expected True or False"
            )
        super().check_options(threads=options["threads"])

    def described(self) -> str:
        """As ``onnxruntime``, with what proposes."""
        return f"{super().described()}; {self._proposes}, k={self._k}"


def paired_folder(target: Path, draft: Path, folder: Path) -> Path:
    """Make ``folder`` that of a target with a draft model, both in ONNX, which stay where they are; return it."""
    config = json.loads((target / "genai_config.json").read_text())["model"]
    config["draft"] = json.loads((draft / "genai_config.json").read_text())["model"]["decoder"]
    for part, source in (("decoder", target), ("draft", draft)):
        (folder / part).symlink_to(source)  # a path with ".." would be refused
        config[part]["filename"] = f"{part}/{config[part]['filename']}"
    (folder / "genai_config.json").write_text(json.dumps({"model": config, "search": {}}))
    return folder


@hookimpl
def specdec_register_engines(register: Callable[[str, PeerFactory], None]) -> None:
    """Register ``onnxruntime_speculative``."""
    register("onnxruntime_speculative", OnnxRuntimeSpeculative)
