"""Single requests in batches: order, size, one batch at a time, ways round one that hangs, failures, and callers that
went away."""

import asyncio

import pytest

from messaging.batcher import Batcher, Ways
from messaging.errors import NoTurn


class Work:
    """Doubles each item when `gate` lets it; remembers the batches and how many ran at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[list[int]] = []
        self.at_once = self.most_at_once = 0

    async def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        await self.gate.wait()
        self.at_once -= 1
        if 13 in items:
            raise ConnectionError("away")
        return [2 * item for item in items]


async def test_what_arrives_during_a_batch_makes_the_next_up_to_the_limit() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work, limit=4)
    first = asyncio.create_task(batcher.submit(100))
    await asyncio.sleep(0.01)
    rest = [asyncio.create_task(batcher.submit(item)) for item in range(10)]
    await asyncio.sleep(0.01)
    work.gate.set()
    assert await asyncio.gather(first, *rest) == [200, *range(0, 20, 2)]
    assert work.batches == [[100], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert work.most_at_once == 1


async def test_a_failure_is_that_of_its_batch_only_and_the_next_goes_on() -> None:
    batcher = Batcher(Work(), limit=2)
    answers = await asyncio.gather(*map(batcher.submit, [1, 2, 13, 3, 4]), return_exceptions=True)
    assert answers[:2] == [2, 4]
    assert [type(answer) for answer in answers[2:4]] == [ConnectionError, ConnectionError]
    assert answers[4] == 8
    assert await batcher.submit(5) == 10


@pytest.mark.parametrize("answers", [[], [1, 2, 3]])
async def test_too_few_or_too_many_answers_fail_everybody_in_the_batch(answers: list[int]) -> None:
    async def work(_items: list[int]) -> list[int]:
        return answers

    batcher: Batcher[int, int] = Batcher(work)
    async with asyncio.timeout(5):
        results = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]


async def test_a_caller_that_gives_up_does_not_stop_the_others() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work)
    tasks = [asyncio.create_task(batcher.submit(item)) for item in (1, 2, 13)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    late = [asyncio.create_task(batcher.submit(item)) for item in (3, 4)]
    await asyncio.sleep(0.01)
    late[0].cancel()
    work.gate.set()
    answers = await asyncio.gather(*tasks, *late, return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        asyncio.CancelledError,
        ConnectionError,
        ConnectionError,
        asyncio.CancelledError,
        int,
    ]


async def test_idle_waits_for_all_that_is_under_way() -> None:
    work = Work()
    batcher = Batcher(work, limit=1)
    await batcher.idle()
    tasks = [asyncio.create_task(batcher.submit(item)) for item in range(3)]
    await asyncio.sleep(0)
    await batcher.idle()
    assert len(work.batches) == 3
    assert await asyncio.gather(*tasks) == [0, 2, 4]


async def test_the_next_batch_begins_in_the_step_in_which_the_one_before_ends() -> None:
    """With a detour through the loop all callers would gather in one batch, and the loop would have nothing to do."""
    ends: list[asyncio.Future[list[int]]] = []

    async def work(_items: list[int]) -> list[int]:
        ends.append(asyncio.get_running_loop().create_future())
        return await ends[-1]

    for ways in (Ways(1.0, 3, 1.0), Ways(1.0, 1, 1.0)):
        ends.clear()
        batcher = Batcher(work, ways=ways)
        tasks = [asyncio.create_task(batcher.submit(1))]
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(batcher.submit(2)))
        await asyncio.sleep(0.01)
        assert len(ends) == 1
        ends[0].set_result([1])
        await asyncio.sleep(0)
        assert len(ends) == 2
        ends[1].set_result([2])
        assert await asyncio.gather(*tasks) == [1, 2]


class Hanging:
    """Answers a batch when it is let go; remembers the batches that began."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.gates: list[asyncio.Event] = []

    async def __call__(self, items: list[int]) -> list[int]:
        gate = asyncio.Event()
        self.begun.append(items)
        self.gates.append(gate)
        await gate.wait()
        return items


async def test_a_batch_that_hangs_no_longer_holds_up_the_next() -> None:
    work = Hanging()
    batcher = Batcher(work, ways=Ways(patience=0.01, most=3, wait=60.0))
    tasks = []
    for item in range(5):
        tasks.append(asyncio.create_task(batcher.submit(item)))
        await asyncio.sleep(0.05)
    assert work.begun == [[0], [1], [2]], "three at once, and no more"
    work.gates[1].set()
    assert await tasks[1] == 1
    await asyncio.sleep(0.05)
    assert work.begun[3:] == [[3, 4]], "the way that is free is used"
    assert not tasks[0].done()
    assert not tasks[2].done()
    for gate in work.gates:
        gate.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
    await batcher.idle()


async def test_a_quick_batch_after_one_that_hung_is_again_one_at_a_time() -> None:
    work = Hanging()
    batcher = Batcher(work, ways=Ways(patience=0.01, most=3, wait=60.0))
    first = asyncio.create_task(batcher.submit(0))
    await asyncio.sleep(0.05)
    work.gates[0].set()
    await first
    rest = [asyncio.create_task(batcher.submit(item)) for item in (1, 2)]
    await asyncio.sleep(0)
    rest.append(asyncio.create_task(batcher.submit(3)))
    await asyncio.sleep(0)
    assert work.begun == [[0], [1, 2]]
    work.gates[1].set()
    await asyncio.sleep(0.005)
    work.gates[2].set()
    assert await asyncio.gather(*rest) == [1, 2, 3]


async def test_whose_turn_does_not_come_is_told_and_not_worked_on() -> None:
    work = Hanging()
    batcher = Batcher(work, ways=Ways(patience=0.01, most=2, wait=0.1))
    held = []
    for item in (0, 1):
        held.append(asyncio.create_task(batcher.submit(item)))
        await asyncio.sleep(0.05)
    late = asyncio.create_task(batcher.submit(2))
    async with asyncio.timeout(5):
        with pytest.raises(NoTurn):
            await late
    later = asyncio.create_task(batcher.submit(3))
    await asyncio.sleep(0.02)
    for gate in work.gates:
        gate.set()
    await asyncio.gather(*held)
    while len(work.begun) < 3:
        await asyncio.sleep(0.01)
    work.gates[2].set()
    assert await later == 3
    assert work.begun == [[0], [1], [3]]


async def test_one_whose_caller_has_gone_before_its_turn_is_not_worked_on() -> None:
    work = Hanging()
    batcher = Batcher(work, limit=1, ways=Ways(patience=60.0, most=2, wait=60.0))
    tasks = [asyncio.create_task(batcher.submit(item)) for item in range(3)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    work.gates[0].set()
    await asyncio.sleep(0.01)
    work.gates[1].set()
    assert await tasks[2] == 2
    assert work.begun == [[0], [2]]


async def test_a_batch_that_is_cancelled_leaves_nobody_waiting() -> None:
    """As when the loop is closed: whoever shields its wait from that would wait for ever."""

    async def work(_items: list[int]) -> list[int]:
        raise asyncio.CancelledError

    batcher = Batcher(work)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
