"""Sampled texts that were timed, read under the lists of the judge of certified ones.

Two samples differ, so a timed text is not compared with a certified one: its tokens must follow the distribution that
the certified ones must follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, log

from benchsuite.benches.serving.asked import Read
from benchsuite.benches.serving.timed_texts import TimedText
from benchsuite.judge.fidelity import FALSE_ALARM
from benchsuite.judge.transforms import FALSE_ALARM_OF_RATIOS, read_tokens
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Reply


@dataclass(frozen=True)
class TimedSamples:
    """How many ``texts`` of different prompts were timed under ``loads``; ``read`` of them, as ``tokens``.

    ``even`` and ``ratios``: p-values of the transforms and of the alternatives, each times the ways to leave out those
    that were not read. ``repeated``: texts that are certified ones to the letter, though these were drawn with another
    seed, and though that many of them have a probability below ``FALSE_ALARM``.
    """

    loads: tuple[str, ...] = ()
    texts: int = 0
    read: int = 0
    tokens: int = 0
    even: float = 1.0
    ratios: float = 1.0
    repeated: int = 0

    @property
    def wrong(self) -> bool:
        """Whether they do not follow the distribution, or were not drawn anew."""
        return self.even < FALSE_ALARM or self.ratios < FALSE_ALARM_OF_RATIOS or self.repeated > 0

    @property
    def unknown(self) -> bool:
        """Whether texts were timed and none could be read."""
        return self.texts > 0 and not self.read

    @property
    def text(self) -> str:
        """The numbers, and how the texts were asked for."""
        if not self.texts:
            return "no timed text was read"
        again = f"{self.repeated} are those of another seed; " if self.repeated else ""
        return (
            f"of {self.texts} timed texts ({', '.join(self.loads)}; streamed, without log-probabilities) {again}"
            f"{self.read} could be read: {self.tokens:,} tokens, transforms p={self.even:.2g}, alternatives "
            f"p={self.ratios:.2g}"
        )


def timed_samples(
    timed: Sequence[TimedText], asks: Sequence[Ask], certified: Mapping[int, Reply], reading: Read
) -> TimedSamples:
    """Read the first text of every prompt that was timed.

    ``asks`` and ``certified``: the requests and replies of the certificate, by the places of prompts. A text without
    token numbers is read as the tokens that it is split into, which need not be those that were drawn; where their
    number is known to differ it is left out. The p-values are multiplied by the number of ways to leave so many out.
    """
    first = {one.prompt: one for one in reversed(timed)}
    found = {n: reading(asks[n], one.reply) if one.reply.text else () for n, one in first.items()}
    read = {n: tokens for n, tokens in found.items() if tokens is not None}
    sample = read_tokens(list(read.values()))
    left = len(first) - len(read)
    least = log(FALSE_ALARM / len(first)) if first else 0.0
    repeated = [
        n
        for n, tokens in read.items()
        if n in certified
        and certified[n].text == first[n].reply.text
        and sum(token.logprob or 0.0 for token in tokens) < least
    ]
    return TimedSamples(
        tuple(dict.fromkeys(one.load for one in timed)),
        len(first),
        len(read),
        sample.tokens,
        *sample.p_values(comb(len(first), left)),
        len(repeated),
    )
