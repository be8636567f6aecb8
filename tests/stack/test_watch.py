"""When a watch gives its child up, with questions answered by the test."""

import asyncio
from dataclasses import dataclass, field

import pytest

from stack import watch
from stack.child import Child, NotReady
from stack.status import Phase
from stack.watch import Watch


@dataclass
class Answers:
    """What the child answers now, and the phases told so far."""

    ready: bool = True
    lives: bool = True
    hangs: bool = False
    excused: bool = False
    stopping: bool = False
    phases: list[Phase] = field(default_factory=list)

    async def probe(self) -> None:
        if not self.ready:
            raise NotReady("no database")

    async def alive(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if not self.lives:
            raise NotReady("the relay is dead")

    async def enter(self, phase: Phase, _message: str) -> None:
        if self.phases[-1:] != [phase]:
            self.phases.append(phase)

    def watched(self, *, asks_alive: bool, ready_within: float = 5.0) -> "asyncio.Task[str]":
        child = Child(
            "base",
            ("true",),
            probe=self.probe,
            alive=self.alive if asks_alive else None,
            patience=0.3,
            ready_within=ready_within,
        )
        watching = Watch(child, self.enter, lambda: self.stopping, lambda: self.excused)
        return asyncio.create_task(watching.until_given_up())

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(5):
            while self.phases[-1:] != [phase]:
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "READY_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "STARTING_PROBE_SECONDS", 0.05)


async def goes_on(watching: "asyncio.Task[str]", seconds: float) -> None:
    done, _ = await asyncio.wait([watching], timeout=seconds)
    assert not done


async def test_a_child_that_lives_is_kept_however_long_it_is_not_ready() -> None:
    answers = Answers()
    watching = answers.watched(asks_alive=True)
    await answers.until(Phase.READY)
    answers.ready = False
    await goes_on(watching, 1.0)
    assert answers.phases == [Phase.READY, Phase.SILENT]
    answers.lives = False
    assert await asyncio.wait_for(watching, 5) == "silent for 0.3 s (the relay is dead)"


async def test_a_child_that_lives_but_has_not_been_ready_yet_is_kept_too() -> None:
    answers = Answers(ready=False)
    watching = answers.watched(asks_alive=True, ready_within=0.2)
    await goes_on(watching, 0.8)
    assert answers.phases == [Phase.STARTING]
    watching.cancel()


async def test_a_child_that_never_comes_up_is_given_up_after_its_time() -> None:
    answers = Answers(ready=False, lives=False)
    watching = answers.watched(asks_alive=True, ready_within=0.2)
    assert await asyncio.wait_for(watching, 5) == "not ready within 0.2 s (the relay is dead)"


async def test_without_a_question_of_its_own_the_probe_decides_unless_what_it_needs_is_away() -> None:
    answers = Answers()
    watching = answers.watched(asks_alive=False)
    await answers.until(Phase.READY)
    answers.ready, answers.excused = False, True
    await goes_on(watching, 1.0)
    answers.excused = False
    assert await asyncio.wait_for(watching, 5) == "silent for 0.3 s (no database)"


async def test_a_child_that_is_being_stopped_is_not_given_up() -> None:
    answers = Answers()
    watching = answers.watched(asks_alive=True)
    await answers.until(Phase.READY)
    answers.ready, answers.lives, answers.stopping = False, False, True
    await goes_on(watching, 1.0)
    watching.cancel()


async def test_a_question_that_hangs_counts_as_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PROBE_TIMEOUT_SECONDS", 0.1)
    answers = Answers()
    watching = answers.watched(asks_alive=True)
    await answers.until(Phase.READY)
    answers.ready, answers.hangs = False, True
    assert await asyncio.wait_for(watching, 5) == "silent for 0.3 s (TimeoutError)"
