"""Read parked records again, on a thread of its own. Each partition read lately keeps its place (see `replay`)."""

import asyncio
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import structlog
from confluent_kafka import KafkaException

from messaging.kept import Kept
from messaging.poller import reader_config
from messaging.replay import Replay

log = structlog.get_logger(__name__)

PLACES = 6
"""Partitions that keep their place. For one more, the one used longest ago makes room."""

IDLE_SECONDS = 5.0
"""Without a wish for this long, all places are given up."""


class Rereader:
    """Fetches single offsets of a partition, in ascending order, one wish after another."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._config = reader_config(bootstrap, client_id) | {
            "enable.partition.eof": True,
            "queued.min.messages": 2000,
            "queued.max.messages.kbytes": 4096,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 20,
            "log_level": 3,
        }
        self._work: SimpleQueue[_Wish | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._replays: list[Replay] = []  # the one used last at the end
        self._spare = Replay(self._config, self._stopping)  # connected by the time it is wanted
        self._thread.start()

    async def fetch(self, topic: str, partition: int, offsets: Sequence[int]) -> dict[int, Kept]:
        """The records at these ascending offsets. One that is missing in the answer does not exist any more."""
        wish = _Wish((topic, partition), offsets, self._loop.create_future())
        self._work.put(wish)
        return await wish.answer

    async def close(self) -> None:
        """Stop the thread; wishes under way are cancelled."""
        self._stopping.set()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, 5.0)

    def _run(self) -> None:
        try:
            while (wish := self._next_wish()) is not None:
                try:
                    found = self._replay(wish.place).read(wish.place, wish.offsets)
                except KafkaException as error:
                    log.warning("reread.failed", topic=wish.place[0], partition=wish.place[1], error=str(error))
                    self._work.put(wish)
                    self._stopping.wait(0.5)
                except Exception as error:
                    # The event loop raises it: a fault of ours ends the process rather than this thread in silence.
                    self._loop.call_soon_threadsafe(_fail, wish.answer, error)
                else:
                    self._loop.call_soon_threadsafe(_answer, wish.answer, found)
                if self._stopping.is_set():
                    return
        finally:
            self._give_up()
            self._spare.close()

    def _next_wish(self) -> "_Wish | None":
        if self._replays:
            try:
                return self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                self._give_up()
        return self._work.get()

    def _replay(self, place: tuple[str, int]) -> Replay:
        at = next((replay for replay in self._replays if replay.place == place), None)
        if at is None and len(self._replays) < PLACES:
            at, self._spare = self._spare, Replay(self._config, self._stopping)
        elif at is None:
            at = self._replays.pop(0)
        else:
            self._replays.remove(at)
        self._replays.append(at)
        return at

    def _give_up(self) -> None:
        while self._replays:
            self._replays.pop().close()


class _Wish:
    __slots__ = ("answer", "offsets", "place")

    def __init__(
        self, place: tuple[str, int], offsets: Sequence[int], answer: "asyncio.Future[dict[int, Kept]]"
    ) -> None:
        self.place = place
        self.offsets = offsets
        self.answer = answer


def _fail(answer: "asyncio.Future[dict[int, Kept]]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _answer(answer: "asyncio.Future[dict[int, Kept]]", found: dict[int, Kept]) -> None:
    if not answer.done():
        answer.set_result(found)
