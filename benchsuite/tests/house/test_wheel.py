"""What users install: the product and the kit, without the project's own tests and tools."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_wheel_has_the_product_and_the_kit_alone(tmp_path: Path) -> None:
    built = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    rooms = {name.split("/")[1] for name in names if name.startswith("benchsuite/") and name.count("/") > 1}
    here = {path.name for path in (ROOT / "benchsuite").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms == here - {"tests", "workshop"}
    names_of_jobs = ("speculation", "kernels", "decoding", "load", "conversations", "serving")
    jobs = {f"benchsuite/test_{job}.py" for job in names_of_jobs}
    assert {name for name in names if Path(name).name.startswith(("test_", "conftest"))} == jobs
    files = {
        "benchsuite/report/templates/document.html.j2",
        "benchsuite/engines/engines.toml",
        "specdec_kernels/csrc/verify.cu",
    }
    assert files <= names
