"""What the bench says: a figure beside its bare loop's, over rounds, and what was promised of it. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from loadtest.figures import percentile as nearest_rank

Pair = tuple[float, float]
"""What one round measured: the part's value, and its bare loop's."""

Round = Mapping[str, Pair]
"""One round of a measurement, by the key of the row."""


@dataclass(frozen=True, slots=True)
class Promise:
    """At least or at most `limit`, of the value (in the row's unit) or of the ratio."""

    of: Literal["value", "ratio"]
    least: bool
    limit: float

    def held_by(self, figure: "Figure") -> bool:
        """Whether the figure keeps it. What is not a number keeps nothing."""
        measured = figure.value if self.of == "value" else figure.ratio
        return measured >= self.limit if self.least else measured <= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured, in words. `bare` names the loop beside it."""

    key: str
    name: str
    unit: str
    bare: str
    promise: Promise | None = None

    @property
    def promised(self) -> str:
        """The promise in words; empty without one."""
        if self.promise is None:
            return ""
        sign = ">=" if self.promise.least else "<="
        if self.promise.of == "ratio":
            return f"ratio {sign} {self.promise.limit:g}"
        return f"{sign} {self.promise.limit:,g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A row with what its rounds measured; there is at least one. Medians, so that one bad round decides nothing."""

    row: Row
    rounds: tuple[Pair, ...]

    @property
    def value(self) -> float:
        return median(value for value, _ in self.rounds)

    @property
    def bare(self) -> float:
        return median(bare for _, bare in self.rounds)

    @property
    def ratio(self) -> float:
        """Value over bare within a round, the median of all: a machine that is busy for a while shifts both."""
        return median(value / bare if bare else math.nan for value, bare in self.rounds)

    @property
    def kept(self) -> bool | None:
        """Whether its promise is kept; None when nothing was promised."""
        return None if self.row.promise is None else self.row.promise.held_by(self)


def at_least(limit: float, *, of: Literal["value", "ratio"] = "value") -> Promise:
    return Promise(of, True, limit)


def at_most(limit: float, *, of: Literal["value", "ratio"] = "value") -> Promise:
    return Promise(of, False, limit)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (over 0, up to 1) of all do not exceed. Raises ValueError without values."""
    found = nearest_rank(values, share)
    if found is None:
        raise ValueError("nothing was measured")
    return found


def middle_and_slow(key: str, values: Sequence[float], bares: Sequence[float]) -> Round:
    """The rows `<key>.p50` and `<key>.p99` of one round's single measurements."""
    return {
        f"{key}.{name}": (percentile(values, share), percentile(bares, share))
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def missed(figures: Sequence[Figure]) -> list[Figure]:
    """Those whose promise is not kept."""
    return [figure for figure in figures if figure.kept is False]
