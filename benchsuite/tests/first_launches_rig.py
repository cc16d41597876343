"""A fault that is put into recordings, in a process in which Triton does not interpret.

``python -m benchsuite.tests.first_launches_rig`` prints in JSON which kernels are then first launched in a capture.
"""

from __future__ import annotations

import json
from unittest.mock import patch

import torch

from benchsuite.workshop.native.first_launches import first_launches
from specdec import SamplingParams, Window
from specdec.runtime import Recording
from specdec_plugins.drafts.garbage import Garbage


def own_window(self: Recording, window: Window) -> Window:
    """``Recording.hold`` whose first step runs over the draft's own window, and records over a copy of it."""
    if self._window is None:
        self._window = window.copied()
        self._kept[id(window)] = self._window
        return window
    self._window.copy_(window)
    return self._window


def strided(self: Window) -> Window:
    """The window with every token beside another number, as a slice of a wider tensor has them."""
    wide = torch.stack([self.tokens, self.tokens], dim=2)
    return Window(wide[:, :, 0], self.parents, self.width, self.q)


def plant_main() -> None:
    """Print what is found with a strided window alone, and with the fault too."""
    propose, params = Garbage.propose, SamplingParams(max_new_tokens=8)
    with patch.object(Garbage, "propose", lambda self, context: strided(propose(self, context))):
        sound = first_launches("garbage", "match", params, 1, torch.float32)
        with patch.object(Recording, "hold", own_window):
            planted = first_launches("garbage", "match", params, 1, torch.float32)
    print(json.dumps({"sound": sound, "planted": planted}))


if __name__ == "__main__":
    plant_main()
