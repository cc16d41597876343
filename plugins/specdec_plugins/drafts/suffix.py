"""suffix: proposes the tokens that followed the longest suffix seen before, in this text or in earlier texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from specdec import Request, SpecdecError, hookimpl
from specdec.interfaces import DraftFactory, Env
from specdec_plugins.automaton import Automaton
from specdec_plugins.lookup import History, Lookup


class Suffix(Lookup):
    """Matches the longest suffix of the text that occurred before; proposes the tokens that followed it most often.

    The text is indexed in a suffix automaton of linear size; with ``earlier`` one automaton indexes all requests of
    a run, so that later requests use earlier outputs. A proposal is at most ``factor`` times as long as the match and
    ends where its probability, by the counts of the tokens that followed, falls below ``least``.

    Source: SuffixDecoding, Oliaro et al. 2411.04975; the automaton, Blumer et al. 1985.

    Example: after 1 2 3 9 1 2 4 8 1 2 3 7 1 2 the proposal begins with 3, which followed 1 2 twice, 4 once.
    """

    def __init__(
        self,
        env: Env,
        factor: Annotated[float, "proposals for each token of the match"] = 2.0,
        least: Annotated[float, "smallest probability, by counts, that a proposal may have"] = 0.3,
        min_match: Annotated[int, "shortest match that is used"] = 2,
        earlier: Annotated[bool, "learn from the run's earlier requests too"] = True,
        branches: Annotated[int, "continuations proposed; more than 1 makes a tree"] = 1,
    ) -> None:
        if not (factor > 0 and 0 <= least <= 1 and min_match >= 1 and branches >= 1):
            raise SpecdecError(
                f"suffix was given factor={factor}, least={least}, min_match={min_match}, branches={branches}; "
                "expected factor above 0, least from 0 to 1, min_match and branches 1 or more"
            )
        super().__init__(branches)
        self._factor, self._least, self._min_match, self.learns = factor, least, min_match, earlier
        self._shared = Automaton()
        self._rows: dict[int, tuple[Automaton, int, int]] = {}  # automaton, state, tokens fed
        self._fed = 0
        self._match: tuple[int, list[float]] = 0, []

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Index the prompt."""
        super().admit(row, request, prompt)
        self._rows[row] = (self._shared if self.learns else Automaton()), Automaton.ROOT, 0
        self._feed(row, prompt)

    def release(self, row: int, tokens: tuple[int, ...]) -> None:
        """Index the rest of the output."""
        self._feed(row, tokens)
        del self._rows[row]

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the automaton's state with the request."""
        super().move(source, row, request, tokens)
        self._rows[row] = self._rows.pop(source)

    def forget(self) -> None:
        """Start with a new, empty automaton."""
        super().forget()
        self._shared = Automaton()

    def info(self) -> Mapping[str, int]:
        """How many tokens were indexed."""
        return {"suffix_indexed_tokens": self._fed}

    def continuations(self, row: int, history: History, limit: int) -> list[list[int]]:
        """The likeliest path after the longest match, then paths that begin with another token."""
        self._feed(row, history)
        automaton, state, _ = self._rows[row]
        match = automaton.longest(state)
        length = automaton.length[match]
        if length < self._min_match:
            return []
        limit = min(limit, max(1, int(self._factor * length)))
        firsts = self._likeliest(automaton, match, self.most)
        paths = [path for first in firsts if (path := self._path(automaton, match, first, limit))]
        self._match = length, [share for _, share in paths[0]] if paths else []
        return [[token for token, _ in path] for path in paths]

    def match(self, row: int, history: History) -> tuple[int, Sequence[float]]:
        """The longest suffix that occurred before, and the shares by the counts of what followed."""
        return self._match

    def _feed(self, row: int, tokens: History | tuple[int, ...]) -> None:
        automaton, state, known = self._rows[row]
        for token in tokens[known:]:
            state = automaton.extend(state, int(token))
        self._fed += len(tokens) - known
        self._rows[row] = automaton, state, len(tokens)

    def _likeliest(self, automaton: Automaton, state: int, most: int) -> list[tuple[int, float]]:
        """The ``most`` most frequent tokens after a state, and their shares; among equals the first seen."""
        after, count = automaton.after[state], automaton.count
        if len(after) == 1:
            return [(next(iter(after)), 1.0)]
        total = sum(count[follower] for follower in after.values())
        # States near the root may have no counts (see REACH); then all followers get the same share.
        ranked = sorted(after.items(), key=lambda pair: -count[pair[1]])[:most]
        return [(token, count[follower] / total if total else 1 / len(after)) for token, follower in ranked]

    def _path(self, automaton: Automaton, state: int, first: tuple[int, float], limit: int) -> list[tuple[int, float]]:
        """Tokens and their shares of what followed."""
        path: list[tuple[int, float]] = []
        token, share = first
        likely = share
        while likely >= self._least:
            path.append((token, share))
            state = automaton.after[state][token]
            if len(path) == limit or not automaton.after[state]:
                break
            [(token, share)] = self._likeliest(automaton, state, 1)
            likely *= share
        return path


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory], None]) -> None:
    """Register ``suffix``."""
    register("suffix", Suffix)
