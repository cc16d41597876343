"""The optimizer of heads' matrices: torch's own steps, but for its rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from specdec_plugins.heads.muon import OwnDtypeMuon, orthogonal


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (40, 40)])
def test_what_is_made_orthogonal_keeps_its_directions_and_gets_values_of_about_1(shape: tuple[int, int]) -> None:
    given = _drawn(1, *shape)
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    found = left.T @ orthogonal(given) @ right.T
    large = values > 0.05 * values.max()
    assert found.diagonal()[large].sub(1).abs().max() < 0.5
    assert (found - found.diagonal().diag()).abs().max() < 1e-3


@pytest.mark.parametrize("shape", [(96, 32), (32, 96)])
def test_three_steps_are_those_of_torchs_muon_but_for_bfloat16(shape: tuple[int, int]) -> None:
    start = _drawn(2, *shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    steps = (
        OwnDtypeMuon([ours], 0.1, block=1000),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for seed in (3, 4, 5):
        ours.grad = _drawn(seed, *shape)
        theirs.grad = ours.grad.clone()
        for step in steps:
            step.step()
    assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()


def test_columns_of_states_side_by_side_move_as_matrices_of_their_own() -> None:
    start, gradient = _drawn(6, 64, 32), _drawn(7, 64, 32)
    whole = nn.Parameter(start.clone())
    whole.grad = gradient
    OwnDtypeMuon([whole], 0.1, block=16).step()
    for part in (slice(16), slice(16, 32)):
        alone = nn.Parameter(start[:, part].clone())
        alone.grad = gradient[:, part].clone()
        OwnDtypeMuon([alone], 0.1, block=16).step()
        torch.testing.assert_close(whole[:, part], alone)
