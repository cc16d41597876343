"""Torch's threads beside a backend's own: one within a step, and all again after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.conformance.models.tiny import assembly
from specdec import Context, Draft, Engine, Request, SamplingParams, SpecdecError, Verdict, Window, engine
from specdec.threads import kernel_threads, one_torch_thread
from specdec_kernels.cpu import Cpu
from specdec_plugins.policies.match import Match

THREADS = 2
REFUSED = SpecdecError("first")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


class Watching(Draft):
    """Repeats the pending token and records the threads of torch and of the kernels at every call."""

    needs_hidden = True

    def __init__(self, small: bool) -> None:
        self.small_ops = small
        self.seen: set[tuple[str, int, int]] = set()
        self.fails = False

    def _see(self, call: str) -> None:
        self.seen.add((call, torch.get_num_threads(), kernel_threads()))

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        self._see("prefilled")

    def propose(self, context: Context) -> Window:
        self._see("propose")
        if self.fails:
            raise RuntimeError("no proposals")
        k = int(context.max_proposals_host.max())
        return Window.chain(context.pending, context.pending[:, None].expand(-1, k), context.max_proposals)

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        self._see("observe")


def _engine(draft: Watching, backend: str = "cpu") -> Engine:
    return assembly(backend=backend, extra=(("draft", "watching", lambda env: draft),)).engine("watching", k=2)


REQUESTS = [Request(0, (1, 2, 3, 4), SamplingParams(max_new_tokens=4))]


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif(Cpu().missing() is not None, reason="no compiled kernels")
@pytest.mark.parametrize(("small", "torch_has"), [(True, 1), (False, THREADS)])
def test_torch_has_one_thread_in_the_calls_of_a_draft_with_small_ops_and_all_in_those_of_others(
    small: bool, torch_has: int
) -> None:
    draft = Watching(small)
    _engine(draft).run(REQUESTS)
    assert draft.seen == {(call, torch_has, THREADS) for call in ("prefilled", "propose", "observe")}
    assert torch.get_num_threads() == THREADS


@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif(Cpu().missing() is not None, reason="no compiled kernels")
def test_forwards_and_the_policys_ops_wake_no_thread_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    layers, accept = Cpu.decoder_layers, Match.accept

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*given: Any) -> Any:
            seen.append((call.__name__, torch.get_num_threads()))
            return call(*given)

        return watching

    monkeypatch.setattr(Cpu, "decoder_layers", watched(layers))
    monkeypatch.setattr(Match, "accept", watched(accept))
    watched_engine = _engine(Watching(True))
    seen.clear()  # the model was tried when it was loaded
    watched_engine.run(REQUESTS)
    assert set(seen) == {("decoder_layers", 1), ("accept", 1)}


class Seeing(Match):
    """The policy match, which records the threads of torch."""

    def __init__(self, env: Any, seen: set[int]) -> None:
        super().__init__(env)
        self.seen = seen

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        self.seen.add(torch.get_num_threads())
        return super().accept(logits, window, context)


def _torch_has(backend: str) -> tuple[set[int], set[int]]:
    """The threads of torch that a draft and a policy see in a run of three tokens."""
    draft, seen = Watching(True), set[int]()
    extra = (("draft", "watching", lambda env: draft), ("policy", "seeing", lambda env: Seeing(env, seen)))
    build = assembly(backend=backend, extra=extra)
    build.engine("watching", policy="seeing", k=2).run([Request(0, (1, 2), SamplingParams(max_new_tokens=3))])
    return {torch_has for _, torch_has, _ in draft.seen}, seen


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_target_that_torch_computes_keeps_torchs_threads() -> None:
    assert _torch_has("reference") == ({THREADS}, {THREADS})


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif(Cpu().missing() is not None, reason="no compiled kernels")
@pytest.mark.parametrize(("most", "torch_has"), [(3 * 258, 1), (3 * 258 - 1, THREADS)])
def test_a_policy_has_one_thread_of_torch_up_to_so_many_logits(
    most: int, torch_has: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has the logits of the pending token and of two proposals, each over 258 tokens."""
    monkeypatch.setattr(engine, "SMALL", most)
    draft, policy = _torch_has("cpu")
    assert (draft, max(policy)) == ({1}, torch_has)


@pytest.mark.usefixtures("two_threads")
def test_torch_has_its_threads_back_after_a_draft_has_raised() -> None:
    draft = Watching(True)
    draft.fails = True
    with pytest.raises(RuntimeError, match="no proposals"):
        _engine(draft).run(REQUESTS)
    assert (torch.get_num_threads(), kernel_threads()) == (THREADS, THREADS)


@pytest.mark.usefixtures("two_threads")
def test_one_torch_thread_nests_and_holds_for_its_own_thread_only() -> None:
    found: list[int] = []
    with one_torch_thread():
        with one_torch_thread():
            assert (torch.get_num_threads(), kernel_threads()) == (1, THREADS)
        assert (torch.get_num_threads(), kernel_threads()) == (1, THREADS)
        with one_torch_thread(False):
            assert torch.get_num_threads() == 1
        other = threading.Thread(target=lambda: found.append(kernel_threads()))
        other.start()
        other.join()
    assert (torch.get_num_threads(), kernel_threads()) == (THREADS, THREADS)
    assert found == [1]  # what torch gives a new thread at this moment; what this one holds is not seen there


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("wanted", [True, False])
def test_torchs_threads_are_what_they_were_after_a_call_that_changed_them_which_is_an_error(wanted: bool) -> None:
    given = 1 if wanted else THREADS

    def changing(error: Exception | None) -> None:
        with one_torch_thread(wanted):
            torch.set_num_threads(5)
            if error:
                raise error

    for error, said in (None, f"torch was set from {given} to 5 threads within a call of a plugin"), (REFUSED, "first"):
        with pytest.raises(SpecdecError, match=said):
            changing(error)
        assert (torch.get_num_threads(), kernel_threads()) == (THREADS, THREADS)
