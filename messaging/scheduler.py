"""Who runs now: carries out what `fairness`, `lanes`, `delayed` and `gate` decide. Lives on the event loop alone."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

import structlog

from messaging import telemetry
from messaging.delayed import Delayed
from messaging.fairness import Fairness
from messaging.gate import Gate
from messaging.lanes import Entry, Lanes, Partition
from messaging.message import Key
from messaging.outcomes import Outcomes
from messaging.policy import Policy
from messaging.queues import Queue, Tally
from messaging.runs import Again, Alone, Finished, Held, Run, Runs

log = structlog.get_logger(__name__)

Note = Callable[[Run, float], None]


class Scheduler:
    """Owns the waiting and running jobs of one consumer process. `note(run, ended_at)` hears of every run,
    `refill()` when a lane runs low and has parked records.
    """

    def __init__(
        self,
        consumer: str,
        policy: Policy,
        lanes: Lanes,
        runs: Runs,
        outcomes: Outcomes,
        note: Note,
        refill: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._ordered = policy.ordered
        self._runs = runs
        self._outcomes = outcomes
        self._note = note
        self._refill = refill
        self._meters = telemetry.ConsumerMeters(consumer)
        self._loop = asyncio.get_running_loop()
        self._suspects: deque[Entry] = deque()
        self._blocked: dict[Key, int] = {}
        self._tasks: dict[asyncio.Task[None], Partition] = {}
        self._alone = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self.lanes = lanes
        self.fairness = Fairness(policy)
        self.delayed = Delayed()
        self.gate = Gate()
        self.stopped = False
        self.last_start = self._loop.time()

    def arrive(self, entry: Entry, due_in: float = 0.0) -> None:
        """A record was read. It may run in `due_in` seconds; call `dispatch` after the last of a batch."""
        if due_in > 0:
            self.delayed.add(entry, self._loop.time() + due_in)
            self._wake_in(due_in)
        elif self.lanes.add(entry):
            self._ready(entry.key)

    def loaded(self, entry: Entry) -> None:
        """A parked record is back in memory."""
        if self.lanes.loaded(entry):
            self._ready(entry.key)

    def dispatch(self) -> None:
        """Start whatever may start now."""
        if self.stopped:
            return
        shut = self.gate.opens_in(self._loop.time())
        if shut > 0:
            self._wake_in(shut)
            return
        if self._suspects or self._alone:
            if not self._alone and not self.fairness.running:
                self._alone = True
                self._start(self._suspects.popleft(), lent=False, alone=True)
            return
        while (pick := self.fairness.pick()) is not None:
            self._start(self.lanes.take(pick.key), lent=pick.lent, alone=False)
        if self.lanes.hungry:
            self._refill()

    def forget_inactive(self) -> None:
        """Drop the records of revoked partitions. Their running jobs go on; `drain` waits for those."""
        for key, lost in self.lanes.drop_inactive().items():
            if key in self._blocked:
                self._blocked[key] -= lost
            else:
                self.fairness.remove(key, lost)
        left = [entry for entry in self._suspects if not entry.partition.active]
        self._suspects = deque(entry for entry in self._suspects if entry.partition.active)
        for entry in [*left, *self.delayed.drop_inactive()]:
            self._unblock(entry.key)
        self.dispatch()

    async def drain(self, partitions: Iterable[Partition], seconds: float) -> bool:
        """Wait up to `seconds` for the work of these partitions to end. False: some goes on."""
        wanted = set(partitions)
        deadline = self._loop.time() + seconds
        while tasks := [task for task, partition in self._tasks.items() if partition in wanted]:
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            await asyncio.wait(tasks, timeout=left)
        return True

    async def cancel_all(self) -> None:
        """Stop what still runs; each start is given back uncharged."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def running(self) -> int:
        """Slots in use."""
        return self.fairness.running + self._alone

    @property
    def may_start(self) -> bool:
        """Whether work waits, a slot is free and nothing holds it: if so, something should be starting."""
        held = self.stopped or self.gate.opens_in(self._loop.time()) > 0 or self._alone or bool(self._suspects)
        return not held and self.fairness.waiting > 0 and self.fairness.free_slots > 0

    def describe(self) -> dict[str, object]:
        """The state in numbers, for a log line."""
        return {
            "waiting": self.fairness.waiting,
            "running": self.running,
            "parked": self.lanes.parked,
            "delayed": len(self.delayed),
            "suspects": len(self._suspects),
            "blocked_keys": len(self._blocked),
            "held_by": self.gate.holders(),
            "tasks": len(self._tasks),
        }

    def queue(self, tenant: str) -> Queue:
        """What waits and runs of one tenant, for people. One pass over everything that waits: ask now and then."""
        tally = Tally(tenant)
        for key, waiting, running in self.fairness.counts(tenant):
            if sender := tally.of(key):
                sender.waiting += waiting
                sender.running += running
        for key, waiting in [*self._blocked.items(), *((entry.key, 1) for entry in self._suspects)]:
            if sender := tally.of(key):
                sender.waiting += waiting
        for key, parked in self.lanes.parked_by_key():
            if sender := tally.of(key):
                sender.parked += parked
        for entry in self.delayed:
            if sender := tally.of(entry.key):
                sender.delayed += 1
        held = self.gate.holders() if self.gate.opens_in(self._loop.time()) > 0 else []
        return tally.queue(self._consumer, slots=self.fairness.total, in_use=self.running, held_by=held)

    def _start(self, entry: Entry, *, lent: bool, alone: bool) -> None:
        self.last_start = self._loop.time()
        if lent:
            self._meters.lent.inc()
        run = self._runs.prepare(entry, lent=lent, alone=alone)
        task = self._loop.create_task(self._run(run))
        self._tasks[task] = entry.partition
        task.add_done_callback(self._ended)

    async def _run(self, run: Run) -> None:
        try:
            await self._execute_and_settle(run)
        except asyncio.CancelledError:
            # Stopped by us at the end of a drain: nobody is to take it for a crash.
            await self._outcomes.give_back(run)
        finally:
            self._runs.settled(run)
        self.dispatch()

    async def _execute_and_settle(self, run: Run) -> None:
        started = self._loop.time()
        await self._runs.execute(run)
        ended_at = time.time()
        self._free_slot(run, self._loop.time() - started)
        if run.error is None:
            self.gate.passed()
        else:
            # The slot is free: the next job does not wait until this failure is written down.
            self.dispatch()
            run.verdict = await self._outcomes.conclude(run)
        if run.job is not None:
            self._meters.outcomes[run.outcome].inc()
            self._note(run, ended_at)
        self._settle(run)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _free_slot(self, run: Run, seconds: float) -> None:
        key = run.entry.key
        if self._ordered and not isinstance(run.verdict, Finished) and key not in self._blocked:
            # Until the outcome is settled, nothing else of this key may start.
            waiting = self.fairness.waiting_of(key)
            self._blocked[key] = waiting
            if waiting:
                self.fairness.remove(key, waiting)
        if run.alone:
            self._alone = False
        else:
            self.fairness.finished(key, seconds if run.job is not None else None)
        if run.job is not None:
            self._meters.slot_seconds.observe(seconds)
            self._meters.wait_seconds.observe(max(0.0, run.started_at - run.entry.ready_at))

    def _settle(self, run: Run) -> None:
        entry, now = run.entry, self._loop.time()
        if not entry.partition.active:
            self._unblock(entry.key)
            return
        match run.verdict:
            case Finished():
                entry.partition.offsets.finished(entry.offset)
                self._unblock(entry.key)
            case Again(seconds=seconds, due=due):
                entry.due = entry.due or due
                self.delayed.add(entry, now + seconds)
                self._wake_in(seconds)
            case Held(resource=resource, seconds=seconds):
                if seconds is None:
                    seconds = self.gate.pause(resource, now)
                    log.warning("starts.held", consumer=self._consumer, resource=resource, seconds=seconds)
                else:
                    self.gate.wait(resource, seconds, now)
                self._return(entry)
            case Alone():
                self._suspects.append(entry)
            case None:
                raise RuntimeError("a run ended without a verdict")

    def _return(self, entry: Entry) -> None:
        """Back to the front of its lane, ready to run."""
        self.lanes.put_front(entry)
        self._ready(entry.key)
        self._unblock(entry.key)

    def _ready(self, key: Key) -> None:
        if key in self._blocked:
            self._blocked[key] += 1
        else:
            self.fairness.add(key)

    def _unblock(self, key: Key) -> None:
        waiting = self._blocked.pop(key, 0)
        if waiting:
            self.fairness.add(key, waiting)

    def _wake_in(self, seconds: float) -> None:
        at = self._loop.time() + seconds
        if self._wake is not None:
            if self._wake_at <= at:
                return
            self._wake.cancel()
        self._wake_at = at
        self._wake = self._loop.call_later(seconds, self._woken)

    def _woken(self) -> None:
        self._wake = None
        now = self._loop.time()
        for entry in self.delayed.due(now):
            entry.ready_at = time.time()
            self._return(entry)
        next_in = self.delayed.next_in(now)
        if next_in is not None:
            self._wake_in(next_in)
        self.dispatch()
