"""What the rules of fairness come to over minutes and hours, on simulated slots (`tests.fixtures.slots`)."""

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.fairness import Fairness
from messaging.message import Key
from messaging.policy import Policy
from tests.fixtures.slots import Slots

DOCUMENTS = Policy(per_key=2, total=10, lend=True)
STRICT = Policy(per_key=2, total=10, lend=False)
REPLIES = Policy(per_key=1, total=20, ordered=True)


def about(mean: float, seed: int = 1) -> Callable[[Key], float]:
    """Job lengths spread evenly over half to one and a half times the mean, in seconds."""
    rng = random.Random(seed)
    return lambda _key: mean * rng.uniform(0.5, 1.5)


def senders(number: int, tenant: str = "acme", prefix: str = "s") -> list[Key]:
    return [Key(tenant, f"{prefix}{n}") for n in range(number)]


def jain(used: list[float]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has all."""
    return sum(used) ** 2 / (len(used) * sum(each * each for each in used))


def longest_gap(slots: Slots, key: Key) -> float:
    """The longest time between two starts of a sender, the end of the play included."""
    return max(later - earlier for earlier, later in pairwise([*slots.starts(key), slots.now]))


@given(st.integers(1, 30), st.sampled_from([DOCUMENTS, STRICT, REPLIES]), st.integers(0, 1000))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_everybody_with_work_waits_a_bounded_time(number: int, policy: Policy, seed: int) -> None:
    slots = Slots(Fairness(policy), about(1.0, seed))
    keys = senders(number, "acme") + senders(3, "other")
    for key in keys:
        slots.keep_waiting(key)
    slots.play(60)
    # Two rounds of everybody's longest job over the slots of a tenant.
    bound = 2 * (1.5 + 1.5 * number / (policy.total / 2))
    assert max(longest_gap(slots, key) for key in keys) <= bound


@pytest.mark.parametrize("as_tenants", [False, True], ids=["senders", "tenants"])
@pytest.mark.parametrize("per_second", [9.0, 15.0], ids=["as many as can be served", "more than can be served"])
def test_an_endless_stream_of_new_ones_starves_nobody(as_tenants: bool, per_second: float) -> None:
    slots, stays = Slots(Fairness(DOCUMENTS), about(1.0)), Key("acme", "stays")
    slots.keep_waiting(stays)
    waiting: list[int] = []

    def come(number: int) -> None:
        slots.send(Key(f"tenant-{number}", "new") if as_tenants else Key("acme", f"new-{number}"))
        waiting.append(slots.fairness.waiting)
        slots.at(slots.now + 1 / per_second, partial(come, number + 1))

    for number in range(50):
        slots.send(Key(f"early-{number}", "new") if as_tenants else Key("acme", f"early-{number}"))
    come(0)
    slots.play(300)
    for earlier, later in pairwise([*slots.starts(stays), slots.now]):
        # Two of the longest jobs (1.5 s) is the most that is held against it: two rounds of all who were there.
        most = max(waiting[int(earlier * per_second) : int(later * per_second) + 1]) + 10
        assert later - earlier <= 1.5 + 2 * 1.5 * most / 10


def test_what_was_borrowed_from_idle_slots_is_not_held_against_the_borrower() -> None:
    for others in (4, 8):
        slots, noisy = Slots(Fairness(DOCUMENTS), about(1.0)), Key("acme", "noisy")
        slots.keep_waiting(noisy)
        for key in senders(others):
            slots.keep_asking(key)
        slots.play(500)
        crowd = senders(20, prefix="late")
        for key in crowd:
            slots.keep_waiting(key)
        slots.play(800)
        assert slots.starts(noisy, since=500)[0] <= 515
        assert slots.used(noisy, 500, 800) >= 0.85 * slots.used(set(crowd), 500, 800) / len(crowd)


def test_a_tenant_that_took_idle_slots_is_not_starved_and_one_held_by_its_caps_gains_nothing() -> None:
    slots, capped = Slots(Fairness(REPLIES), about(1.0)), Key("capped", "only")
    slots.keep_waiting(capped)
    wide = senders(100, "wide")
    for key in wide:
        slots.keep_waiting(key)
    slots.play(300)
    assert slots.used(capped, 100, 300) > 0.9 * 200, "one key at a time: one slot"
    crowd = [Key(f"late-{number}", name) for number in range(100) for name in ("a", "b")]
    for key in crowd:
        slots.keep_waiting(key)
    slots.play(800)
    each = slots.used(set(crowd), 300, 800) / 100
    assert slots.used(set(wide), 300, 800) >= 0.75 * each
    assert slots.used(capped, 300, 800) <= 1.25 * each


def test_a_quiet_sender_starts_at_the_very_next_end_while_another_holds_all_slots() -> None:
    for seed in range(20):
        slots, noisy, quiet = Slots(Fairness(DOCUMENTS), about(1.0, seed)), Key("acme", "noisy"), Key("acme", "quiet")
        slots.keep_waiting(noisy)
        slots.play(2.0 + seed / 7)
        next_end = min(served.end for served in slots.served if served.end > slots.now)
        slots.send(quiet)
        slots.play(slots.now + 2)
        assert slots.starts(quiet) == [next_end]


@given(st.integers(1, 8), st.integers(0, 1000))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_lending_leaves_no_slot_idle_while_anybody_waits(number: int, seed: int) -> None:
    rng = random.Random(seed)
    slots = Slots(Fairness(DOCUMENTS), about(1.0, seed))
    for key in senders(number):
        slots.at(rng.uniform(0, 10), partial(slots.send, key, rng.randint(1, 60)))
    slots.play()
    assert slots.idle_with_work == 0
    assert slots.fairness.running == slots.fairness.waiting == 0


def test_without_lending_the_rest_stays_idle() -> None:
    slots = Slots(Fairness(STRICT), about(1.0))
    for key in senders(2):
        slots.keep_waiting(key)
    slots.play(100)
    assert slots.used(set(senders(2)), 0, 100) == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize("others", [1, 4])
@pytest.mark.parametrize("lengths", [1.0, 20.0], ids=["short jobs", "long jobs"])
def test_a_tenant_split_over_many_senders_gets_no_more_than_its_share(others: int, lengths: float) -> None:
    base = about(1.0)
    slots = Slots(Fairness(DOCUMENTS), lambda key: base(key) * (lengths if key.tenant == "split" else 1.0))
    split, single = senders(20, "split"), [Key(f"single-{n}", "one") for n in range(others)]
    for key in split + single:
        slots.keep_waiting(key)
    slots.play(600)
    share = slots.used(set(split), 60, 600) / slots.used(set(split + single), 60, 600)
    assert share * (others + 1) <= 1.1


@pytest.mark.parametrize("asks", [Slots.keep_waiting, Slots.keep_asking], ids=["backlog", "one at a time"])
@pytest.mark.parametrize(
    ("number", "policy"), [(4, DOCUMENTS), (5, STRICT), (20, DOCUMENTS), (50, REPLIES), (3, Policy(1, 1, lend=True))]
)
def test_slot_time_is_even_with_jobs_of_one_to_twenty(
    number: int, policy: Policy, asks: Callable[[Slots, Key], None]
) -> None:
    base = about(0.2)
    slots = Slots(Fairness(policy), lambda key: base(key) * (20.0 if key.sender in {"s0", "s1", "s2"} else 1.0))
    for key in senders(number):
        asks(slots, key)
    end = 120.0 * max(1, number / policy.total)
    slots.play(end)
    assert jain([slots.used(key, end / 10, end) for key in senders(number)]) >= 0.98


@pytest.mark.parametrize("weights", [(3, 2, 1), (4, 1), (5, 3, 1), (1, 1, 1, 0.5)], ids=str)
@pytest.mark.parametrize("of_tenants", [False, True], ids=["senders", "tenants"])
def test_a_few_divide_the_slots_by_weight(weights: tuple[float, ...], of_tenants: bool) -> None:
    policy = Policy(per_key=1, total=10, lend=True)
    groups = [senders(3, f"t{n}") if of_tenants else [Key("acme", str(n))] for n in range(len(weights))]
    of = {key: weight for group, weight in zip(groups, weights, strict=True) for key in group}
    fairness = (
        Fairness(policy, tenant_weight_of=lambda tenant: weights[int(tenant[1:])])
        if of_tenants
        else Fairness(policy, weight_of=of.__getitem__)
    )
    slots = Slots(fairness, about(1.0))
    for key in of:
        slots.keep_waiting(key)
    slots.play(250)
    used = [slots.used(set(group), 20, 250) for group in groups]
    for mine, weight in zip(used, weights, strict=True):
        assert mine / sum(used) == pytest.approx(weight / sum(weights), rel=0.1)


@pytest.mark.parametrize("of_tenants", [False, True], ids=["senders", "tenants"])
def test_many_divide_the_slots_by_weight(of_tenants: bool) -> None:
    keys = [Key(f"t{n}" if of_tenants else "acme", f"s{n}") for n in range(40)]
    heavy = set(keys[::2])

    def weight(name: str) -> float:
        return 3.0 if int(name[1:]) % 2 == 0 else 1.0

    fairness = Fairness(
        DOCUMENTS,
        weight_of=lambda key: 1.0 if of_tenants else weight(key.sender),
        tenant_weight_of=lambda tenant: weight(tenant) if of_tenants else 1.0,
    )
    slots = Slots(fairness, about(1.0))
    for key in keys:
        slots.keep_waiting(key)
    slots.play(400)
    ratio = slots.used(heavy, 40, 400) / slots.used(set(keys) - heavy, 40, 400)
    assert ratio == pytest.approx(3, rel=0.1)


def test_one_that_comes_back_after_long_does_not_monopolise() -> None:
    slots, away, others = Slots(Fairness(DOCUMENTS), about(1.0)), Key("acme", "away"), senders(30)
    slots.keep_asking(away)
    for key in others:
        slots.keep_waiting(key)
    slots.play(30)
    slots.leave(away)
    slots.play(600)
    slots.keep_waiting(away)
    slots.play(660)
    fair = slots.used(set(others), 600, 660) / len(others)
    assert slots.used(away, 600, 660) <= 1.1 * fair + 1.5


def test_a_short_absence_does_not_shed_debt() -> None:
    base = about(1.0)
    slots = Slots(Fairness(DOCUMENTS), lambda key: 30.0 if key.sender == "long" else base(key))
    long, others = Key("acme", "long"), senders(30)
    for key in others:
        slots.keep_waiting(key)
    slots.at(10, partial(slots.send, long))
    slots.play(20)
    first = slots.starts(long)[0]
    slots.play(first + 31)
    assert slots.fairness.running_of(long) == slots.fairness.waiting_of(long) == 0
    slots.play(first + 33)
    slots.send(long)
    slots.play(first + 300)
    # It used 30 slot-seconds in 30 s, the others ten slots' worth by thirty: they catch up first.
    _, again = slots.starts(long)
    used = [slots.used(key, first, again) for key in others]
    assert min(used) >= 30 - 1.5


@pytest.mark.parametrize("seed", range(5))
def test_five_hundred_documents(seed: int) -> None:
    """The noisy sender's 300 first, 100 of them broken at once, and 50 of each of four others 2 s later."""
    noisy, quiet = Key("acme", "noisy"), senders(4, prefix="quiet")

    def run(policy: Policy) -> Slots:
        rng = random.Random(seed)
        kinds = [False] * 200 + [True] * 100
        rng.shuffle(kinds)
        left, base = iter(kinds), about(1.0, seed)
        slots = Slots(Fairness(policy), lambda key: 0.05 if key == noisy and next(left) else base(key))
        slots.at(0, partial(slots.send, noisy, 300))
        for key in quiet:
            slots.at(2, partial(slots.send, key, 50))
        slots.play()
        return slots

    slots = run(DOCUMENTS)
    assert len(slots.served) == 500
    assert slots.done(set(quiet)) - 2 <= 1.10 * slots.used(set(quiet)) / 8
    everybody = {noisy, *quiet}
    assert slots.done(everybody) <= 1.05 * slots.used(everybody) / 10
    first_waits = [slots.starts(key)[0] - 2 for key in quiet]
    assert max(first_waits) <= 1.5
    assert slots.idle_with_work == 0
    capped = run(STRICT)
    assert capped.done({noisy}) > 2 * slots.done({noisy})
    assert capped.done(set(quiet)) >= 0.9 * slots.done(set(quiet))
