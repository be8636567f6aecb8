"""What the queue promises, held against the figures of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.figures import Figures, ratio
from loadtest.scenario import Scenario
from messaging.policy import Backoff

STRICT_GAIN = 1.05
"""How much faster the quiet senders may be under the strict cap than with lending (ratio of their times)."""

JOBS_A_SLOT = 10


def fewest(total: int) -> int:
    """From how many documents on times are promised: fewer on `total` slots are mostly the start and the end."""
    return JOBS_A_SLOT * total


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: what was promised in words, what was measured, and whether it held."""

    name: str
    promised: str
    measured: float | int | None
    held: bool

    @property
    def of_time(self) -> bool:
        """Whether it depends on the machine: a limit does, a number that has to be met does not."""
        return self.promised.startswith(("<", ">"))


def check(
    scenario: Scenario, figures: Figures, lending: Figures | None = None, *, attempts: int = Backoff().attempts
) -> list[Promise]:
    """Every promise that applies. `lending` is an earlier run on the same terms with lending, for a run without it.

    Times are promised of a provider that works: a retry's wait is long and says nothing of the scheduler. With one
    that fails, `attempts` is how often a document must have been tried before it died. A figure that could not be
    measured counts as a broken promise. A run of fewer than `fewest` documents is held to what does not depend on its
    size.
    """
    dead, caps, api = figures["dead_letters"], figures["caps"], figures["api_ms"]
    found = [
        _exactly("lost", 0, figures["lost"]),
        _exactly("duplicate_effects", 0, figures["duplicate_effects"]),
        _exactly("dead_letters.total", dead["expected"], dead["total"]),
        _exactly("dead_letters.unexpected", 0, dead["unexpected"]),
        _exactly("dead_letters.missing", 0, dead["missing"]),
        _exactly("caps.violations", 0, caps["violations"]),
    ]
    if scenario.faulty:
        return found + _of_failures(figures["retries"], attempts)
    if scenario.broken:
        found.append(_exactly("dead_letters.max_attempts", 1, dead["max_attempts"]))
    found.append(_exactly("api_ms.errors", 0, api["errors"]))
    if scenario.documents < fewest(scenario.total):
        return found
    found.append(_at_most("overhead", 1.10, figures["overhead"]))
    if scenario.lend:
        if scenario.quiet:
            found.append(_at_most("ratios.quiet_to_ideal", 1.05, figures["ratios"]["quiet_to_ideal"]))
            found.append(_at_most("ratios.quiet_done", 1.10, figures["ratios"]["quiet_done"]))
            measured = figures["measured"]
            found.append(
                _at_most("first start, s", measured["longest_job_s"] or 0.0, measured["quiet_first_start_s"])
            )
        found.append(_at_most("ratios.all_done", 1.05, figures["ratios"]["all_done"]))
        found.append(_at_least("slots_busy", 0.95, figures["slots_busy"]))
    elif lending is not None:
        found.append(_at_most("quiet senders' gain by the strict cap", STRICT_GAIN, strict_gain(figures, lending)))
    found.append(_at_most("api_ms.p99", 25.0, api["p99"]))
    return found


def _of_failures(retries: Mapping[str, Any], attempts: int) -> list[Promise]:
    found = [
        _exactly("retries.charged_waits", 0, retries["charged_waits"]),
        _exactly("retries.early_starts", 0, retries["early_starts"]),
    ]
    if retries["dead_attempts"]["most"] is not None:
        found += [
            _exactly(f"retries.dead_attempts.{end}", attempts, retries["dead_attempts"][end])
            for end in ("fewest", "most")
        ]
    if retries["waits"]:
        found.append(_at_most("retries.jitter_distance", retries["jitter_limit"], retries["jitter_distance"]))
    return found


def strict_gain(strict: Figures, lending: Figures) -> float | None:
    """Quiet senders' time with lending over that under the strict cap: 1.05 means 5 % faster without lending."""
    return ratio(lending["measured"]["quiet_done_s"], strict["measured"]["quiet_done_s"])


def _exactly(name: str, limit: int, measured: int | None) -> Promise:
    return Promise(name, f"{limit}", measured, measured == limit)


def _at_most(name: str, limit: float, measured: float | None) -> Promise:
    return _compared(name, f"<= {limit:g}", measured, lambda value: value <= limit)


def _at_least(name: str, limit: float, measured: float | None) -> Promise:
    return _compared(name, f">= {limit:g}", measured, lambda value: value >= limit)


def _compared(name: str, promised: str, measured: float | None, holds: Callable[[float], bool]) -> Promise:
    return Promise(name, promised, measured, measured is not None and holds(measured))
