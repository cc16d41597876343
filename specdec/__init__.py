"""specdec: speculative decoding as one loop, with drafts, policies, controllers and kernels as plugins."""

from specdec.engine import Completion, Engine
from specdec.errors import SpecdecError
from specdec.hookspecs import hookimpl
from specdec.interfaces import Backend, Controller, Draft, Env, Policy
from specdec.messages import Context, Verdict, Window
from specdec.registry import Registry
from specdec.request import Request, SamplingParams
from specdec.sampling import Purpose

__all__ = [
    "Backend",
    "Completion",
    "Context",
    "Controller",
    "Draft",
    "Engine",
    "Env",
    "Policy",
    "Purpose",
    "Registry",
    "Request",
    "SamplingParams",
    "SpecdecError",
    "Verdict",
    "Window",
    "hookimpl",
]
