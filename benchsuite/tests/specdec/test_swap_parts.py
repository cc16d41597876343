"""Which parts of a model are replaced by ops, found by calling them: those that give the op's result, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchsuite.conformance.models import families
from benchsuite.conformance.models.tiny import registry
from specdec import swap
from specdec.ops import Ops
from specdec.swap import Swap


def compiled_ops() -> Ops:
    """The C++ ops over the reference."""
    return registry().backend("cpu")


def norm(name: str = "AnyRMSNorm", offset: float = 0.0, off: float = 0.0, eps: Any = 1e-6, where: str = "eps") -> Any:
    """A module of this class's name that is an RMSNorm but for a share ``off`` of its largest number."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
            setattr(self, where, eps)

        def forward(self, x: Tensor) -> Tensor:
            unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (eps or 0.0))
            got = unit * (offset + self.weight)
            largest = torch.zeros_like(got)
            largest[..., 3] = got.abs().max()
            return got + off * largest

    Norm.__name__ = name
    return Norm()


@pytest.mark.parametrize(
    ("module", "offset"),
    [
        (norm(), 0.0),
        (norm(where="variance_epsilon"), 0.0),
        (norm(offset=1.0), 1.0),
        (norm(eps=0.5), 0.0),
        (norm(off=0.019), 0.0),
        (norm(off=0.021), None),
        (norm(off=-0.021), None),
        (norm(offset=0.5), None),
        (norm("LayerNorm"), None),
        (norm("RMSNormed"), None),
        (norm(eps=0.0), None),
        (norm(eps=None), None),
        (nn.SiLU(), None),
        (nn.Linear(2, 2), None),
    ],
)
def test_a_norm_is_replaced_if_a_call_shows_that_it_is_one_and_what_it_adds_to_its_weight(
    module: Any, offset: float | None
) -> None:
    with torch.inference_mode():
        assert swap._norm_offset(module) == offset


def test_the_eps_of_a_norm_is_the_one_that_its_family_names() -> None:
    for given, eps in (({"variance_epsilon": 1e-5, "eps": 1e-3}, 1e-5), ({"eps": 1e-3}, 1e-3), ({}, 0.0)):
        assert swap._eps(SimpleNamespace(**given)) == eps


def halves(query: Any, keys: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Llama's rotary positions."""

    def half(x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return query * cos + half(query) * sin, keys * cos + half(keys) * sin


def neighbours(query: Any, keys: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions of neighbours, as GPT-J has them."""

    def turned(x: Any) -> Any:
        other = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cos[:, None] + other * sin[:, None]

    return turned(query), turned(keys)


def other_keys(*given: Any) -> Any:
    """Queries as they should be, keys not."""
    query, keys = halves(*given)
    return query, keys + 1e-3


def refusing(kind: type[Exception]) -> Any:
    def refuse(*given: Any) -> Any:
        raise kind

    return refuse


def module_of(function: Any, calls: bool = True) -> nn.Module:
    """A module whose class's forward calls ``function`` by transformers' name."""
    source = f"def forward(self, x):\n    return {'apply_rotary_pos_emb(x)' if calls else 'x'}\n"
    names: dict[str, Any] = {} if function is None else {"apply_rotary_pos_emb": function}
    exec(source, names)
    made: nn.Module = type("Attention", (nn.Module,), {"forward": names["forward"]})()
    return made


@pytest.mark.parametrize(
    ("function", "calls", "found"),
    [
        (halves, True, True),
        (halves, False, False),
        (neighbours, True, False),
        (other_keys, True, False),
        (lambda query, keys: (query, keys), True, False),
        (lambda query, keys, cos, sin: halves(query, keys, cos[:, :, :2], sin[:, :, :2]), True, False),
        (refusing(ValueError), True, False),
        (refusing(RuntimeError), True, False),
        (None, True, False),
    ],
)
def test_an_attention_is_replaced_if_its_rotary_function_is_called_and_turns_halves(
    function: Any, calls: bool, found: bool
) -> None:
    assert swap._turns(module_of(function, calls)) is found


def test_projections_of_one_input_and_kind_are_joined_and_no_others() -> None:
    def found(names: tuple[str, ...] = ("a", "b"), **parts: Any) -> list[Any]:
        return swap._projections(SimpleNamespace(**parts), names)  # type: ignore[arg-type]

    a, b = nn.Linear(4, 6, bias=False), nn.Linear(4, 2, bias=False)
    assert found(a=a, b=b) == [a, b]
    assert found(a=a) == []
    assert found(a=a, b=nn.Identity()) == []
    assert found(a=a, b=nn.Linear(3, 2, bias=False)) == []
    assert found(a=a, b=nn.Linear(4, 2)) == []
    assert found(a=a, b=nn.Linear(4, 2, bias=False).double()) == []
    assert found(a=a, b=type("Other", (nn.Linear,), {})(4, 2, bias=False)) == []
    down = nn.Linear(6, 4)
    assert found(("a", "b", "down_proj"), a=a, b=b, down_proj=down) == [a, b, down], "it has another input"


def test_matrices_that_lie_side_by_side_are_one_and_others_are_laid_so() -> None:
    whole = torch.arange(24.0).view(6, 4)
    stacked = swap._stacked([whole[:2], whole[2:3], whole[3:]])
    assert torch.equal(stacked, whole)
    assert stacked.data_ptr() == whole.data_ptr()
    part = swap._stacked([whole[1:3], whole[3:5]])
    assert (part.data_ptr(), part.shape) == (whole[1:].data_ptr(), (4, 4))
    assert torch.equal(part, whole[1:5])
    for first, second in ((whole[3:], whole[:3]), (whole[:2], whole[3:]), (whole[:2].clone(), whole[2:])):
        expected = torch.cat([first, second])
        weights = [nn.Parameter(first), nn.Parameter(second)]
        made = swap._stacked(list(weights))
        assert torch.equal(made, expected)
        assert made.data_ptr() not in (first.data_ptr(), second.data_ptr())
        assert weights[0].data_ptr() == made.data_ptr()
        assert weights[1].data_ptr() == made[len(first) :].data_ptr()
        assert [torch.equal(w, e) for w, e in zip(weights, (first, second), strict=True)] == [True, True]


def test_weights_are_packed_as_long_as_a_copy_and_a_quarter_more_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    products = sum(m.weight.nbytes for m in families.build_model("llama").modules() if isinstance(m, nn.Linear))
    needed = products * 5 // 4
    room = needed
    monkeypatch.setattr(swap, "available_bytes", lambda device: room)
    assert Swap(families.build_model("llama"), compiled_ops()).copied_bytes > 0
    room = needed - 1
    poor = Swap(families.build_model("llama"), compiled_ops())
    assert (poor.copied_bytes, len(poor.notes())) == (0, 1)
    assert poor.notes()[0].startswith(f"the weights are not packed: a copy needs {needed / 2**30:.2f} GiB and ")
    assert Swap(families.build_model("llama"), compiled_ops(), 8).notes() == [], "codes are no copy"
    assert Swap(families.build_model("llama"), registry().backend("reference")).notes() == []


@torch.inference_mode()
def test_all_threads_are_a_backends_own_only_while_every_part_is_replaced_by_one_that_has_such() -> None:
    model = families.build_model("llama")
    made = Swap(model, compiled_ops())
    assert not made.own_threads
    made.put_in(layers=False)
    assert not made.own_threads, "the layers run op by op"
    made.take_out()
    made.put_in()
    assert made.own_threads
    layer = made._layers[1][0]
    own = layer.__dict__.pop("forward")
    assert not made.own_threads
    layer.forward = own
    with made.taken_out():
        assert not made.own_threads
        assert not any("forward" in module.__dict__ for module in model.modules())
    assert made.own_threads
    made.take_out()
    with made.taken_out():
        pass
    assert not any("forward" in module.__dict__ for module in model.modules()), "what was out stays out"
    plain = Swap(families.build_model("llama"), registry().backend("reference"))
    plain.put_in()
    assert not plain.own_threads
    gpt2 = Swap(families.build_model("gpt2"), compiled_ops())
    gpt2.put_in()
    assert not gpt2.own_threads, "it has no layer that is replaced whole"
