"""Processes of Python that import nothing, because they are forked from one that has imported all there is.

To import torch, transformers and our own code takes several times as long as the shortest main job takes for its work.
The file is also the script of the process that forks.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

MODULES = (
    *("torch._dynamo", "torch.profiler", "accelerate", "hypothesis.strategies", "jinja2", "safetensors.torch", "yaml"),
    *("transformers.generation.utils", "transformers.models.auto.modeling_auto", "transformers.models.llama"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.llama.modeling_llama"),
    *(
        "xml.etree.ElementTree",
        "_hypothesis_pytestplugin",
        "anyio.pytest_plugin",
        "pytest_benchmark.plugin",
        "pytest_cov.plugin",
    ),
    *("xdist.plugin", "_pytest.faulthandler", "_pytest.junitxml", "_pytest.pastebin", "_pytest.unittest", "pdb"),
    *("specdec.assembly", "benchsuite.plugin", "benchsuite.measure.session", "benchsuite.report.files"),
)
"""What is imported before the fork."""

OURS = ("benchsuite", "specdec", "specdec_kernels", "specdec_plugins")

REWRITTEN = (
    *("_hypothesis_globals", "_hypothesis_pytestplugin", "anyio", "benchsuite", "hypothesis"),
    *("pytest_benchmark", "pytest_cov", "specdec", "specdec_kernels", "specdec_plugins", "xdist"),
)
"""Packages of pytest plugins: pytest would warn that they come too late for it to rewrite their assertions."""

TRACED_INTO = "TRACED_INTO"
"""The variable that names a folder into which a fork writes the lines of our code that it ran, as JSON by file."""

READ_BEFORE = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TRITON_INTERPRET")
"""Variables that libraries read when they are imported: a process with another value must import them itself."""


def hurry() -> None:
    """Have the probes of the machine read little and look briefly, and the processor asked for its name once.

    No test asserts what they say of the machine. To ask the processor starts a process of Python.
    """
    import cpuinfo

    from benchsuite.machine import load, roofline

    roofline.PROBE_BYTES["cpu"], load.SECONDS = 2**22, 0.02
    cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)


class Warm:
    """A process that has imported ``MODULES`` and forks others, which run as ``python -m`` and ``python -c`` do.

    ``environment`` is what it is started with. It needs ``os.fork``. Example:
    ``Warm(os.environ).run(["-m", "pytest", "--version"], Path.cwd(), os.environ)``
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Return what ``subprocess.run([sys.executable, *arguments])`` returns, with its output as text.

        Raises ValueError if the process must import by itself, or if the process that forks has ended.
        """
        other = [name for name in READ_BEFORE if environment.get(name) != self._environment.get(name)]
        if arguments[0] not in ("-m", "-c") or other:
            raise ValueError(f"got {arguments[0]} with another {other}; expected -m or -c with the same: start it cold")
        assert self._server.stdin
        assert self._server.stdout
        with tempfile.TemporaryDirectory() as texts:
            out, err = Path(texts, "out"), Path(texts, "err")
            asked = [str(folder), str(out), str(err), dict(environment), list(arguments)]
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess([sys.executable, *arguments], code, out.read_text(), err.read_text())

    def close(self) -> None:
        """End the process that forks."""
        self._server.communicate()


def _asked() -> list[str]:
    """Fork for each line of stdin, and say on stdout how the fork ended; a fork returns the arguments for Python."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    paths = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGINT, interrupt)
            folder, out, err, environment, arguments = json.loads(line)
            given = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            sys.path[:] = [folder if arguments[0] == "-m" else "", *given, *paths]
            _become(folder, out, err, environment)
            return list(arguments)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    os._exit(0)


def _become(folder: str, out: str, err: str, environment: dict[str, str]) -> None:
    """Change to a folder and its variables, with output to two files."""
    for number, name, mode in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        os.dup2(os.open(name, mode | os.O_CREAT), number)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    importlib.invalidate_caches()


def _run(arguments: list[str]) -> None:
    """Run a module or a text as the main program."""
    how, what, *rest = arguments
    sys.argv = [what if how == "-m" else how, *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def _ended(arguments: list[str]) -> int:
    """Run to the end, as the interpreter does; return the exit code."""
    try:
        _run(arguments)
    except SystemExit as error:
        if isinstance(error.code, int | None):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _traced(arguments: list[str]) -> int:
    """Run to the end as ``_ended`` does; if ``TRACED_INTO`` is set, write which lines ran."""
    folder = os.environ.get(TRACED_INTO)
    if not folder:
        return _ended(arguments)
    import coverage

    found = coverage.Coverage(data_file=None, source_pkgs=list(OURS), config_file=False)
    found.start()
    try:
        return _ended(arguments)
    finally:
        found.stop()
        data = found.get_data()
        lines = {file: data.lines(file) for file in data.measured_files()}
        part = Path(folder, f"{os.getpid()}.part")
        part.write_text(json.dumps(lines))
        part.replace(part.with_suffix(".json"))  # whole, or not there: a test may kill this process


def _serve() -> None:
    """Import, and fork; a fork leaves without taking apart all that was imported, which would take a second."""
    for module in MODULES:
        importlib.import_module(module)
    importlib.import_module("specdec.registry").Registry()  # imports the plugins
    importlib.import_module("specdec.installed").registered_names()  # reads their sources
    hurry()
    importlib.import_module("cpuinfo").get_cpu_info()
    for package in REWRITTEN:
        sys.modules[package].__doc__ = "PYTEST_DONT_REWRITE"  # pytest's own word for it
    gc.collect()
    gc.freeze()  # or every collection of a fork would go through all of it, and copy it
    code = _traced(_asked())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
