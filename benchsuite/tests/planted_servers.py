"""A made-up language model behind a server, plain and with planted faults: each a class, named after what it does.

The log-probabilities after a text are drawn, by a seed that its prompt and its last words decide. Two servers of one
model therefore agree, up to ``rounding``: what another way of computing does to every logit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from benchsuite.tests.made_up_servers import MadeUpServer, made_up_reply
from specdec_plugins.endpoints.client import Ask
from specdec_plugins.endpoints.replies import Reply, Token

WORDS, LIKELY = 128, 8
"""The vocabulary, and how many words of it may follow a text; the others are as unlikely as in a language model."""

Ids = tuple[int, ...]


@lru_cache(maxsize=20_000)
def _logits(context: Ids) -> Any:
    seed = int.from_bytes(blake2b(repr(context).encode(), digest_size=8).digest())
    dice = np.random.default_rng(seed)
    logits = dice.standard_normal(WORDS)
    logits[dice.choice(WORDS, LIKELY, replace=False)] += dice.uniform(13, 20, LIKELY)
    return logits


def _log_softmax(logits: Any) -> Any:
    most = logits.max()
    return logits - most - np.log(np.exp(logits - most).sum())


class HonestServer(MadeUpServer):
    """Says words of the model, greedy or drawn at temperature 1; reads texts (``echo``).

    ``rounding``: the standard deviation of what each forward adds to each logit. ``seed``: of the rounding, of the
    draws, and of the faults of subclasses.
    """

    def __init__(self, seed: int = 0, rounding: float = 0.0) -> None:
        super().__init__(self._answered)
        self.dice, self.rounding = random.Random(seed), rounding
        self.noise = np.random.default_rng(seed)
        self.numbers: dict[str, int] = {}
        self.known: set[Ids] = set()

    def _ids(self, prompt: str | Sequence[int]) -> Ids:
        if not isinstance(prompt, str):
            return tuple(prompt)
        return tuple(self._number(word) for word in prompt.split())

    def _number(self, word: str) -> int:
        """A word of the model has its own number, and any other one behind these."""
        if word[:1] == "w" and word[1:].isdigit():
            return int(word[1:])
        return WORDS + int.from_bytes(blake2b(word.encode(), digest_size=4).digest())

    def logprobs(self, context: Ids) -> Any:
        """Log-probabilities of all words after a context, float64 [WORDS], as this forward rounds them."""
        logits = _logits((context[0], len(context), *context[-3:]))
        if self.rounding:
            logits = logits + self.noise.standard_normal(WORDS) * self.rounding
        return _log_softmax(logits)

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """The word at a place of an answer; ``draw`` is uniform. Faults are here."""
        return self.honest(ask, chances, draw)

    def honest(self, ask: Ask, chances: Any, draw: float) -> int:
        """The likeliest word, or the one that is drawn."""
        if not ask.temperature:
            return int(chances.argmax())
        return min(int(np.exp(chances).cumsum().searchsorted(draw)), WORDS - 1)

    def _token(self, number: int, chances: Any, name: str | None = None) -> Token:
        best = chances.argsort()[-5:][::-1]
        top = tuple((f" w{n}", float(chances[n])) for n in best)
        inside = 0 <= number < WORDS
        return Token(name or f" w{number}", number, float(chances[number]) if inside else -30.0, top)

    def _answered(self, ask: Ask) -> Reply:
        prompt = self._ids(ask.prompt)
        reply = self.reply(ask, prompt)
        self.known.add(prompt)
        return reply

    def reply(self, ask: Ask, prompt: Ids) -> Reply:
        """A whole answer."""
        if ask.echo:
            read = [Token(f" w{prompt[0]}", prompt[0])]
            read += [self._token(number, self.logprobs(prompt[:n])) for n, number in enumerate(prompt) if n]
            return made_up_reply(" ", [*read, self._token(0, self.logprobs(prompt))], 1)
        dice, context, tokens = random.Random(f"{ask.seed} {prompt} {self.dice.random()}"), prompt, []
        for place in range(ask.max_tokens):
            chances = self.logprobs(context)
            number = self.choose(ask, place, chances, dice.random())
            tokens.append(self._token(number, chances))
            context += (number,)
        text = "".join(token.text for token in tokens)
        return made_up_reply(text, tokens if ask.logprobs else (), len(tokens))


class ChangesSome(HonestServer):
    """One token in 100 is the second likeliest; when sampled, three are any: an index that is wrong now and then."""

    share = 0.01

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """The second likeliest word, or any, where the fault is there."""
        share = self.share * (3 if ask.temperature and self.share < 0.1 else 1)
        if self.wrong(ask, place) and self.dice.random() < share:
            return int(chances.argsort()[-2]) if not ask.temperature else self.dice.randrange(WORDS)
        return self.honest(ask, chances, draw)

    def wrong(self, ask: Ask, place: int) -> bool:
        """Whether the fault is there for a request, at a place of its answer."""
        return True


class WrongLate(ChangesSome):
    """Half of the tokens from the 33rd on are others: a cache that is too short."""

    share = 0.5

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return place >= 32


class WrongInABatch(ChangesSome):
    """A fifth of the tokens are others while another request is answered: rows of a batch are exchanged."""

    share = 0.2

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return self.now > 1


class WrongInAStream(ChangesSome):
    """A fifth of the tokens of streams are others."""

    share = 0.2

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return ask.stream


class WrongWithoutLogprobs(ChangesSome):
    """A fifth of the tokens are others where nobody asks for log-probabilities: another path of the code."""

    share = 0.2

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return not ask.logprobs


class WrongWhenCold(ChangesSome):
    """A fifth of the tokens of the first answer to a prompt are others: a draft that is not filled after a prefill."""

    share = 0.2

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return self._ids(ask.prompt) not in self.known


class Relaxed(HonestServer):
    """Takes the second likeliest token within half a nat, at 45 % of such places: relaxed acceptance."""

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """Perhaps the second likeliest word."""
        second, first = chances.argsort()[-2:]
        near = chances[first] - chances[second] <= 0.5
        return int(second) if near and self.dice.random() < 0.45 else self.honest(ask, chances, draw)


class LossyWhenSampled(HonestServer):
    """Greedy answers are right, and sampled ones have the likeliest token in place of a fifth of the drawn ones."""

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """Perhaps the likeliest word."""
        return int(chances.argmax()) if self.dice.random() < 0.2 else self.honest(ask, chances, draw)


class Hotter(HonestServer):
    """Samples at 1.2 times the temperature."""

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """A word of flatter chances."""
        return self.honest(ask, _log_softmax(chances / 1.2), draw)


class OwnDefaults(HonestServer):
    """Samples from a nucleus of 0.95, whatever is asked for."""

    def choose(self, ask: Ask, place: int, chances: Any, draw: float) -> int:
        """A word of the nucleus."""
        order = chances.argsort()[::-1]
        mass = np.exp(chances[order]).cumsum()
        kept = order[: int(mass.searchsorted(0.95)) + 1]
        inside = np.full(WORDS, -np.inf)
        inside[kept] = chances[kept]
        return self.honest(ask, _log_softmax(inside), draw)


class WrongUsage(HonestServer):
    """``usage`` counts twice in streams."""

    def reply(self, ask: Ask, prompt: Ids) -> Reply:
        """See the class."""
        reply = super().reply(ask, prompt)
        return made_up_reply(reply.text, reply.tokens, 2 * len(reply.text.split())) if ask.stream else reply


class KeepsAnswers(HonestServer):
    """Answers what it was asked before from a cache, in a hundredth of the time."""

    words = 99

    def __init__(self, seed: int = 0, rounding: float = 0.0) -> None:
        super().__init__(seed, rounding)
        self.kept: dict[tuple[Ids, int], list[Token]] = {}

    def reply(self, ask: Ask, prompt: Ids) -> Reply:
        """See the class."""
        if ask.echo:
            return super().reply(ask, prompt)
        name = prompt[-self.words :], ask.max_tokens
        seconds = 0.01 if name in self.kept else 1.0
        if name not in self.kept:
            whole = super().reply(Ask(ask.prompt, ask.max_tokens, ask.temperature, seed=ask.seed, logprobs=5), prompt)
            self.kept[name] = list(whole.tokens)
        tokens = self.kept[name]
        text = "".join(token.text for token in tokens)
        return made_up_reply(text, tokens if ask.logprobs else (), len(tokens), seconds=seconds)


class ConfusesAnswers(KeepsAnswers):
    """Keeps answers, and knows a prompt by its last four words alone."""

    words = 4


class WrongFromNine(ChangesSome):
    """A fifth of the tokens are others where a step has eight proposals, K, or more: a window of nine slots."""

    share = 0.2

    def __init__(self, seed: int = 0, rounding: float = 0.0, k: int = 8) -> None:
        super().__init__(seed, rounding)
        self.k = k

    def wrong(self, ask: Ask, place: int) -> bool:
        """See the class."""
        return self.k >= 8
