"""The cube against the same counts kept plainly; sums that leave the loop to others; nothing left of what went."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from services.analytics import cube as cubes
from services.analytics.counting import READ_WITHIN, READING, Name, Value
from services.analytics.cube import Cube, rank
from tests.analytics.test_counting import at_once

TENANTS, SENDERS, TYPES = ("acme", "other"), tuple(f"s{n}" for n in range(7)), ("a", "b", "c")
DAY = 86_400


def key(tenant: str, sender: str, type_: str, day: int, partition: int = 0) -> str:
    return str(Name("t", partition, ("day", str(day * DAY), type_, tenant, sender)))


def read_key(tenant: str, sender: str, day: int) -> str:
    return str(Name("t", 0, (READING, str(day * DAY), tenant, sender)))


def took(seconds: float) -> Value:
    return {"n": 1, "s": seconds, "b": [1] + [0] * len(READ_WITHIN), "o": 0}


def test_it_holds_what_the_table_holds_whatever_changes() -> None:
    rng, cube, table = random.Random(7), Cube(), dict[str, Value]()
    for _ in range(4000):
        name = key(rng.choice(TENANTS), rng.choice(SENDERS), rng.choice(TYPES), rng.randrange(5), rng.randrange(2))
        after: Value | None = None if rng.random() < 0.4 else {"n": rng.randrange(1, 9), "o": 1}
        cube.apply(name, table.get(name), after)
        if after is None:
            table.pop(name, None)
        else:
            table[name] = after
    assert cube.keys == len(table) > 50
    for tenant in TENANTS:
        for type_ in (None, "b"):
            for sender in (None, "s3", "nobody"):
                wanted, days = Counter[tuple[str, str]](), Counter[int]()
                for name, value in table.items():
                    _, start, kind, whose, who = Name.parse(name).rest
                    if whose == tenant and type_ in (None, kind) and sender in (None, who) and int(start) < 4 * DAY:
                        wanted[who, kind] += value["n"]
                        days[int(start)] += value["n"]
                found = at_once(cube.events(tenant, "day", 0, 4 * DAY, type_=type_, sender=sender))
                assert {(who, kind): n for who, kinds in found.items() for kind, n in kinds.items()} == wanted
                series = cube.series(tenant, "day", 0, 4 * DAY, type_=type_, sender=sender)
                assert series == [(day * DAY, days[day * DAY]) for day in range(4)]
    for name, value in table.items():
        cube.apply(name, value, None)
    assert (cube._counts, cube.keys) == ({}, 0)


def test_nothing_is_left_of_a_sender_or_tenant_without_counts() -> None:
    cube = Cube()
    held = [(key("acme", "ann", "a", 1), {"n": 2, "o": 1}), (read_key("acme", "ann", 1), took(0.5))]
    stays = [(key("other", "bob", "a", 1), {"n": 2, "o": 1}), (read_key("other", "bob", 1), took(0.25))]
    for name, value in held + stays:
        cube.apply(name, None, value)
    for name, value in held:
        cube.apply(name, value, None)
    only = Cube()
    for name, value in stays:
        only.apply(name, None, value)
    assert (cube._counts, cube._reading, cube.keys) == (only._counts, only._reading, only.keys)
    assert "acme" not in repr((cube._counts, cube._reading))
    assert cube.reading("other", 0, 2**40, sender=None).seconds == 0.25
    assert cube.reading("other", 0, 2**40, sender="ann").count == 0


async def others_turns(work: Callable[[], object]) -> int:
    """How often somebody else had a turn on the loop while this ran."""
    turns, over = 0, asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    await asyncio.sleep(0)
    before = turns
    await work()  # type: ignore[misc]
    gained = turns - before
    over.set()
    await running
    return gained


async def test_long_sums_leave_the_loop_to_others_and_counting_goes_on() -> None:
    """Every sender of a tenant is counted once more while they are added up: in it or not, never in half."""
    cube, many = Cube(), 5 * cubes.BREATH
    for n in range(many):
        cube.apply(key("acme", f"s{n}", "a", n % 3), None, {"n": 5, "o": 1})
    found: dict[str, dict[str, int]] = {}

    async def add_up() -> None:
        found.update(await cube.events("acme", "day", 0, 2**40, type_=None, sender=None))

    async def count_on() -> None:
        for n in range(many):
            cube.apply(key("acme", f"s{n}", "a", n % 3), {"n": 5, "o": 1}, {"n": 6, "o": 2})
            cube.apply(key("acme", f"new{n}", "a", n % 5), None, {"n": 1, "o": 2})
            if n % 100 == 0:
                await asyncio.sleep(0)

    counting = asyncio.create_task(count_on())
    assert await others_turns(add_up) >= 3
    assert {found[f"s{n}"]["a"] for n in range(many)} <= {5, 6}
    await counting
    assert await others_turns(lambda: rank(found, 10)) >= 4


async def test_one_senders_sum_looks_at_no_other_sender() -> None:
    cube = Cube()
    for n in range(3 * cubes.BREATH):
        cube.apply(key("acme", f"s{n}", "a", 1), None, {"n": 5, "o": 1})

    async def one() -> None:
        assert await cube.events("acme", "day", 0, 2**40, type_=None, sender="s7") == {"s7": {"a": 5}}

    assert await others_turns(one) == 0


async def test_the_busiest_come_first_and_the_sums_are_of_all() -> None:
    found = {f"s{n:04}": {"a": n, "b": 1} for n in range(3 * cubes.BREATH)}
    found["tied"] = {"a": 3 * cubes.BREATH - 1, "b": 1}
    by_type, busiest = await rank(found, 3)
    assert busiest == ["s2999", "tied", "s2998"]
    assert by_type == {"a": sum(range(3000)) + 2999, "b": 3001}
