"""kill -9 of the relay's leader, again and again, while writers write: what was lost, out of order, and how late."""

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

from tests.fixtures.outbox import Follower, Service, relay_process, wait_for, write

RELAYS = 3
"""One leads, two stand by."""
WRITERS = 4
KEYS = 5
"""Of each writer."""
PAUSE_SECONDS = 0.01
"""Of a writer between two events: together a few hundred a second."""


@dataclass
class Findings:
    """What became of the events. `recoveries`: after each kill, seconds until an event written after it was out."""

    written: int = 0
    recoveries: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    repeats: int = 0


class Writer:
    """Writes numbered events, each a transaction, in turns under its own keys; notes when each was committed."""

    def __init__(self, service: Service, topic: str, name: str) -> None:
        self.events: list[tuple[str, str, float]] = []
        self._service, self._topic, self._name = service, topic, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._service.connect() as connection:
            for number in count():
                if self._stop.wait(PAUSE_SECONDS):
                    return
                key, subject = f"acme:{self._name}-{number % KEYS}", f"{self._name}/{number}"
                write(connection, self._topic, subject, key=key)
                self.events.append((key, subject, time.monotonic()))


def strike(
    service: Service,
    bootstrap: str,
    topic: str,
    *,
    kills: int,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
) -> Findings:
    """Kill the leader so many times. `topic` has one partition and is empty."""
    rng, found = random.Random(seed), Findings()
    with ExitStack() as stack:
        follower = stack.enter_context(Follower(bootstrap, topic))
        relays = [stack.enter_context(relay_process(service, bootstrap)) for _ in range(RELAYS)]
        stack.enter_context(following(follower))
        writers = [Writer(service, topic, f"w{number}") for number in range(WRITERS)]
        try:
            for number in range(kills):
                # The others must have come up, or their start-up is what is measured.
                wait_for(lambda: standbys(service) == RELAYS - 1 and leading_process(service) is not None)
                seen = len(follower.records)
                wait_for(lambda seen=seen: len(follower.records) > seen + 20)  # type: ignore[misc]
                time.sleep(rng.uniform(0, 0.5))
                victim = kill_leader(service, relays)
                killed_at = time.monotonic()
                relays.append(stack.enter_context(relay_process(service, bootstrap)))
                found.recoveries.append(recovery(writers, follower, killed_at))
                say(f"{number + 1}. pid {victim}: the next event was out after {found.recoveries[-1]:.2f} s")
        finally:
            for writer in writers:
                writer.stop()
        wanted = {subject for writer in writers for _, subject, _ in writer.events}
        wait_for(lambda: wanted <= set(follower.subjects()))
    audit(writers, follower, found)
    return found


def kill_leader(service: Service, relays: "list[subprocess.Popen[bytes]]") -> int:
    """SIGKILL to whoever leads now; its process id."""
    (victim,) = [relay for relay in relays if relay.pid == leading_process(service)]
    victim.kill()
    victim.wait()
    relays.remove(victim)
    return victim.pid


def recovery(writers: list[Writer], follower: Follower, killed_at: float) -> float:
    """Seconds from the kill until an event that was committed after it has come out."""
    seen, after, places = len(follower.records), set[str](), dict.fromkeys(range(len(writers)), 0)
    while True:
        records = follower.records[seen:]
        for place, writer in enumerate(writers):
            fresh = writer.events[places[place] :]
            places[place] += len(fresh)
            after |= {subject for _, subject, at in fresh if at > killed_at}
        out = [record.at for record in records if record.subject in after]
        if out:
            return min(out) - killed_at
        assert time.monotonic() < killed_at + 60, "nothing comes out any more"
        time.sleep(0.01)


def audit(writers: list[Writer], follower: Follower, found: Findings) -> None:
    """Compare what was committed with what came."""
    wrote: dict[str, list[str]] = {}
    for writer in writers:
        for key, subject, _ in writer.events:
            wrote.setdefault(key, []).append(subject)
    came: dict[str, list[str]] = {}
    for record in follower.records:
        came.setdefault(record.key, []).append(record.subject)
    found.written = sum(map(len, wrote.values()))
    found.repeats = len(follower.records) - len(set(follower.subjects()))
    for key in wrote.keys() | came.keys():
        committed, firsts = wrote.get(key, []), list(dict.fromkeys(came.get(key, [])))
        found.lost += sorted(set(committed) - set(firsts))
        found.invented += sorted(set(firsts) - set(committed))
        if [subject for subject in committed if subject in set(firsts)] != firsts:
            found.out_of_order.append(key)


@contextmanager
def following(follower: Follower) -> Iterator[None]:
    """Read all the time, on a thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            follower.poll(0.05)

    thread = threading.Thread(target=run, name="follower")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def leading_process(service: Service) -> int | None:
    """The process id of whoever has beaten within the last second."""
    found = service.execute(
        "SELECT process FROM relay_leader WHERE beat_at > clock_timestamp() - interval '1 second'"
    )
    return int(found[0][0].rsplit(":", 1)[1]) if found else None


def standbys(service: Service) -> int:
    """How many relays are connected and do not lead."""
    ((connected,),) = service.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'relay-%'"
    )
    return int(connected) - 1
