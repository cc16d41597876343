"""Chronicles, read sentence by sentence: every number follows from what was told, and all that may happen does."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest

from benchsuite.measure.workloads import PROMPTS, load_workload
from benchsuite.measure.workloads.chronicle import (
    GOODS,
    MONTHS,
    PEOPLE,
    PORTS,
    SHIPS,
    TRADES,
    WEATHER,
    WORKS,
    chronicle,
)

NAMES = {
    "ship": SHIPS,
    "good": GOODS,
    "port": PORTS,
    "who": PEOPLE,
    "other": PEOPLE,
    "work": WORKS,
    "trade": TRADES,
    "past": TRADES,
}
SENTENCES = {
    "arrival": (
        "The SHIP came in from PORT with N barrels of GOOD",
        "From PORT the SHIP brought N barrels of GOOD, which WHO counted twice",
        "At dusk the SHIP made fast with N barrels of GOOD; she had left PORT in poor weather",
        "WHO saw the SHIP first, on her way from PORT with N barrels of GOOD",
    ),
    "departure": tuple(
        f"{text} {rest}"
        for text in (
            "The SHIP sailed for PORT",
            "Bound for PORT, the SHIP left on the morning tide",
            "The master of the SHIP would not wait any longer and set out for PORT",
        )
        for rest in ("with N barrels of GOOD unsold", "with empty holds")
    ),
    "sale": (
        "WHO bought N barrels of GOOD from the SHIP for PAID crowns",
        "For PAID crowns N barrels of GOOD went from the SHIP into the cellar of WHO",
        "WHO, the TRADE, took N barrels of GOOD off the SHIP for PAID crowns",
        "Of the GOOD on the SHIP, N barrels were sold to WHO; LEFT stayed on board",
    ),
    "price": (
        "Nobody asked for GOOD, and a barrel stayed at NOW crowns",
        "The price of GOOD (?P<way>rose|fell) from WAS to NOW crowns a barrel",
        "A barrel of GOOD, which had cost WAS crowns, now cost NOW",
        "In the hall GOOD was offered for NOW crowns instead of WAS, and WHO complained",
    ),
    "loan": (
        r"OTHER lent WHO N crowns, so that \w+ owed TOTAL in all",
        "WHO borrowed N crowns from OTHER and signed for TOTAL",
        "With N crowns from OTHER, WHO paid for a winter's wood and owed TOTAL in all",
    ),
    "payment": (
        "WHO paid OTHER the last N crowns and tore up the paper",
        "WHO gave OTHER N crowns back and still owed LEFT",
        "Of the TOTAL crowns that WHO owed, OTHER received N",
    ),
    "work": (
        "A flood damaged WORK, just finished, and left NOW parts in a hundred standing",
        "WHO drove in the last nail, and WORK was finished",
        "Under WHO, the work on WORK went from WAS to NOW parts in a hundred",
        "WHO reported that NOW of a hundred parts of WORK were done",
        "Nineteen people worked on WORK; at NOW parts in a hundred it was ahead of the plan",
        "Too few hands came to WORK, and WHO left it at NOW parts in a hundred",
    ),
    "trade": (
        "WHO and OTHER, both of them TRADEs, agreed to share a workshop",
        "WHO gave up the work of a PAST and was taught by OTHER to be a TRADE",
    ),
}


def pattern_of(text: str) -> re.Pattern[str]:
    """A sentence whose words in capitals are names and numbers."""
    for key, names in NAMES.items():
        text = text.replace(key.upper(), f"(?P<{key}>{'|'.join(names)})", 1)
    for key in ("N", "PAID", "LEFT", "NOW", "WAS", "TOTAL"):
        text = re.sub(rf"\b{key}\b", rf"(?P<{key.lower()}>\\d+)", text)
    return re.compile(text)


PATTERNS = [
    (kind, number, pattern_of(text)) for kind, chronicles in SENTENCES.items() for number, text in enumerate(chronicles)
]


class ChronicleReader:
    """Reads chronicles; ``seen`` has every number that was drawn, by what it is. What was not told yet is unknown."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.told: Counter[tuple[str, int]] = Counter()

    def begin(self) -> None:
        """Of a new town nothing is known but that no ship is there, nothing is owed and no work was begun."""
        self.docked: dict[str, tuple[str, int]] = {}
        self.debts: dict[tuple[str, str], int] = {}
        self.works = dict.fromkeys(WORKS, 0)
        self.prices: dict[str, int | None] = dict.fromkeys(GOODS)
        self.first: dict[str, int] = {}
        self.touched: set[str] = set()
        self.trades: dict[str, str] = {}

    def read(self, sentence: str) -> None:
        """Read a sentence, and hold it against all that was read before."""
        found = [(kind, number, match) for kind, number, p in PATTERNS if (match := p.fullmatch(sentence))]
        assert len(found) == 1, sentence
        [(kind, number, match)] = found
        self.told[kind, number] += 1
        words = match.groupdict()
        numbers = {name: int(value) for name, value in words.items() if value and value.isdigit()}
        reader: Callable[[dict[str, str], dict[str, int]], None] = getattr(self, kind)
        reader(words, numbers)

    def arrival(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It was away."""
        assert words["ship"] not in self.docked
        self.docked[words["ship"]] = words["good"], numbers["n"]
        self.seen["load"].append(numbers["n"])

    def departure(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It leaves with what is left."""
        good, load = self.docked.pop(words["ship"])
        assert (words.get("good") or good, numbers.get("n", 0)) == (good, load)

    def sale(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It is of the cargo, and the price falls a little or not."""
        ship, taken = words["ship"], numbers["n"]
        good, load = self.docked[ship]
        assert (words["good"], 1 <= taken <= load) == (good, True)
        assert numbers.get("left", load - taken) == load - taken
        self.docked[ship] = good, load - taken
        self.seen["left"].append(load - taken)
        if words.get("trade"):
            assert self.trades.setdefault(words["who"], words["trade"]) == words["trade"]
        before, self.prices[good] = self.prices[good], None
        self.touched.add(good)
        if "paid" in numbers:
            price, rest = divmod(numbers["paid"], taken)
            assert rest == 0
            self.prices[good] = price
            if before is not None and price > 2:
                self.seen["fall"].append(before - price)

    def price(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It was what is told; below two it never falls."""
        good, was, now = words["good"], numbers.get("was"), numbers["now"]
        known = self.prices[good]
        if was is None:
            assert (known or now, now) == (2, 2), "what stays is at its least"
        else:
            assert (known or was, was != now) == (was, True)
            assert words.get("way") in (None, "rose" if now > was else "fell")
            if now > 2:
                self.seen["step"].append(now - was)
            if good not in self.touched:
                self.first[good] = was
                self.seen["first"].append(was)
        self.touched.add(good)
        self.prices[good] = now
        self.seen["price"].append(now)

    def loan(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It is added to what was owed."""
        pair = words["who"], words["other"]
        assert pair[0] != pair[1]
        self.debts[pair] = self.debts.get(pair, 0) + numbers["n"]
        assert self.debts[pair] == numbers["total"]
        self.seen["loan"].append(numbers["n"])

    def payment(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It is of what was owed."""
        pair = words["who"], words["other"]
        owed = self.debts.pop(pair)
        left = owed - numbers["n"]
        assert numbers["n"] >= 1
        self.seen["paid"].append(numbers["n"])
        assert (numbers.get("total", owed), numbers.get("left", left)) == (owed, left)
        assert (left == 0) == ("left" not in numbers and "total" not in numbers)
        if left:
            self.debts[pair] = left

    def work(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """It goes on from where it was, and what is finished is flooded."""
        share, now = self.works[words["work"]], numbers.get("now", 100)
        flood = not words.get("who") and share == 100
        assert numbers.get("was", share) == share
        assert flood or now > share
        self.seen["flood" if flood else "last" if now == 100 else "progress"].append(now if flood else now - share)
        self.works[words["work"]] = now

    def trade(self, words: dict[str, str], numbers: dict[str, int]) -> None:
        """The pupil has the teacher's trade afterwards."""
        pupil, teacher, trade = words["who"], words["other"], words["trade"]
        assert pupil != teacher
        assert self.trades.get(teacher, trade) == trade
        assert self.trades.get(pupil, words.get("past", trade)) == words.get("past", trade)
        assert words.get("past") != trade
        self.trades |= {pupil: trade, teacher: trade}


@pytest.fixture
def chronicles() -> tuple[str, ...]:
    """Ten chronicles."""
    return load_workload("long_8k").prompts


def sentences_of(day: str) -> list[str]:
    """What was told of a day, without its date and its weather."""
    return [sentence.rstrip(".") for sentence in day.split(". ")[2:]]


def test_every_sentence_follows_from_those_before_it_and_everything_happens_in_its_bounds(
    chronicles: tuple[str, ...],
) -> None:
    reader, days = ChronicleReader(), list[int]()
    for seed, text in enumerate(chronicles):
        reader.begin()
        head, *told, asked = text.split("\n\n")
        assert head == "Read the chronicle of a harbour town and answer the question below it."
        for day in told:
            sentences = sentences_of(day)
            days.append(len(sentences))
            for sentence in sentences:
                reader.read(sentence)
        begun = re.search(r"barrel of (\w+) cost at the end of the chronicle, after (\d+) crowns", asked)
        assert bool(begun) == (seed % 5 == 0)
        if begun and begun[1] in reader.first:
            assert reader.first[begun[1]] == int(begun[2])
    bounds = {name: (min(found), max(found)) for name, found in reader.seen.items()}
    expected = {"load": (5, 90), "loan": (5, 120), "progress": (3, 25), "fall": (0, 3)}
    assert {name: bounds[name] for name in expected} == expected
    assert (bounds["left"][0], bounds["paid"][0], bounds["price"][0]) == (0, 1, 2)
    assert 30 <= bounds["flood"][0] < 35 < 73 < bounds["flood"][1] <= 80
    assert 8 <= bounds["first"][0] < 12 < 56 < bounds["first"][1] <= 60
    assert set(reader.seen["step"]) == {-9, -6, -4, -2, 2, 3, 5, 8, 11}
    assert max(reader.seen["last"]) <= 25
    assert (min(days), max(days)) == (3, 6)
    assert {(kind, number) for kind, number, _ in PATTERNS} == set(reader.told), "every sentence is told once"


def test_kinds_of_events_are_as_frequent_as_they_should_be(chronicles: tuple[str, ...]) -> None:
    """What cannot happen gives way to its opposite: no ship is away, nothing is owed, no cargo is there."""
    found: Counter[str] = Counter()
    for text in (*chronicles, *load_workload("long_2k").prompts):
        told = " ".join(text.split("\n\n")[1:-1])
        for sentence in re.split(r"\. ", told):
            found.update(kind for kind, _, pattern in PATTERNS if pattern.fullmatch(sentence.rstrip(".")))
    shares = {("arrival", "departure"): 5, ("sale", "price"): 7, ("loan", "payment"): 4, ("work",): 2, ("trade",): 1}
    for kinds, of_19 in shares.items():
        share = sum(found[kind] for kind in kinds) / found.total()
        assert share == pytest.approx(of_19 / 19, rel=0.08 if of_19 > 2 else 0.15)


def test_days_are_six_a_month_in_order_each_with_its_weather(chronicles: tuple[str, ...]) -> None:
    dates, every = set[int](), set[str]()
    for text in chronicles:
        days = [re.match(r"(\w+) (\d+), (\d+)\. ([^.]+\.) ", day) for day in text.split("\n\n")[1:-1]]
        told = [(int(day[3]), MONTHS.index(day[1]), int(day[2])) for day in days if day]
        assert len(told) == len(days)
        assert all(before < after for before, after in pairwise(told))
        months = list(Counter((year, month) for year, month, _ in told).items())
        assert {count for _, count in months[:-1]} == {6}
        assert [12 * year + month for (year, month), _ in months] == list(
            range(12 * told[0][0], 12 * told[0][0] + len(months))
        )
        assert 1701 <= told[0][0] <= 1790
        dates.update(date for _, _, date in told)
        every.update(day[4] for day in days if day)
    assert dates == set(range(1, 29))
    assert every == set(WEATHER)


def test_no_word_of_a_chronicle_is_in_capitals(chronicles: tuple[str, ...]) -> None:
    for text in chronicles:
        assert not re.search(r"[A-Z]{2}", text)
        assert re.search(r"answer the question below it\.\n\n[A-Z]", text)
    names = [*PEOPLE, *TRADES, *SHIPS, *GOODS, *PORTS, *WORKS]
    assert [name for name in names if not any(name in text for text in chronicles)] == []


def test_a_chronicle_ends_with_the_day_that_has_the_last_word_asked_for() -> None:
    for words in (60, 61, 400):
        days = chronicle(words, 3).split("\n\n")[1:-1]
        assert sum(len(day.split()) for day in days[:-1]) < words <= sum(len(day.split()) for day in days)
    assert chronicle(60, 3) == chronicle(60, 3) != chronicle(60, 4)
    exact = sum(len(day.split()) for day in days)
    assert chronicle(exact, 3).split("\n\n")[1:-1] == days


def test_five_questions_are_asked_in_turn() -> None:
    asked = [chronicle(30, seed).split("\n\n")[-1] for seed in range(PROMPTS)]
    kinds = [re.sub(r"barrel of \w+|\d+|about [\w ]+\?", "", text) for text in asked]
    assert len(set(kinds[:5])) == 5
    assert kinds[:5] == kinds[5:]
    assert all(text.startswith("Question: ") for text in asked)
