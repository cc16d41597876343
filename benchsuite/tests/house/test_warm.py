"""A process that is forked with everything imported does what one does that starts by itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from benchsuite.tests.rig import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a fork after imports is safe on Linux alone"),
]

SHOWN = (
    "import os, sys; print(os.getcwd(), sys.argv, sys.path[0], os.environ['ASKED'], __name__, file=sys.stderr); "
    "print(os.environ.get('HOME'), 'torch' in sys.modules)"
)


def test_folder_arguments_path_and_variables_are_those_that_are_given(run: Run, tmp_path: Path) -> None:
    done = run("-c", SHOWN, "a", "b c", path=str(tmp_path / "site"), ASKED="yes")
    assert done.stderr == f"{tmp_path} ['-c', 'a', 'b c']  yes __main__\n"
    assert done.stdout == f"{os.environ.get('HOME')} True\n"
    (tmp_path / "shown.py").write_text(SHOWN)
    done = run("-m", "shown", "a", ASKED="no")
    assert done.stderr == f"{tmp_path} ['{tmp_path}/shown.py', 'a'] {tmp_path} no __main__\n"


@pytest.mark.parametrize(
    ("code", "returned", "said"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os._exit(7)", 7, ""),
        ("import atexit, sys; atexit.register(print, 'last', file=sys.stderr)", 0, "last\n"),
        (
            "import threading; threading.Thread(target=lambda: exec('import sys; sys.stderr.write(str(2))')).start()",
            0,
            "2",
        ),
    ],
)
def test_it_ends_as_an_interpreter_of_its_own_ends(code: str, returned: int, said: str, run: Run, cold: Run) -> None:
    for python in (run, cold):
        done = python("-c", code)
        assert done.returncode == returned
        assert done.stderr.endswith(said)
        assert bool(done.stderr) == bool(said)


def test_nothing_of_one_process_is_left_for_the_next(run: Run, tmp_path: Path) -> None:
    run("-c", "import os, sys, specdec; os.environ['LEFT'] = sys.left = specdec.left = '1'; os.chdir('/')")
    left = "hasattr(sys, 'left'), hasattr(specdec, 'left'), 'LEFT' in os.environ"
    done = run("-c", f"import os, sys, specdec; print(os.getcwd(), {left})")
    assert done.stdout == f"{tmp_path} False False False\n"


def test_what_must_import_by_itself_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match=r"got -c with another \['OMP_NUM_THREADS'\]; expected -m or -c"):
        run("-c", "pass", OMP_NUM_THREADS="3")
    with pytest.raises(ValueError, match="got script.py with another"):
        run("script.py")
