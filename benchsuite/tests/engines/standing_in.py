"""Stand-ins for an engine's environment, whose server knows its own health and has a process beside it, and for the
commands that make one."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchsuite.engines.environments import MARK
from benchsuite.engines.pins import EnginePins
from specdec import SpecdecError

SITE = Path("lib") / f"python3.{sys.version_info[1]}" / "site-packages"

SERVER = """#!{python} -S
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

os.set_inheritable(os.open({alive!r}, os.O_WRONLY), True)
port = int(sys.argv[sys.argv.index("--port") + 1])
subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], close_fds=False)
open({note!r}, "w").write(str(os.getpid()))
if "--broken" in sys.argv:
    sys.exit("no memory for the weights")

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{{}}")

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class StandInEnvironment:
    """The environment of ``engine`` in a folder of ``into``, set up, with a command ``vllm``.

    Its server starts another process, and both hold a pipe open: ``runs`` is whether one of the two is there, ``pid``
    the number of the server after a start.
    """

    def __init__(self, engine: EnginePins, into: Path) -> None:
        self.folder = into / engine.name
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / MARK).write_text(json.dumps({"digest": engine.digest, "whole": True}))
        alive, self._note = self.folder / "alive", self.folder / "pid"
        os.mkfifo(alive)
        self._pipe = os.fdopen(os.open(alive, os.O_RDONLY | os.O_NONBLOCK))
        script = self.folder / "bin" / "vllm"
        script.write_text(SERVER.format(python=sys.executable, note=str(self._note), alive=str(alive)))
        script.chmod(script.stat().st_mode | stat.S_IEXEC)

    @property
    def pid(self) -> int:
        """As above."""
        return int(self._note.read_text())

    def runs(self, patience_s: float = 0.0) -> bool:
        """Whether a process is left; the last one may take ``patience_s`` to end."""
        return not select.select([self._pipe], [], [], patience_s)[0]

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


@dataclass
class NotedCommands:
    """Runs nothing, and notes what it was to run and what was said; ``fails``: a word at which it fails instead."""

    fails: str = ""
    lines: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> str:
        """Note a command."""
        self.lines.append(" ".join(command))
        if self.fails and self.fails in command:
            raise SpecdecError(f"no matching distribution for {self.fails}")
        if "venv" in command:
            (Path(command[-1]) / SITE).mkdir(parents=True)
        return "4 passed in 1 s\n"
