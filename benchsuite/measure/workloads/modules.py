"""Code by a rule: a Python module of functions about the goods of a harbour town, each with assertions that hold.

Names, numbers and forms are drawn; what the assertions expect is computed by the same rule, so that the module runs.
The same seed and length make the same text. All of it was written for this project.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchsuite.measure.workloads.chronicle import GOODS, PORTS, SHIPS, TRADES

VERBS = ("toll", "duty", "storage", "wages", "freight", "repair", "insurance", "ration")


def module_text(words: int, seed: int) -> str:
    """Return a module of at least ``words`` words; it ends with a whole function and its assertions.

    Example: ``exec(module_text(500, 0), {})`` runs, and every assertion holds.
    """
    coin = random.Random(seed)
    parts, count = [f'"""Accounts of the harbour of {coin.choice(PORTS)}, ledger {coin.randint(1, 99)}."""'], 0
    for number, part in enumerate(_functions(coin)):
        parts.append(part.replace("NUMBER", str(number)))
        count += len(part.split())
        if count >= words:
            return "\n\n\n".join(parts) + "\n"
    raise AssertionError("functions end never")


def _functions(coin: random.Random) -> Iterator[str]:
    while True:
        yield coin.choice((_rated, _tiered, _listed, _looked_up, _repeated))(coin)


def _name(coin: random.Random) -> tuple[str, str, str]:
    """A function's name, and the verb and good in it."""
    verb, good = coin.choice(VERBS), coin.choice(GOODS)
    return f"{verb}_of_{good}_NUMBER", verb, good


def _rated(coin: random.Random) -> str:
    name, verb, good = _name(coin)
    each, fixed, barrels = coin.randint(2, 40), coin.randint(1, 90), coin.randint(2, 60)
    return (
        f"def {name}(barrels):\n"
        f'    """The {verb} of so many barrels of {good}: {each} crowns each, and {fixed} for the berth."""\n'
        f"    return barrels * {each} + {fixed}\n\n\n"
        f"assert {name}({barrels}) == {barrels * each + fixed}"
    )


def _tiered(coin: random.Random) -> str:
    name, verb, good = _name(coin)
    limit, low, high = coin.randint(5, 40), coin.randint(2, 20), coin.randint(21, 45)
    below, above = coin.randint(1, limit), limit + coin.randint(1, 30)
    return (
        f"def {name}(barrels):\n"
        f'    """The {verb} of {good}: {high} crowns for each of the first {limit} barrels, then {low}."""\n'
        f"    if barrels <= {limit}:\n"
        f"        return barrels * {high}\n"
        f"    return {limit} * {high} + (barrels - {limit}) * {low}\n\n\n"
        f"assert {name}({below}) == {below * high}\n"
        f"assert {name}({above}) == {limit * high + (above - limit) * low}"
    )


def _listed(coin: random.Random) -> str:
    name, verb, good = _name(coin)
    loads = [coin.randint(1, 90) for _ in range(coin.randint(3, 6))]
    least = coin.randint(10, 60)
    return (
        f"def {name}(loads):\n"
        f'    """The {verb} of {good}: all loads of {least} barrels or more together."""\n'
        "    total = 0\n"
        "    for load in loads:\n"
        f"        if load >= {least}:\n"
        "            total += load\n"
        "    return total\n\n\n"
        f"assert {name}({loads}) == {sum(load for load in loads if load >= least)}"
    )


def _looked_up(coin: random.Random) -> str:
    name, verb, good = _name(coin)
    ships = coin.sample(SHIPS, 4)
    prices = {ship: coin.randint(3, 70) for ship in ships[:3]}
    other = coin.randint(71, 99)
    body = "".join(f'        "{ship}": {price},\n' for ship, price in prices.items())
    return (
        f"def {name}(ship):\n"
        f'    """The {verb} of a barrel of {good} by its ship, {other} crowns for any other."""\n'
        f"    prices = {{\n{body}    }}\n"
        f"    return prices.get(ship, {other})\n\n\n"
        f'assert {name}("{ships[0]}") == {prices[ships[0]]}\n'
        f'assert {name}("{ships[3]}") == {other}'
    )


def _repeated(coin: random.Random) -> str:
    name, verb, good = _name(coin)
    trade, start, grows, days = coin.choice(TRADES), coin.randint(4, 30), coin.randint(1, 9), coin.randint(2, 12)
    return (
        f"def {name}(days):\n"
        f'    """The {verb} of {good} that a {trade} asks: {start} crowns, and {grows} more each day."""\n'
        f"    asked = {start}\n"
        "    for _ in range(days):\n"
        f"        asked += {grows}\n"
        "    return asked\n\n\n"
        f"assert {name}({days}) == {start + grows * days}"
    )
