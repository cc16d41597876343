"""Long texts by a rule: the chronicle of a harbour town, in which every sentence tells a change of a simulated state.

Nothing in it is filler: prices, debts, cargoes and works follow from what was told before, and the question at its end
is about them. The same seed and length make the same text. All sentences were written for this project.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PEOPLE = (
    *("Ada Brandt", "Oskar Lind", "Mira Falk", "Jonas Ek", "Selma Rye", "Tobias Holm", "Greta Voss", "Emil Sand"),
    *("Ines Moor", "Karl Beck", "Lotte Dahl", "Henrik Quist", "Vera Stahl", "Pavel Orm", "Nora Tell", "Simon Graf"),
)
TRADES = ("baker", "cooper", "ferryman", "smith", "weaver", "glazier", "teacher", "clerk", "carpenter", "midwife")
SHIPS = (
    "Heron",
    "Good Hope",
    "Marten",
    "Saint Olaf",
    "Northern Star",
    "Petrel",
    "Anne Marie",
    "Grey Goose",
    "Faithful",
)
GOODS = ("salt", "rye", "timber", "wool", "herring", "candles", "iron", "linen", "honey", "tar", "glass", "peat")
PORTS = ("Varby", "Lund", "Torsa", "Brenn", "Hallow Quay", "Ostrup", "Ombra", "Cape Orrin")
WORKS = ("the new quay", "the school roof", "the mill dam", "the church clock", "the eastern bridge", "the ferry house")
WEATHER = (
    *(
        "Fog lay on the water until noon.",
        "A dry wind came from the land.",
        "It rained without a pause.",
        "The sea was flat.",
    ),
    *(
        "Ice covered the inner harbour.",
        "The first warm day brought people into the streets.",
        "A gale shook the shutters.",
    ),
    *(
        "Hail broke two windows of the town hall.",
        "The night had been clear and cold.",
        "Snow fell in large wet flakes.",
    ),
)
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


@dataclass
class Town:
    """The state: what each person does, owes and has; prices in crowns; who lies in the harbour; how far works are."""

    coin: random.Random
    trades: dict[str, str] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    docked: dict[str, tuple[str, int]] = field(default_factory=dict)
    debts: dict[tuple[str, str], int] = field(default_factory=dict)
    works: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trades = {name: self.coin.choice(TRADES) for name in PEOPLE}
        self.prices = {good: self.coin.randint(8, 60) for good in GOODS}
        self.works = dict.fromkeys(WORKS, 0)

    def two(self) -> tuple[str, str]:
        """Two different people."""
        first, second = self.coin.sample(PEOPLE, 2)
        return first, second

    def arrival(self) -> str:
        """A ship that is away comes in with a cargo."""
        away = [ship for ship in SHIPS if ship not in self.docked]
        if not away:
            return self.departure()
        ship, good, port = (self.coin.choice(names) for names in (away, GOODS, PORTS))
        load, seen = self.coin.randint(5, 90), self.coin.choice(PEOPLE)
        self.docked[ship] = good, load
        return self.coin.choice(
            (
                f"The {ship} came in from {port} with {load} barrels of {good}.",
                f"From {port} the {ship} brought {load} barrels of {good}, which {seen} counted twice.",
                f"At dusk the {ship} made fast with {load} barrels of {good}; she had left {port} in poor weather.",
                f"{seen} saw the {ship} first, on her way from {port} with {load} barrels of {good}.",
            )
        )

    def departure(self) -> str:
        """A ship in the harbour sails; what is left of its cargo goes with it."""
        if not self.docked:
            return self.arrival()
        ship = self.coin.choice(sorted(self.docked))
        good, load = self.docked.pop(ship)
        port = self.coin.choice(PORTS)
        left = f"with {load} barrels of {good} unsold" if load else "with empty holds"
        return self.coin.choice(
            (
                f"The {ship} sailed for {port} {left}.",
                f"Bound for {port}, the {ship} left on the morning tide {left}.",
                f"The master of the {ship} would not wait any longer and set out for {port} {left}.",
            )
        )

    def sale(self) -> str:
        """Somebody buys from a cargo, which moves the price."""
        laden = sorted(ship for ship, (_, load) in self.docked.items() if load)
        if not laden:
            return self.price()
        ship, buyer = self.coin.choice(laden), self.coin.choice(PEOPLE)
        good, load = self.docked[ship]
        taken = self.coin.randint(1, load)
        self.docked[ship] = good, load - taken
        self.prices[good] = max(2, self.prices[good] - self.coin.randint(0, 3))
        paid = taken * self.prices[good]
        return self.coin.choice(
            (
                f"{buyer} bought {taken} barrels of {good} from the {ship} for {paid} crowns.",
                f"For {paid} crowns {taken} barrels of {good} went from the {ship} into the cellar of {buyer}.",
                f"{buyer}, the {self.trades[buyer]}, took {taken} barrels of {good} off the {ship} for {paid} crowns.",
                f"Of the {good} on the {ship}, {taken} barrels were sold to {buyer}; {load - taken} stayed on board.",
            )
        )

    def price(self) -> str:
        """A price rises or falls."""
        good, seen = self.coin.choice(GOODS), self.coin.choice(PEOPLE)
        before = self.prices[good]
        self.prices[good] = max(2, before + self.coin.choice((-9, -6, -4, -2, 2, 3, 5, 8, 11)))
        now = self.prices[good]
        if now == before:
            return f"Nobody asked for {good}, and a barrel stayed at {now} crowns."
        way = "rose" if now > before else "fell"
        return self.coin.choice(
            (
                f"The price of {good} {way} from {before} to {now} crowns a barrel.",
                f"A barrel of {good}, which had cost {before} crowns, now cost {now}.",
                f"In the hall {good} was offered for {now} crowns instead of {before}, and {seen} complained.",
            )
        )

    def loan(self) -> str:
        """Somebody lends money."""
        lender, debtor = self.two()
        amount = self.coin.randint(5, 120)
        self.debts[debtor, lender] = self.debts.get((debtor, lender), 0) + amount
        total = self.debts[debtor, lender]
        return self.coin.choice(
            (
                f"{lender} lent {debtor} {amount} crowns, so that {debtor.split()[0]} owed {total} in all.",
                f"{debtor} borrowed {amount} crowns from {lender} and signed for {total}.",
                f"With {amount} crowns from {lender}, {debtor} paid for a winter's wood and owed {total} in all.",
            )
        )

    def payment(self) -> str:
        """Somebody pays back a debt, or a part of it."""
        if not self.debts:
            return self.loan()
        debtor, lender = self.coin.choice(sorted(self.debts))
        owed = self.debts[debtor, lender]
        paid = self.coin.randint(1, owed)
        if paid == owed:
            del self.debts[debtor, lender]
            return f"{debtor} paid {lender} the last {paid} crowns and tore up the paper."
        self.debts[debtor, lender] = owed - paid
        return self.coin.choice(
            (
                f"{debtor} gave {lender} {paid} crowns back and still owed {owed - paid}.",
                f"Of the {owed} crowns that {debtor} owed, {lender} received {paid}.",
            )
        )

    def work(self) -> str:
        """A work of the town goes on, is finished, or is damaged."""
        name, head = self.coin.choice(WORKS), self.coin.choice(PEOPLE)
        share = self.works[name]
        if share >= 100:
            self.works[name] = self.coin.randint(30, 80)
            return f"A flood damaged {name}, just finished, and left {self.works[name]} parts in a hundred standing."
        self.works[name] = min(100, share + self.coin.randint(3, 25))
        if self.works[name] == 100:
            return f"{head} drove in the last nail, and {name} was finished."
        return self.coin.choice(
            (
                f"Under {head}, the work on {name} went from {share} to {self.works[name]} parts in a hundred.",
                f"{head} reported that {self.works[name]} of a hundred parts of {name} were done.",
                f"Nineteen people worked on {name}; at {self.works[name]} parts in a hundred it was ahead of the plan."
                if self.works[name] > 50
                else f"Too few hands came to {name}, and {head} left it at {self.works[name]} parts in a hundred.",
            )
        )

    def trade(self) -> str:
        """Somebody learns another trade."""
        name, teacher = self.two()
        before, self.trades[name] = self.trades[name], self.trades[teacher]
        if before == self.trades[name]:
            return f"{name} and {teacher}, both of them {before}s, agreed to share a workshop."
        return f"{name} gave up the work of a {before} and was taught by {teacher} to be a {self.trades[name]}."


def chronicle(words: int, seed: int) -> str:
    """Return a chronicle of at least ``words`` words with a question about it, as a user would ask it.

    Example: ``chronicle(1200, 0)`` is about 1,900 tokens long for SmolLM2.
    """
    town = Town(random.Random(seed))
    first = dict(town.prices)
    told = "\n\n".join(_told(_days(town), words))
    asked = _question(town, first, seed)
    return f"Read the chronicle of a harbour town and answer the question below it.\n\n{told}\n\n{asked}"


def chronicle_text(words: int, seed: int) -> str:
    """Return a chronicle of at least ``words`` words alone, its days with a blank line between them."""
    return "\n\n".join(_told(_days(Town(random.Random(seed))), words))


def harbour_talk(words: int, seed: int) -> str:
    """Return a conversation of at least ``words`` words about the town: the user's and the assistant's turns in turn,
    the user's first, with a blank line between them. Answers tell the state of the town at that day."""
    return "\n\n".join(_told(_talk(Town(random.Random(seed))), words))


def _told(parts: Iterator[str], words: int) -> Iterator[str]:
    """The first parts that have so many words or more together."""
    count = 0
    for part in parts:
        yield part
        count += len(part.split())
        if count >= words:
            return


def _talk(town: Town) -> Iterator[str]:
    """Questions and answers, a pair at once."""
    coin = town.coin
    for day in _days(town):
        date, _, told = day.partition(". ")
        asked = coin.choice(("What happened on {}?", "Tell me of {}.", "What was written down on {}?", "And {}?"))
        yield f"{asked.format(date)}\n\n{told}"
        good, person, work = coin.choice(GOODS), coin.choice(PEOPLE), coin.choice(WORKS)
        ships = ", ".join(f"the {ship}" for ship in sorted(town.docked))
        yield "\n\n".join(
            coin.choice(
                (
                    (f"What does a barrel of {good} cost now?", f"{town.prices[good]} crowns."),
                    (f"What is the trade of {person}?", f"{person} is a {town.trades[person]}."),
                    (f"How far has {work} come?", f"To {town.works[work]} parts in a hundred."),
                    ("Which ships lie in the harbour?", ships[:1].upper() + ships[1:] + "." if ships else "None."),
                )
            )
        )


def _days(town: Town) -> Iterator[str]:
    often: dict[Callable[[], str], int] = {town.arrival: 3, town.sale: 4, town.departure: 2, town.price: 3}
    often |= {town.loan: 2, town.payment: 2, town.work: 2, town.trade: 1}
    events = [event for event, times in often.items() for _ in range(times)]
    year = town.coin.randint(1701, 1790)
    while True:
        for month in MONTHS:
            for date in sorted(town.coin.sample(range(1, 29), 6)):
                told = dict.fromkeys(event() for event in town.coin.choices(events, k=town.coin.randint(3, 6)))
                yield f"{month} {date}, {year}. {town.coin.choice(WEATHER)} {' '.join(told)}"
        year += 1


def _question(town: Town, first: dict[str, int], seed: int) -> str:
    coin, person = town.coin, town.coin.choice(PEOPLE)
    good = coin.choice(GOODS)
    return (
        f"Question: What did a barrel of {good} cost at the end of the chronicle, after {first[good]} crowns at its "
        "beginning? Tell how the price got there.",
        f"Question: What do we learn about {person}? Tell it in the order of time, in your own words.",
        "Question: Which ships lay in the harbour at the end, and what did they have on board?",
        "Question: Who owed money to whom at the end, and how much?",
        "Question: How far had each of the town's works come at the end, and who had worked on it?",
    )[seed % 5]
