"""specdec: speculative decoding as one loop, with drafts, policies, controllers and kernels as plugins."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec.assembly import Assembly
    from specdec.draft_counts import DraftCounts
    from specdec.engine import Engine, StreamedToken
    from specdec.errors import SpecdecError
    from specdec.hookspecs import hookimpl
    from specdec.interfaces import Backend, Controller, Draft, Env, Policy
    from specdec.messages import Context, Verdict, Window
    from specdec.model import ArenaModel
    from specdec.peer import Generation, Peer, PeerEnv
    from specdec.queue import Completion
    from specdec.registry import Registry
    from specdec.request import Request, SamplingParams
    from specdec.sampling import Purpose
    from specdec.text import TextStream

__all__ = [
    "ArenaModel",
    "Assembly",
    "Backend",
    "Completion",
    "Context",
    "Controller",
    "Draft",
    "DraftCounts",
    "Engine",
    "Env",
    "Generation",
    "Peer",
    "PeerEnv",
    "Policy",
    "Purpose",
    "Registry",
    "Request",
    "SamplingParams",
    "SpecdecError",
    "StreamedToken",
    "TextStream",
    "Verdict",
    "Window",
    "hookimpl",
]

_HOMES = {
    "assembly": "Assembly",
    "engine": "Engine StreamedToken",
    "queue": "Completion",
    "errors": "SpecdecError",
    "hookspecs": "hookimpl",
    "interfaces": "Backend Controller Draft Env Policy",
    "messages": "Context Verdict Window",
    "model": "ArenaModel",
    "draft_counts": "DraftCounts",
    "peer": "Generation Peer PeerEnv",
    "registry": "Registry",
    "request": "Request SamplingParams",
    "sampling": "Purpose",
    "text": "TextStream",
}


def __getattr__(name: str) -> object:
    # Imported when first asked for: torch and transformers take seconds, and --help needs neither.
    for module, names in _HOMES.items():
        if name in names.split():
            found: object = getattr(import_module(f"specdec.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'specdec' has no attribute {name!r}")
