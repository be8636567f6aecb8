"""What waits and runs of one tenant, as the scheduler counts it."""

import asyncio
from collections.abc import Callable

import pytest

from messaging import queues
from messaging.consumer import Limits
from messaging.errors import Outage, Retryable, Throttled
from messaging.job import Job
from messaging.message import Key
from messaging.policy import Backoff, Policy
from messaging.queues import Queue, Tally
from tests.fixtures.stack import Infra
from tests.messaging.harness import Recording, consuming, send, subscription, until


def counts(queue: Queue) -> dict[str, tuple[int, int, int, int]]:
    return {
        sender.sender: (sender.waiting, sender.running, sender.parked, sender.delayed) for sender in queue.senders
    }


@pytest.fixture
def source(topic: Callable[..., str]) -> str:
    name = topic()
    topic(name=f"{name}.reader.retry")
    topic(name=f"{name}.reader.dlq")
    return name


async def test_everything_of_the_tenant_is_counted_once(infra: Infra, source: str) -> None:
    go_on = asyncio.Event()

    async def work(job: Job) -> None:
        if job.key.sender == "late":
            raise Retryable("later")
        await go_on.wait()

    sub = subscription(source, Policy(per_key=2, total=4), Backoff(attempts=4, base=60, cap=60))
    jobs = [("acme:late", 1), *[("acme:ann", n) for n in range(40)], *[("acme:bob", n) for n in range(3)]]
    send(infra.kafka_bootstrap, source, [*jobs, ("other:eve", 1), ("other:eve", 2)])
    async with consuming(infra.kafka_bootstrap, sub, Recording(work), limits=Limits(window=10)) as consumer:
        await until(lambda: sum(sender.jobs for sender in consumer.queue("acme").senders) == 44)
        await until(lambda: consumer.queue("acme").delayed == 1 and consumer.queue("acme").in_use == 4)
        mine, theirs = consumer.queue("acme"), consumer.queue("other")
        assert (mine.slots, mine.in_use, mine.held_by, mine.left_out) == (4, 4, [], 0)
        assert mine.running + theirs.running == 4
        found = counts(mine)
        assert {sender: sum(parts) for sender, parts in found.items()} == {"ann": 40, "bob": 3, "late": 1}
        assert found["late"] == (0, 0, 0, 1)
        assert found["ann"][2] > 0, "beyond the window only offsets are kept"
        assert (mine.waiting, mine.running, mine.parked, mine.delayed) == tuple(
            map(sum, zip(*found.values(), strict=True))
        )
        assert {sender: sum(parts) for sender, parts in counts(theirs).items()} == {"eve": 2}
        assert counts(consumer.queue("nobody")) == {}
        go_on.set()
        await until(lambda: not [sender for sender in consumer.queue("acme").senders if sender.sender != "late"])


async def test_it_says_what_holds_everything(infra: Infra, source: str) -> None:
    async def work(_job: Job) -> None:
        raise Throttled("not so fast", 30.0)

    send(infra.kafka_bootstrap, source, [("acme:ann", 1)])
    async with consuming(infra.kafka_bootstrap, subscription(source), Recording(work)) as consumer:
        await until(lambda: consumer.queue("acme").held_by == ["provider"])
        assert counts(consumer.queue("acme")) == {"ann": (1, 0, 0, 0)}


async def test_before_it_is_open_nothing_is_known(infra: Infra, source: str) -> None:
    async with consuming(infra.kafka_bootstrap, subscription(source), Recording(_nothing)) as consumer:
        consumer._open = False
        with pytest.raises(Outage):
            consumer.queue("acme")


async def _nothing(_job: Job) -> None:
    """A no-op job."""


def test_the_largest_are_named_and_the_rest_is_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_SENDERS", 3)
    tally = Tally("acme")
    for number in range(10):
        tally.add(Key("acme", f"s{number}"), waiting=number)
    tally.add(Key("other", "s1"), waiting=1000)
    queue = tally.queue("reader", slots=4, in_use=1, held_by=[])
    assert [sender.sender for sender in queue.senders] == ["s9", "s8", "s7"]
    assert (queue.waiting, queue.left_out) == (45, 6)
