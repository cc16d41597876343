"""A suffix automaton over token ids that several texts can extend."""

from __future__ import annotations

REACH = 32
"""Largest number of suffixes of one position that are counted: it keeps a text of one repeated token linear."""


class Automaton:
    """Every substring of every text added to it, in at most two states for each token (Blumer et al. 1985).

    A text is added token by token: ``state = extend(state, token)``, from ``ROOT``. Several texts may grow at
    once. For state s, ``after[s]`` maps each token that followed the strings of s to the next state, ``count[s]`` is
    the number of their occurrences (longest strings first, see ``REACH``), ``length[s]`` the length of the longest
    string, and ``link[s]`` the state of its longest suffix that occurred in more places.

    Memory and time are linear in the text; ``steps`` counts the inner loops, for a test of that.
    """

    ROOT = 0

    def __init__(self) -> None:
        self.after: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.steps = 0

    def extend(self, state: int, token: int) -> int:
        """Append ``token`` to a text in ``state``; returns the new state of the text."""
        known = self.after[state].get(token)
        if known is None:
            made = self._state(self.length[state] + 1, {}, 0, 0)
            where = state
            while where >= 0 and token not in self.after[where]:
                self.after[where][token] = made
                where = self.link[where]
                self.steps += 1
            if where >= 0:
                self.link[made] = self._split(where, token)
        else:
            made = self._split(state, token)
        suffix = made
        for _ in range(REACH):
            if suffix <= self.ROOT:
                break
            self.count[suffix] += 1
            suffix = self.link[suffix]
        return made

    def longest(self, state: int) -> int:
        """The state of the longest suffix of the text in ``state`` that some token has followed."""
        while not self.after[state] and state > self.ROOT:
            state = self.link[state]
        return state

    def _split(self, state: int, token: int) -> int:
        """The state for ``token`` after exactly the longest string of ``state``, split off a larger state if needed."""
        follower = self.after[state][token]
        if self.length[follower] == self.length[state] + 1:
            return follower
        made = self._state(
            self.length[state] + 1, dict(self.after[follower]), self.link[follower], self.count[follower]
        )
        self.link[follower] = made
        while state >= 0 and self.after[state].get(token) == follower:
            self.after[state][token] = made
            state = self.link[state]
            self.steps += 1
        return made

    def _state(self, length: int, after: dict[int, int], link: int, count: int) -> int:
        self.after.append(after)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.length) - 1
