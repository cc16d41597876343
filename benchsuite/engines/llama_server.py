"""llama.cpp's own server, from the wheel xllamacpp. The environment's Python runs this file, which needs nothing else.

Its argument is a JSON object: attributes of ``xllamacpp.CommonParams`` by their dotted names, each with its value.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from typing import Any


def set_dotted(params: Any, name: str, value: Any) -> None:
    """Set one attribute, for example ``speculative.draft.n_max``. SystemExit, with those that there are, if there is
    none of this name.

    Members of an enumeration are named as llama.cpp's command names them: ``ngram-simple``.
    """
    *above, last = name.split(".")
    for part in above:
        params = getattr(params, part, None)
    if not hasattr(params, last):
        here = ", ".join(one for one in dir(params) if not one.startswith("_"))
        raise SystemExit(f"llama.cpp has no parameter {name!r}; in its place there are: {here}")
    usual = getattr(params, last)
    if isinstance(usual, set):
        value = set(value)
    elif last == "types":
        value = [_member(type(usual[0]), text) for text in value]
    try:
        setattr(params, last, value)
    except (TypeError, ValueError, OverflowError) as error:
        said = f"llama.cpp's parameter {name} is {usual!r} by default; it does not take {value!r}: {error}"
        raise SystemExit(said) from None


def _member(kind: Any, text: str) -> Any:
    return next(one for one in kind if one.name.endswith(f"_TYPE_{text.replace('-', '_').upper()}"))


def serve_llama(settings: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    for name, value in json.loads(settings).items():
        set_dotted(params, name, value)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the server's threads are there: one of them would get it
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address}", flush=True)
    signal.sigwait(ends)
    del server  # ends its threads


if __name__ == "__main__":
    serve_llama(sys.argv[1])
