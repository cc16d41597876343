"""typical: accepts a proposal that is likely enough for the entropy of the target's distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from specdec import SpecdecError, Window, hookimpl
from specdec.interfaces import Env, PolicyFactory
from specdec_plugins.lenient import Lenient, probability


class Typical(Lenient):
    """Accepts while p(x) > min(epsilon, delta exp(-H)), where H is the target's entropy in nats.

    With ``p`` above 0, the rule is different: x must be in the locally typical set of mass p, the tokens whose
    surprise is closest to H.

    Source: Medusa, Cai et al. 2401.10774, section 2.3.1; locally typical sets, Meister et al. 2202.00666.

    Example: ``typical(epsilon=0.3, delta=0.09)`` or ``typical(p=0.9)``
    """

    def __init__(
        self,
        env: Env,
        p: Annotated[float, "mass of the locally typical set; 0 uses epsilon and delta instead"] = 0.0,
        epsilon: Annotated[float, "a proposal this likely is always accepted"] = 0.3,
        delta: Annotated[float, "sufficient share of exp(-entropy)"] = 0.09,
    ) -> None:
        if not (0 <= p <= 1 and 0 < epsilon <= 1 and delta > 0):
            raise SpecdecError(
                f"typical was given p={p}, epsilon={epsilon}, delta={delta}; expected p from 0 to 1, epsilon above "
                "0 and at most 1, delta above 0"
            )
        self._mass, self._epsilon, self._delta = p, epsilon, delta

    def good(self, distribution: Tensor, window: Window) -> Tensor:
        """Typical enough, by either rule."""
        entropy: Tensor = torch.special.entr(distribution).sum(dim=2)
        mine = probability(distribution, window)
        if not self._mass:
            least = (self._delta * torch.exp(-entropy)).clamp(max=self._epsilon)
            return mine > least
        strange = (-distribution.log() - entropy[:, :, None]).abs()
        own = strange.gather(2, window.tokens[:, :, None])
        before = (distribution * (strange < own)).sum(dim=2)
        return (before < self._mass) & (mine > 0)


@hookimpl
def specdec_register_policies(register: Callable[[str, PolicyFactory], None]) -> None:
    """Register ``typical``."""
    register("typical", Typical)
