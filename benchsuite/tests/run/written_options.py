"""A text for every option, as a user would write it."""

from __future__ import annotations

from benchsuite.options import OPTIONS

WRITTEN = {
    "arm": "ngram/match/fixed/2, fast=suffix",
    "adaptive-k": "8",
    "k": "2,4",
    "depth": "0,2k",
    "width": "1-3,8",
    "endpoint": "plain=http://localhost:1",
    "endpoint-start": "servers.yaml",
    "endpoint-api": "chat",
    "concurrency": "1,8",
    "rate": "0.5",
    "certify": "bfloat16",
    "slo": "ttft=0.5",
    "graphs": "off",
    "batch": "1,4",
    "temperature": "0,0.7",
    "top-k": "0,40",
    "top-p": "0.9",
    "min-p": "0.1",
    "presence-penalty": "-0.5",
    "frequency-penalty": "1.5",
    "repetition-penalty": "1.2",
    "max-new-tokens": "7",
    "seed": "3",
    "prompts": "2",
    "pairs": "5",
    "precision": "2%",
    "budget": "90s",
    "timeout": "0",
    "across": "dtype",
    "shard": "2/3",
    "detail": "rows",
    "predict": "cached",
    "results": "kept",
}
"""A text that is not the default, of every option that does not take any word."""


def written_text(name: str) -> str:
    """A text of an option that is not its default."""
    option = next(one for one in OPTIONS if one.name == name)
    return "true" if option.flag else WRITTEN.get(name, "something")
