"""The groups from which mutants are drawn: all code that ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ENGINE = (
    *("acceptance", "arena", "beam", "engine", "exact", "forwards", "ledger", "logprobs", "messages"),
    *("model", "processors", "queue", "recurrent", "request", "rows", "runtime", "sampling", "states", "stats"),
    *("stops", "text"),
)
FIGURES = (
    *(f"measure/{name}" for name in ("cells", "guards", "interval", "measured", "parts", "results", "verdict")),
    *(f"judge/{name}" for name in ("agreement", "favour", "fidelity", "transforms")),
)

GROUPS: dict[str, tuple[str, ...]] = {
    "engine": tuple(f"specdec/{name}.py" for name in ENGINE),
    "specdec": ("specdec/*.py",),
    "policies": ("plugins/specdec_plugins/policies/*.py", "plugins/specdec_plugins/lenient.py"),
    "controllers": ("plugins/specdec_plugins/controllers/*.py", "plugins/specdec_plugins/forecast.py"),
    "peers": tuple(f"plugins/specdec_plugins/{name}" for name in ("engines/*.py", "endpoints/*.py", "for_vllm.py")),
    "drafts": tuple(
        f"plugins/specdec_plugins/{name}" for name in ("*.py", "drafts/*.py", "heads/*.py", "published/*.py")
    ),
    "kernels": ("kernels/specdec_kernels/*.py",),
    "cuda": ("kernels/specdec_kernels/csrc/*.cu", "kernels/specdec_kernels/csrc/*_cuda.h"),
    "c++": ("kernels/specdec_kernels/csrc/*.cpp", "kernels/specdec_kernels/csrc/*.h"),
    "figures": tuple(f"benchsuite/{name}.py" for name in FIGURES),
    "ties": tuple(f"benchsuite/judge/{name}.py" for name in ("ties", "logprob_ties")),
    "kit": ("benchsuite/conformance/*.py", "benchsuite/conformance/*/*.py", "benchsuite/doctor/*.py"),
    "gate": ("benchsuite/gate/*.py", "benchsuite/report/findings.py", "benchsuite/report/exports.py"),
    "measure": ("benchsuite/measure/*.py", "benchsuite/measure/workloads/*.py", "benchsuite/judge/*.py"),
    "conversations": ("benchsuite/measure/conversations/*.py", "benchsuite/benches/conversations/*.py"),
    "run": ("benchsuite/run/*.py", "benchsuite/*.py"),
    "predict": ("benchsuite/predict/*.py",),
    "report": ("benchsuite/report/*.py",),
    "serving": ("benchsuite/benches/serving/*.py", "benchsuite/benches/*.py", "benchsuite/engines/*.py"),
    "decoding": ("benchsuite/benches/decoding/*.py",),
    "load": ("benchsuite/benches/load/*.py",),
    "timing": ("benchsuite/benches/kernels/*.py",),
    "kept": tuple(f"benchsuite/{room}/*.py" for room in ("store", "machine", "compare", "foreign")),
}
"""Names of groups and patterns of their files; a file belongs to the first group that has it."""


ROOMS: dict[str, tuple[str, ...]] = {
    "specdec": ("engine", "specdec"),
    "plugins": ("policies", "controllers", "peers", "drafts"),
    "kernels": ("kernels", "cuda", "c++"),
    "measure, judge": ("figures", "ties", "measure"),
    "conformance": ("kit",),
    "gate": ("gate",),
    "run": ("run",),
    "predict": ("predict",),
    "report": ("report",),
    "benches": ("serving", "decoding", "load", "conversations", "timing"),
    "store, machine, compare, foreign": ("kept",),
}
"""The folders of the project, and the groups of each: what is drawn evenly from groups is counted by room as well."""


def group_of(file: str) -> str | None:
    """Return the name of a file's group, None if nothing in it is mutated. ``file`` is relative to the checkout."""
    path = Path("/", file)  # a relative pattern would match from the right: benchsuite/tests/specdec/ as well
    return next((name for name, found in GROUPS.items() if any(path.match(f"/{pattern}") for pattern in found)), None)


def grouped(files: Sequence[str], wanted: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the files of every group, sorted; of those ``wanted`` alone, by names of groups or patterns of files.

    Raises ValueError if something wanted is neither.
    """
    found: dict[str, list[str]] = {}
    unused = set(wanted)
    for file in sorted(files):
        if (group := group_of(file)) is None:
            continue
        asked = {name for name in wanted if name == group or Path(file).match(name)}
        unused -= asked
        if asked or not wanted:
            found.setdefault(group, []).append(file)
    if unused:
        raise ValueError(f"got {sorted(unused)}, expected files or groups of {', '.join(GROUPS)}")
    return {group: found[group] for group in GROUPS if group in found}
