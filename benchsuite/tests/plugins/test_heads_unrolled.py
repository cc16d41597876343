"""Modules for multi-token prediction and DFlash heads that are trained here: what training computes is what drafting
does, and what is written is read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchsuite.conformance.models.tiny import ask, requests
from benchsuite.tests.recorded_heads import HEADS
from benchsuite.tests.rig import Make
from specdec import Context, SamplingParams, SpecdecError, Verdict, Window, catalog
from specdec.assembly import Assembly
from specdec_kernels.reference import Reference
from specdec_plugins.heads import __main__ as command
from specdec_plugins.heads import start, training
from specdec_plugins.heads.dflash_head import DFlashHead
from specdec_plugins.heads.exported import export_dflash, export_mtp
from specdec_plugins.heads.mtp_head import MtpHead
from specdec_plugins.published import read_published
from specdec_plugins.published.reading import TargetSizes

OPS, K = Reference(), 3
KNOWN = torch.arange(0, 258, 2)


def _drawn(head: Any) -> None:
    """Move every number of a head, to one that bfloat16 has: a head that begins as the target hides what is unused."""
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_((weight + torch.randn_like(weight) * 0.05).bfloat16())


def _written(kind: str, build: Assembly, folder: Path) -> MtpHead | DFlashHead:
    """A head of this kind for a target, and a folder with it."""
    model: Any = build.target.twin()
    if kind == "mtp":
        module = start.mtp_start(model, torch.arange(40)[None] * 7 % 258, 0)
        _drawn(module)
        export_mtp(folder, module, model, K)
        return module
    head = start.dflash_start(model, 2, K + 1, 2, mask=257)
    _drawn(head)
    export_dflash(folder, head, KNOWN, (0, 1), model)
    return head


class TrainedText:
    """What training computes for a text and the proposals behind it."""

    def __init__(self, build: Assembly, head: MtpHead | DFlashHead) -> None:
        self.model: Any = build.target.twin()
        self.head = head
        self.ids = KNOWN if isinstance(head, DFlashHead) else torch.arange(258)
        rows = self.model.get_output_embeddings().weight
        self.reader = training.Reader(
            rows.bfloat16().float() if isinstance(head, DFlashHead) else rows, self.ids, torch.float32
        )

    @torch.no_grad()
    def logits(self, text: Tensor, proposals: list[int]) -> Tensor:
        """Logits [K, D] of the proposals behind a text; states and tokens behind it are never read."""
        seen: list[Tensor] = []
        layers = self.model.base_model.layers
        handles = [layer.register_forward_hook(lambda module, given, out: seen.append(out)) for layer in layers]
        final = self.model.base_model(text[None, :-1], use_cache=False).last_hidden_state
        for handle in handles:
            handle.remove()
        states = F.pad(torch.stack([*seen, final], dim=2), (0, 0, 0, 0, 0, K - 1), value=7.0)
        tokens = torch.cat([text[1:], torch.tensor(proposals[: K - 1])])
        embedded = self.model.get_input_embeddings()(tokens[None])
        steps = training.unrolled(self.head, OPS, embedded, states, K)
        last = len(text) - 2
        return torch.stack([self.reader.read(self.head, OPS, one)[0, last + fed] for fed, one in enumerate(steps)])


@pytest.mark.parametrize("kind", ["mtp", "dflash"])
def test_a_draft_has_the_logits_of_trainings_unrolled_steps(kind: str, assemble: Make, tmp_path: Path) -> None:
    """Over ragged rows, after rejections and after steps without proposals."""
    build = assemble("llama", max_rows=3)
    trained = TrainedText(build, _written(kind, build, tmp_path / "head"))
    engine = build.engine(f"{kind}(head={str(tmp_path / 'head')!r})", "rejection", k=K)
    found = list[tuple[Tensor, list[int], Tensor]]()

    def keep(context: Context, window: Window, logits: Tensor, verdict: Verdict) -> None:
        for row in range(context.rows):
            if int(window.width[row]) == K + 1 and window.q is not None:
                text = context.tokens[row, : context.length_host[row]].clone()
                found.append((text, window.tokens[row, 1:].tolist(), window.q[row].clone()))

    ask(engine, [3, 3, 0, 1, 0, 0, 3, 2] * 20)
    engine.trace = keep
    engine.run(requests(SamplingParams(temperature=1.0, max_new_tokens=16), count=4))
    assert len(found) > 10
    for text, proposals, q in found[::4]:
        due = torch.zeros(K, 258).index_copy(1, trained.ids, trained.logits(text, proposals).softmax(dim=-1))
        assert torch.allclose(q, due, atol=2e-5), (len(text), float((q - due).abs().max()))


@pytest.mark.parametrize("kind", ["mtp", "dflash"])
def test_what_is_written_is_read_again_bit_for_bit_under_the_packages_own_keys(
    kind: str, assemble: Make, tmp_path: Path
) -> None:
    build = assemble("llama")
    head = _written(kind, build, tmp_path)
    published = read_published(tmp_path, TargetSizes.of(build.target))
    assert (published.form, published.dialect) == (kind, "speculators")
    read = dict(published.head.named_parameters())
    own = dict(head.named_parameters())
    assert read.keys() == own.keys()
    for name, weight in own.items():
        assert torch.equal(read[name].bfloat16(), weight.bfloat16()), name
    if isinstance(head, DFlashHead):
        assert published.head.shape == head.shape
        assert published.head.mask == head.mask
        assert (published.reading.layers, published.head.ids.tolist()) == ((0, 1), KNOWN.tolist())
        rows = build.target.twin().get_output_embeddings().weight[KNOWN]
        assert torch.equal(published.head.rows, rows.bfloat16())
    package = HEADS / {"mtp": "mtp/speculators-llama", "dflash": "dflash/plain"}[kind]
    written, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, package))
    assert written.keys() <= theirs.keys()
    of_target = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    names = [set(load_file(folder / "model.safetensors")) - of_target for folder in (tmp_path, package)]
    assert names[0] == names[1]


def test_the_mask_is_a_token_that_the_text_lacks_and_the_layers_are_spread() -> None:
    assert start.rarest(torch.tensor([[0, 1, 1], [4, 2, 0]]), 6) == 5
    assert start.rarest(torch.tensor([[0, 1, 1], [3, 2, 0]]), 4) == 3
    assert [start.spread_layers(count) for count in (30, 6, 2, 1)] == [(1, 14, 27), (1, 2, 3), (1,), (0,)]
    model: Any = catalog.load("tiny", torch.device("cpu"), torch.float32).model
    for block, count in ((1, 1), (4, 0), (4, 99)):
        with pytest.raises(SpecdecError, match=f"to have {count} layers and blocks of {block} slots; expected 1 to"):
            start.dflash_start(model, 2, block, count, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mtp", "dflash"])
def test_the_command_trains_a_head_that_its_reader_and_its_draft_take(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = (torch.arange(80).view(8, 10) // 3) % 4 + 60
    shard = {"tokens": tokens.int(), "answer": torch.ones(8, 10, dtype=torch.bool)}
    for name, layers, shape in (("with", "0-1", (8, 10, 3, 64)), ("without", "", (8, 10, 64))):
        (tmp_path / name).mkdir()
        states = torch.randn(shape).bfloat16()
        save_file(shard | {"hidden": states}, tmp_path / name / "shard-0000.safetensors", metadata={"layers": layers})
    given = ["train", kind, "--target", "tiny", "--device", "cpu", "--vocabulary", "3", "--epochs", "1", "--batch", "4"]
    given += ["--block", "4", "--deep", "1", "--run", str(tmp_path / "r"), "--out", str(tmp_path / "head")]
    for refused, said in (
        (["--begin", "trained"], f"{kind} begins with the target's parts, got --begin trained; leave it out"),
        (["--corpus", str(tmp_path / "without")], "written without them; write another text with"),
    ):
        if kind == "dflash" or refused[0] == "--begin":
            with pytest.raises(SystemExit) as ended:
                command.heads_main([*given, "--corpus", str(tmp_path / "with"), *refused])
            assert said in str(ended.value.code)
    command.heads_main([*given, "--corpus", str(tmp_path / ("with" if kind == "dflash" else "without"))])
    model: Any = catalog.load("tiny", torch.device("cpu"), torch.float32).model
    vocabulary, size = model.get_input_embeddings().weight.shape
    published = read_published(tmp_path / "head", TargetSizes(size, vocabulary, model.config.num_hidden_layers))
    assert (published.form, len(json.loads((tmp_path / "head.json").read_text())["epochs"])) == (kind, 1)
    if kind == "dflash":
        assert published.head.shape.block == 4
        assert published.head.ids.tolist() == training.frequent(tokens, 3).tolist()
    assert "MB, held out" in capsys.readouterr().out
