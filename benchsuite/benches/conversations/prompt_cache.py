"""What a server says of its cache of prompts, and whether a warm prefix was warm and a cold one cold.

Sources: OpenAI API reference (``usage.prompt_tokens_details.cached_tokens``); ggml-org/llama.cpp,
tools/server/README.md (``timings.cache_n``: tokens of the prompt that were reused, ``timings.prompt_n``: those that
were read); sgl-project/sglang (``meta_info.cached_tokens``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import Any

from benchsuite.benches.conversations.progress import Prefix, ReplayedBlock
from benchsuite.benches.serving.speed import PairedLog, speed_of
from benchsuite.benches.serving.timed_answers import ttft_of
from benchsuite.measure.interval import Estimate
from specdec_plugins.endpoints.replies import Reply

SOONER = 1.1
"""How many times as soon the first token of a warm prefix must come for a server that names no cached token to be
said to have had some."""

MOSTLY = 0.5
"""The share of a prompt that must be said to be cached for its first token to be expected sooner."""


@dataclass(frozen=True)
class CachedPrompt:
    """How many tokens of a prompt a server says that it had in a cache: None if it says nothing, or ``wrong``, why its
    words cannot all be true."""

    tokens: int | None
    wrong: str = ""


def cached_prompt(reply: Reply) -> CachedPrompt:
    """Return what an answer says of its prompt's cache.

    Example: ``cached_prompt(reply).tokens`` is llama.cpp's ``cache_n``, which its ``usage`` says too.
    """
    timings, meta = (_object(reply.body.get(name)) for name in ("timings", "meta_info"))
    said = {
        "usage": reply.cached_tokens,
        "timings.cache_n": _whole(timings.get("cache_n")),
        "meta_info.cached_tokens": _whole(meta.get("cached_tokens")),
    }
    known = {name: count for name, count in said.items() if count is not None}
    words = ", ".join(f"{name} {count}" for name, count in known.items())
    read, prompt = _whole(timings.get("prompt_n")), reply.prompt_tokens
    if len(set(known.values())) > 1:
        return CachedPrompt(None, f"it names two numbers of cached tokens: {words}")
    if not known:
        return CachedPrompt(None)
    tokens = next(iter(known.values()))
    if prompt is not None and tokens > prompt:
        return CachedPrompt(None, f"{words} of a prompt of {prompt} tokens")
    if read is not None and prompt is not None and "timings.cache_n" in known and tokens + read != prompt:
        return CachedPrompt(None, f"{words} and timings.prompt_n {read} of a prompt of {prompt} tokens")
    return CachedPrompt(tokens)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True)
class PrefixFinding:
    """What is known of the prefixes of one row.

    ``refused``: why its cold figures are none: a prompt was served from a cache. ``lines``: what else is to be said.
    ``sooner``: how many times as soon the first token of later turns came with the warm prefix as with the cold one,
    over conversations; None where the cold one was none. ``cached``: the mean share of later turns' prompts that it
    says it had, warm; None: not said.
    """

    row: str
    refused: str
    lines: tuple[str, ...]
    sooner: Estimate | None
    cached: float | None


def prefix_finding(
    row: str, blocks: Sequence[ReplayedBlock], common: int | None, labels: Sequence[str]
) -> PrefixFinding:
    """Return what the answers of a row say of its prefixes.

    ``common``: the most tokens that two prompts with other nonces may share: those of a request that is nothing but a
    nonce; None: not known. ``labels``: the workload of each conversation, by its place.
    """
    mine = [block for block in blocks if block.row == row]
    lines, refused = list[str](), ""
    shares, named, later = list[float](), 0, 0
    for block in mine:
        for one in block.turns:
            reply = one.sent.reply
            if reply is None:
                continue
            said = cached_prompt(reply)
            if said.wrong and not lines:
                lines.append(f"{row}: what it says of its cache is not believed: {said.wrong}")
            if block.prefix is Prefix.COLD and common is not None and (said.tokens or 0) > common and not refused:
                refused = (
                    f"turn {one.turn + 1} of conversation {one.sent.prompt + 1} had {said.tokens} of "
                    f"{reply.prompt_tokens} prompt tokens from a cache, and at most {common} stand before its nonce: "
                    "no cold prefix, and no figure of one"
                )
            if block.prefix is Prefix.WARM and one.turn:
                later += 1
                named += said.tokens is not None
                shares += [] if said.tokens is None else [said.tokens / max(reply.prompt_tokens or 0, said.tokens, 1)]
    cached = fmean(shares) if shares else None
    if refused:
        return PrefixFinding(row, refused, tuple(lines), None, cached)
    sooner = _sooner(mine, labels)
    nothing = [block for block in mine if block.prefix is Prefix.WARM] and shares and not _reused(mine, common)
    if later and not named and not lines:
        lines.append(f"{row}: it says nothing of its cache: whether the warm prefix was in it, its first tokens tell")
    elif nothing:
        lines.append(f"{row}: it had nothing of the warm prefix in a cache: its warm turns are cold ones")
    lines += _contradictions(row, sooner, cached, bool(nothing))
    return PrefixFinding(row, refused, tuple(lines), sooner, cached)


def _reused(blocks: Sequence[ReplayedBlock], common: int | None) -> bool:
    """Whether a later turn of a warm conversation had more cached than what all requests share."""
    warm = [
        one for block in blocks if block.prefix is Prefix.WARM for one in block.turns if one.turn and one.sent.reply
    ]
    return any((cached_prompt(one.sent.reply).tokens or 0) > (common or 0) for one in warm if one.sent.reply)


def _contradictions(row: str, sooner: Estimate | None, cached: float | None, nothing: bool) -> list[str]:
    """Where first tokens say otherwise than the server, for certain."""
    if sooner is None or sooner.low is None or sooner.high is None:
        return []
    if nothing and sooner.low > SOONER:
        return [
            f"{row}: its warm first tokens came {sooner.ratio:.2f} times as soon all the same: it does not count all"
        ]
    if cached is not None and cached > MOSTLY and sooner.low <= 1:
        return [
            f"{row}: it says that {cached:.0%} of the warm prompts were cached, and their first tokens came no sooner "
            f"for certain ({sooner.ratio:.2f} times as soon, {sooner.low:.2f} to {sooner.high:.2f})"
        ]
    return []


def _sooner(blocks: Sequence[ReplayedBlock], labels: Sequence[str]) -> Estimate | None:
    """Cold over warm times to the first piece of later turns: a log for each conversation of a round, and its turns'
    mean in it."""
    times: dict[tuple[int, int, int], dict[tuple[Prefix, int], float]] = {}
    for block in blocks:
        for one in block.turns:
            reply = one.sent.reply
            first = ttft_of(reply) if reply and reply.attempts == 1 else None
            if one.turn and first:
                times.setdefault((block.round, block.group, one.sent.prompt), {})[block.prefix, one.turn] = first
    logs = []
    for (turn, group, place), found in times.items():
        numbers = [n for prefix, n in found if prefix is Prefix.WARM and (Prefix.COLD, n) in found]
        if numbers:
            mean = fmean(log(found[Prefix.COLD, n] / found[Prefix.WARM, n]) for n in numbers)
            logs.append(PairedLog(labels[place], place, group, turn, mean))
    return speed_of(logs)
