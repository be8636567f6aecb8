"""Whose turn it is, start by start: against a naive book of the same rules; what a start costs and leaves behind."""

import gc
import random
import statistics
import time
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from messaging.fairness import Fairness, Pick
from messaging.message import Key
from messaging.policy import Policy
from messaging.virtualtime import Level, Member

DOCUMENTS = Policy(per_key=2, total=10, lend=True)
STRICT = Policy(per_key=2, total=10, lend=False)
REPLIES = Policy(per_key=1, total=20, ordered=True)
POLICIES = [DOCUMENTS, STRICT, REPLIES, Policy(per_key=3, total=4, lend=True), Policy(per_key=1, total=1, lend=True)]

KEYS = [Key(f"t{tenant}", f"s{sender}") for tenant in range(4) for sender in range(1 + 2 * tenant)]
WEIGHTS = {"t0": 1.0, "t1": 1.0, "t2": 0.1, "t3": 2.5}


class Book:
    """The rules in their plainest form: two counters, and the guarantee worked out anew each time."""

    def __init__(self, policy: Policy, weights: dict[str, float]) -> None:
        self.policy = policy
        self.total = policy.total
        self.weights = {tenant: Fraction(str(weight)) for tenant, weight in weights.items()}
        self.waiting: Counter[Key] = Counter()
        self.running: Counter[Key] = Counter()

    def slots_of(self, tenant: str) -> int:
        return sum(running for key, running in self.running.items() if key.tenant == tenant)

    def share(self, tenant: str) -> int:
        active = {key.tenant for key in (+self.waiting) + (+self.running)}
        return max(1, int(self.total * self.weights[tenant] / sum(self.weights[name] for name in active)))

    def under_guarantee(self, key: Key) -> bool:
        return self.running[key] < self.policy.per_key and self.slots_of(key.tenant) < self.share(key.tenant)

    def may_start(self) -> list[Key]:
        if self.running.total() >= self.total:
            return []
        return [key for key in +self.waiting if self.policy.lend or self.running[key] < self.policy.per_key]

    def check(self, pick: Pick | None) -> None:
        """Hold a pick against the state it was made in, then enter it."""
        able = self.may_start()
        if pick is None:
            assert not able, f"a slot stays idle while {able} wait"
            return
        assert pick.key in able, "beyond the total, beyond the cap, or nothing waits"
        owed = [key for key in able if self.under_guarantee(key)]
        assert pick.lent == (not self.under_guarantee(pick.key))
        assert not (pick.lent and owed), f"lent while {owed} wait under their guarantee"
        if len(set(self.weights.values())) == 1:
            rivals = owed or able
            assert self.slots_of(pick.key.tenant) == min(self.slots_of(key.tenant) for key in rivals)
            assert self.running[pick.key] == min(self.running[key] for key in rivals if key.tenant == pick.key.tenant)
        self.waiting[pick.key] -= 1
        self.running[pick.key] += 1

    def agrees_with(self, fairness: Fairness) -> None:
        assert (fairness.waiting, fairness.running) == (self.waiting.total(), self.running.total())
        assert fairness.free_slots == max(0, self.total - self.running.total())
        for key in KEYS:
            assert (fairness.waiting_of(key), fairness.running_of(key)) == (self.waiting[key], self.running[key])


class AnyHistory(RuleBasedStateMachine):
    """Any order of arrivals, withdrawals, starts, ends and resizes keeps to the book."""

    @initialize(policy=st.sampled_from(POLICIES), weighted=st.booleans())
    def begin(self, policy: Policy, weighted: bool) -> None:
        weights = WEIGHTS if weighted else dict.fromkeys(WEIGHTS, 1.0)
        self.book = Book(policy, weights)
        self.fairness = Fairness(policy, tenant_weight_of=weights.__getitem__)

    @rule(key=st.sampled_from(KEYS), jobs=st.integers(1, 4))
    def arrive(self, key: Key, jobs: int) -> None:
        self.fairness.add(key, jobs)
        self.book.waiting[key] += jobs

    @rule(key=st.sampled_from(KEYS), jobs=st.integers(1, 3))
    def withdraw(self, key: Key, jobs: int) -> None:
        if self.book.waiting[key] < jobs:
            with pytest.raises(ValueError, match="fewer than"):
                self.fairness.remove(key, jobs)
        else:
            self.fairness.remove(key, jobs)
            self.book.waiting[key] -= jobs

    @rule(picks=st.integers(1, 12))
    def start(self, picks: int) -> None:
        for _ in range(picks):
            self.book.check(self.fairness.pick())

    @precondition(lambda self: self.book.running.total())
    @rule(data=st.data(), seconds=st.none() | st.floats(0, 20))
    def end(self, data: st.DataObject, seconds: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(+self.book.running, key=str)))
        self.fairness.finished(key, seconds)
        self.book.running[key] -= 1

    @rule(total=st.integers(0, 14))
    def resize(self, total: int) -> None:
        self.fairness.resize(total)
        self.book.total = total

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "book"):
            self.book.agrees_with(self.fairness)


AnyHistory.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyHistory = AnyHistory.TestCase


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_long_history_keeps_to_the_book(policy: Policy) -> None:
    rng, book = random.Random(1), Book(policy, WEIGHTS)
    fairness = Fairness(policy, tenant_weight_of=WEIGHTS.__getitem__)
    for step in range(2500):
        key = rng.choice(KEYS)
        if rng.random() < 0.4 and book.waiting.total() < 60:
            fairness.add(key)
            book.waiting[key] += 1
        elif book.running.total() and rng.random() < 0.6:
            key = rng.choice(list(book.running.elements()))
            fairness.finished(key, rng.choice([None, 0.05, rng.uniform(0, 20)]))
            book.running[key] -= 1
        if step % 500 == 499:
            book.total = rng.randrange(policy.total + 3)
            fairness.resize(book.total)
        while (pick := fairness.pick()) is not None:
            book.check(pick)
        book.check(None)
    book.agrees_with(fairness)


def test_what_cannot_be_is_refused() -> None:
    fairness, key = Fairness(DOCUMENTS), Key("acme", "ann")
    with pytest.raises(ValueError, match="nothing running"):
        fairness.finished(key, 1.0)
    fairness.add(key)
    with pytest.raises(ValueError, match="nothing running"):
        fairness.finished(key, 1.0)
    with pytest.raises(ValueError, match="fewer than 2"):
        fairness.remove(key, 2)
    with pytest.raises(ValueError, match="negative"):
        fairness.resize(-1)
    with pytest.raises(ValueError, match="weight"):
        Fairness(DOCUMENTS, weight_of=lambda _key: 0.0).add(key)
    assert (fairness.waiting, fairness.running) == (1, 0)


def test_a_start_that_is_taken_back_moves_no_virtual_time() -> None:
    level: Level[str, Member] = Level()
    tickets = iter(range(1, 100))
    ann, ben = Member(1.0), Member(0.5)
    level.count("ann", ann, 1, 0, tickets)
    moved = level.start(ann, 5.0, 10.0, 1)
    level.count("ben", ben, 1, 0, tickets)
    level.undo(ann, moved)
    assert [ann.virtual, level.virtual] == pytest.approx([0.0, 0.0])
    # So with a start that reached its bound, in either direction.
    for virtual in (500.0, -500.0):
        ann.virtual = virtual
        level.undo(ann, level.start(ann, 5.0, 10.0, 1))
        assert [ann.virtual, level.virtual] == pytest.approx([virtual, 0.0])


def test_starts_that_an_outage_takes_back_cost_the_sender_nothing() -> None:
    policy = Policy(per_key=1, total=2, lend=True)
    senders = [Key("acme", name) for name in ("ann", "ben", "cas", "dan")]
    fairness = Fairness(policy)
    fairness.add(senders[0], 2000)
    for _ in range(500):
        while (pick := fairness.pick()) is not None:
            assert pick.key == senders[0]
        fairness.finished(senders[0], None)
        fairness.finished(senders[0], None)
        fairness.add(senders[0], 2)
    for key in senders[1:]:
        fairness.add(key, 1000)
    started: Counter[Key] = Counter()
    for _ in range(400):
        pick = fairness.pick()
        assert pick is not None
        started[pick.key] += 1
        fairness.finished(pick.key, 1.0)
    assert max(started.values()) - min(started.values()) <= 1


def alive() -> int:
    """Senders and tenants in memory."""
    gc.collect()
    return sum(isinstance(item, Member) for item in gc.get_objects())


def test_senders_that_come_once_leave_almost_nothing_behind() -> None:
    fairness, rng, before, most = Fairness(DOCUMENTS), random.Random(1), alive(), 0
    stays = Key("acme", "stays")
    fairness.add(stays, 10**9)
    for number in range(20_000):
        fairness.add(Key("acme" if number % 2 else f"tenant-{number}", f"sender-{number}"))
        while (pick := fairness.pick()) is not None:
            fairness.finished(pick.key, rng.uniform(0.05, 20.0))
            if pick.key != stays:
                break
        if number % 5_000 == 4_999:
            most = max(most, alive() - before)
    assert max(most, alive() - before) < 1000


def test_a_burst_of_senders_is_forgotten_when_it_is_over() -> None:
    fairness, before = Fairness(DOCUMENTS), alive()
    for number in range(20_000):
        fairness.add(Key(f"tenant-{number % 50}", f"sender-{number}"))
    assert alive() - before == 20_050
    while (pick := fairness.pick()) is not None:
        fairness.finished(pick.key, 1.0)
    assert alive() - before < 200


def test_one_that_comes_and_goes_in_debt_is_remembered_once() -> None:
    level: Level[str, Member] = Level()
    tickets = iter(range(1, 10_000))
    member, other = Member(1.0), Member(1.0)
    for name, each in (("member", member), ("other", other)):
        level.count(name, each, 1, 0, tickets)
    level.charge(member, 10.0)
    for _ in range(1000):
        level.count("member", member, -1, 0, tickets)
        level.count("member", member, 1, 0, tickets)
    assert len(level._debtors) == 1


@pytest.mark.parametrize("many_tenants", [False, True], ids=["one tenant", "a tenant each"])
def test_a_pick_does_not_cost_more_with_more_senders(many_tenants: bool) -> None:
    micros = {}
    for senders in (100, 100_000):
        fairness, rng = Fairness(DOCUMENTS), random.Random(1)
        for number in range(senders):
            fairness.add(Key(f"tenant-{number}" if many_tenants else "acme", f"sender-{number}"), 5)
        running, took = [], []
        for _ in range(2000):
            while fairness.free_slots:
                began = time.perf_counter_ns()
                pick = fairness.pick()
                took.append((time.perf_counter_ns() - began) / 1000)
                assert pick is not None
                running.append(pick.key)
                fairness.add(pick.key)
            fairness.finished(running.pop(rng.randrange(len(running))), rng.uniform(0.5, 1.5))
        micros[senders] = took
        p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
        print(f"{senders} senders, many tenants {many_tenants}: p50 {p50:.1f} us, p99 {p99:.1f} us")
    assert statistics.median(micros[100_000]) <= 10 * statistics.median(micros[100])
