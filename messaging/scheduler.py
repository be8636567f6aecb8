"""Who runs now: carries out what `fairness`, `lanes`, `delayed` and `gate` decide. Lives on the event loop alone.

`turns` asks for the next run and carries it out; here is who that is, and what its end means for those that wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

import structlog

from messaging import telemetry
from messaging.alarm import Alarm
from messaging.delayed import Delayed
from messaging.entries import Entry, Partition
from messaging.errors import MessagingError
from messaging.fairness import Fairness
from messaging.gate import Gate
from messaging.lanes import Lanes
from messaging.outcomes import Outcomes
from messaging.policy import Policy
from messaging.queues import Queue, Tally
from messaging.ready import Ready
from messaging.retry import PROVIDER, Decision, Pause, Wait, describe
from messaging.runs import Again, Alone, Finished, Held, Run, Runs
from messaging.turns import Turns

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
        self._loop = asyncio.get_running_loop()
        self._suspects: deque[Entry] = deque()
        self._turns = Turns(self._begin, self._run)
        self._alone = False
        self._held = False
        self._alarm = Alarm(self._woken)
        self.meters = telemetry.ConsumerMeters(consumer)
        self.lanes = lanes
        self.fairness = Fairness(policy)
        self._ready = Ready(self.fairness)
        self.delayed = Delayed()
        self.gate = Gate()
        self.stopped = False
        self.last_start = monotonic()

    def arrive(self, entry: Entry, due_in: float = 0.0) -> None:
        """A record was read. It may run in `due_in` seconds; call `dispatch` after the last of a batch."""
        if due_in > 0:
            self.delayed.add(entry, self._loop.time() + due_in, self.lanes.spare_bytes)
            self._alarm.set(due_in)
        elif self.lanes.add(entry):
            self._ready.add(entry.key)

    def admit(self, entry: Entry) -> None:
        """A record was read that may run at once, and `lanes.add_bare` left it: there is room for it."""
        self.lanes.add_whole(entry)
        self._ready.add(entry.key)

    def loaded(self, entry: Entry) -> None:
        """A parked record is back in memory."""
        if self.lanes.loaded(entry):
            self._ready.add(entry.key)

    def dispatch(self) -> None:
        """Start whatever may start now, at once or in this loop's next round."""
        if self.fairness.waiting or self._suspects:
            self._turns.go()
        if self.lanes.running_low and self.lanes.hungry and not self.stopped:
            self._refill()

    def forget_inactive(self) -> None:
        """Drop the records of revoked partitions. Their running jobs go on; `drain` waits for those."""
        for key, lost in self.lanes.drop_inactive().items():
            self._ready.remove(key, lost)
        left = [entry for entry in self._suspects if not entry.partition.active]
        self._suspects = deque(entry for entry in self._suspects if entry.partition.active)
        for entry in [*left, *self.delayed.drop_inactive()]:
            self._ready.unblock(entry.key)
        self.dispatch()

    async def drain(self, partitions: Iterable[Partition], seconds: float) -> bool:
        """Wait up to `seconds` for the work of these partitions to end. False: some goes on."""
        return await self._turns.drain(partitions, seconds)

    async def cancel_all(self) -> None:
        """Stop what still runs; each start is given back uncharged."""
        self._runs.stopping = True
        await self._turns.cancel_all()

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
            "blocked_keys": len(self._ready.blocked()),
            "held_by": self.gate.holders(),
            "tasks": len(self._turns),
        }

    def queue(self, tenant: str) -> Queue:
        """What waits and runs of one tenant, for people. One pass over everything that waits: ask now and then."""
        tally = Tally(tenant)
        for key, waiting, running in self.fairness.counts(tenant):
            tally.add(key, waiting=waiting, running=running)
        for key, waiting in [*self._ready.blocked(), *((entry.key, 1) for entry in self._suspects)]:
            tally.add(key, waiting=waiting)
        for key, parked in self.lanes.parked_by_key():
            tally.add(key, parked=parked)
        for entry in self.delayed:
            tally.add(entry.key, delayed=1)
        held = self.gate.holders() if self.gate.opens_in(self._loop.time()) > 0 else []
        return tally.queue(self._consumer, slots=self.fairness.total, in_use=self.running, held_by=held)

    def _begin(self) -> Run | None:
        """The next run, its slot taken; None when nothing may start now."""
        if self.stopped or (self._held and self._still_held()):
            return None
        if self._suspects or self._alone:
            if self._alone or self.fairness.running:
                return None
            self._alone = True
            return self._runs.prepare(self._suspects.popleft(), lent=False, alone=True)
        pick = self.fairness.pick()
        if pick is None:
            return None
        self.meters.lent += pick.lent
        entry = self.lanes.take(pick.key)
        if self.lanes.running_low and self.lanes.hungry:
            self._refill()
        return self._runs.prepare(entry, lent=pick.lent, alone=False)

    def _still_held(self) -> bool:
        shut = self.gate.opens_in(self._loop.time())
        self._held = shut > 0
        if self._held:
            self._alarm.set(shut)
        return self._held

    async def _run(self, run: Run) -> None:
        try:
            self.last_start = started = monotonic()
            await self._runs.execute(run)
            ended_at = time.time()
            self._free_slot(run, monotonic() - started)
            if run.error is None:
                self.gate.passed()
                self._outcomes.judge.passed(run)
            else:
                decision = self._outcomes.judge.decide(run)
                self._hold(decision, run.error)
                # The slot is free: the next job does not wait until this failure is written down.
                self.dispatch()
                run.verdict = await self._outcomes.conclude(run, decision)
            if run.job is not None:
                self.meters.ended[run.outcome] += 1
                self._note(run, ended_at)
            self._settle(run)
        except asyncio.CancelledError:
            # Stopped by us at the end of a drain: nobody is to take it for a crash.
            await self._outcomes.give_back(run)
            if not self._runs.stopping:
                raise RuntimeError("a run was cancelled by a stranger while its outcome was written") from None
        finally:
            self._runs.settled(run)
        self.dispatch()

    def _free_slot(self, run: Run, seconds: float) -> None:
        key = run.entry.key
        if self._ordered and not isinstance(run.verdict, Finished):
            # Until the outcome is settled, nothing else of this key may start.
            self._ready.block(key)
        if run.alone:
            self._alone = False
        else:
            self.fairness.finished(key, seconds if run.job is not None else None)
        if run.job is not None:
            self.meters.slot_seconds.observe(seconds)
            waited = run.started_at - run.entry.ready_at
            self.meters.wait_seconds.observe(waited if waited > 0.0 else 0.0)

    def _hold(self, decision: Decision, error: MessagingError) -> None:
        now = self._loop.time()
        match decision:
            case Wait(seconds=seconds):
                self.gate.wait(PROVIDER, seconds, now)
            case Pause(resource=resource, longest=longest):
                seconds = self.gate.pause(resource, now, longest)
                why = describe(error)
                log.warning("starts.held", consumer=self._consumer, resource=resource, seconds=seconds, error=why)
            case _:
                return
        self._held = True

    def _settle(self, run: Run) -> None:
        entry, verdict = run.entry, run.verdict
        finished = isinstance(verdict, Finished)
        if finished:
            # Of a revoked partition, too: its offsets are committed after the drain.
            entry.partition.offsets.finished(entry.offset)
        if finished or not entry.partition.active:
            self._ready.unblock(entry.key)
            return
        now = self._loop.time()
        match verdict:
            case Again(seconds=seconds, due=due):
                entry.due = entry.due or due
                self.delayed.add(entry, now + seconds)
                self._alarm.set(seconds)
            case Held():
                self._return(entry)
            case Alone():
                self._suspects.append(entry)
            case None:
                raise RuntimeError("a run ended without a verdict")

    def _return(self, entry: Entry) -> None:
        """Back to the front of its lane, ready to run."""
        self.lanes.put_front(entry)
        self._ready.add(entry.key)
        self._ready.unblock(entry.key)

    def _woken(self) -> None:
        now = self._loop.time()
        for item in self.delayed.due(now):
            if isinstance(item, Entry):
                item.ready_at = time.time()
                self._return(item)
            else:
                self.lanes.park(*item)
        if (next_in := self.delayed.next_in(now)) is not None:
            self._alarm.set(next_in)
        self.dispatch()
