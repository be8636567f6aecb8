"""Pure: which faults strike when. The same seed gives the same schedule, so a run can be repeated."""

from collections.abc import Sequence
from random import Random

from tests.chaos.records import Fault, Kind

TWINS = 0.15
"""Share of the faults that strike before what the one before them struck is back."""

FREEZE_SECONDS = (7.0, 14.0)
AWAY_SECONDS = (8.0, 15.0)
"""Both longer than Kafka's group waits for a silent member (6 s)."""


def plan(seed: int, kinds: Sequence[Kind], faults: int) -> list[Fault]:
    """So many faults; each kind is dealt once before any comes again."""
    if not kinds:
        raise ValueError("at least one kind of fault is needed")
    random = Random(seed)
    dealt: list[Kind] = []
    while len(dealt) < faults:
        hand = list(kinds)
        random.shuffle(hand)
        dealt += hand
    return [
        Fault(
            number=number,
            kind=kind,
            share=round(random.uniform(0.55, 0.9), 2),
            after=round(random.uniform(0.0, 0.1), 3),
            pick=random.randrange(100),
            seconds=seconds_of(kind, random),
            twin=number > 1 and random.random() < TWINS,
        )
        for number, kind in enumerate(dealt[:faults], 1)
    ]


def single(
    seed: int, kind: Kind, seconds: float | None = None, share: tuple[float, float] = (0.3, 0.6)
) -> list[Fault]:
    """One fault in the middle of a run that is handed in at once, between these two shares of it."""
    random = Random(f"{seed}/{kind}")
    drawn = seconds_of(kind, random)
    return [
        Fault(
            number=1,
            kind=kind,
            share=round(random.uniform(*share), 3),
            pick=random.randrange(100),
            seconds=drawn if seconds is None or not drawn else seconds,
        )
    ]


def seconds_of(kind: Kind, random: Random) -> float:
    """How long a fault of this kind lasts; 0 for a kill."""
    if kind == "freeze":
        return round(random.uniform(*FREEZE_SECONDS), 1)
    return round(random.uniform(*AWAY_SECONDS), 1) if kind.endswith("-away") else 0.0


def lines(faults: Sequence[Fault]) -> list[str]:
    """The schedule for people."""
    return [
        f"{fault.number:>3}  {fault.kind:<16} at {fault.share:.0%} of its wave"
        + (f" + {fault.after:g} s" if fault.after else "")
        + (f", for {fault.seconds:g} s" if fault.seconds else "")
        + (", with the one before" if fault.twin else "")
        for fault in faults
    ]
