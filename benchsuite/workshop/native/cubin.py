"""What compiled kernels take of a GPU, read from the machine code, and what each GPU has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from specdec_kernels.build import BuildError

CHIPS = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Compute capabilities (90 for 9.0), and the bytes of shared memory that a block may have there.

Source: CUDA C++ Programming Guide 13, "Technical Specifications per Compute Capability", the line "Maximum amount of
shared memory per thread block".
"""

RESERVED = 1 << 10
"""Bytes that the system takes of a block's shared memory from 9.0 on, beside those; cuobjdump counts them."""

_LINES = re.compile(
    r"arch = sm_(?P<chip>\d+)|"
    r"Function (?P<name>\S+):\s+"
    r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)"
)


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of a thread, bytes of a thread's stack and local memory, of a block's shared.

    Registers that do not fit are spilled to the stack. ``shared`` leaves out what a launch adds.
    """

    chip: int
    name: str
    registers: int
    stack: int
    shared: int
    local: int

    def faults(self, added: int = 0) -> list[str]:
        """Return what is too much, with ``added`` bytes of shared memory at the launch; empty if the kernel fits."""
        found = []
        if self.stack or self.local:
            found.append(f"{self.stack} bytes of stack and {self.local} of local memory: its registers spill")
        if self.shared + added > CHIPS[self.chip]:
            found.append(f"{self.shared + added} bytes of shared memory; sm_{self.chip} has {CHIPS[self.chip]} a block")
        return found


@cache
def cuobjdump() -> str:
    """Return the path of the program that comes with Triton; raises BuildError without it."""
    found = find_spec("triton")
    places = found.submodule_search_locations if found else None
    path = Path(next(iter(places or [""])), "backends", "nvidia", "bin", "cuobjdump")
    if not path.exists():
        raise BuildError("machine code is read by Triton's cuobjdump; pip install 'specdec-bench[triton]'")
    return str(path)


def resources(path: Path, chip: int = 0) -> Sequence[Resources]:
    """Return what every kernel in a file of machine code takes; raises BuildError if it cannot be read.

    ``chip`` is that of a file which holds the code of one and does not name it, as Triton's do.

    Example: ``resources(Path("kernels.so"))``, of a library that nvcc made
    """
    done = subprocess.run([cuobjdump(), "-res-usage", str(path)], capture_output=True, text=True, check=False)
    found = []
    for match in _LINES.finditer(done.stdout):
        if match["chip"]:
            chip = int(match["chip"])
        else:
            numbers = {name: int(match[name]) for name in ("registers", "stack", "shared", "local")}
            if chip >= 90 and numbers["shared"]:
                numbers["shared"] -= RESERVED
            found.append(Resources(chip, match["name"], **numbers))
    if done.returncode or not found:
        raise BuildError(f"{path} shows no kernels to cuobjdump: {done.stderr.strip() or done.stdout.strip()}")
    return found
