"""Single requests in batches: order, size, one batch at a time, failures, and callers that went away."""

import asyncio

import pytest

from messaging.batcher import Batcher


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
