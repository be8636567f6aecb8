"""What the bench makes of its rounds: medians, ratios, promises, the table and the JSON."""

import asyncio
import json
import math
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtest.bench import pace, table
from loadtest.bench.figures import Figure, Row, at_least, at_most, middle_and_slow, missed, percentile
from loadtest.bench.sizes import Sizes


def figure(promise: object = None, rounds: tuple[tuple[float, float], ...] = ((10.0, 40.0),)) -> Figure:
    return Figure(Row("part", "the part", "ms", "a bare loop", promise), rounds)  # type: ignore[arg-type]


def test_a_percentile_is_one_of_the_values() -> None:
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1.0))
def test_so_many_values_lie_at_or_below_a_percentile(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_one_bad_round_decides_nothing() -> None:
    assert figure(rounds=((10, 40), (11, 44), (900, 45))).value == 11
    assert figure(rounds=((10, 40), (11, 44), (900, 45))).bare == 44
    assert figure(rounds=((10, 40), (11, 44), (900, 45))).ratio == 0.25


def test_the_ratio_is_taken_within_a_round_so_that_a_busy_machine_shifts_both() -> None:
    busy_in_the_middle = figure(rounds=((10, 20), (30, 60), (9, 18)))
    assert busy_in_the_middle.ratio == 0.5


@pytest.mark.parametrize(
    ("promise", "kept"),
    [
        (at_most(10), True),
        (at_most(9.9), False),
        (at_least(10), True),
        (at_least(10.1), False),
        (at_least(0.25, of="ratio"), True),
        (at_least(0.26, of="ratio"), False),
        (at_most(0.24, of="ratio"), False),
        (None, None),
    ],
)
def test_a_promise_is_of_the_value_or_of_the_ratio(promise: object, kept: bool | None) -> None:
    assert figure(promise).kept is kept
    assert bool(missed([figure(promise)])) is (kept is False)


@pytest.mark.parametrize("promise", [at_least(0.1, of="ratio"), at_most(0.1, of="ratio")])
def test_without_a_bare_value_no_ratio_is_kept(promise: object) -> None:
    assert math.isnan(figure(promise, ((10, 0),)).ratio)
    assert figure(promise, ((10, 0),)).kept is False


def test_a_missed_promise_is_told_with_both_numbers() -> None:
    assert table.told(figure(at_most(2.5))) == "the part: 10.0 ms, ratio 0.250; promised <= 2.5 ms"
    assert figure(at_least(3000)).row.promised == ">= 3,000 ms"
    assert figure(at_least(0.125, of="ratio")).row.promised == "ratio >= 0.125"


def test_middle_and_slow_are_two_rows_of_value_and_bare() -> None:
    assert middle_and_slow("x", [1, 2, 3], [4, 5, 6]) == {"x.p50": (2, 5), "x.p99": (3, 6)}


def test_the_table_says_which_promises_are_kept() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table.table([figure(at_most(10)), figure(at_most(9)), figure()], Sizes()))
    lines = [line.split() for line in shown.get().splitlines() if "the part" in line]
    assert [line[-1] for line in lines] == ["kept", "missed", "0.250"]


def test_ratios_are_shown_as_their_limits_are() -> None:
    assert [table.ratio(value) for value in (0.62, 2.0, 1 / 13)] == ["0.620", "2.000", "0.077"]
    assert [table.number(value) for value in (1.234, 12.34, 1234.5)] == ["1.23", "12.3", "1,234"]


def test_the_json_holds_every_round(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    figures = [figure(at_most(9), ((10, 40), (20, 40))), figure()]
    table.keep(table.as_json(figures, Sizes(), started_at="2026-01-01T00:00:00Z", seconds=1.23), path)
    kept = json.loads(path.read_text())
    first, second = kept["figures"]
    assert first["rounds"] == [{"value": 10, "bare": 40}, {"value": 20, "bare": 40}]
    assert (first["value"], first["bare"], first["ratio"], first["kept"]) == (15, 40, 0.375, False)
    assert (second["promised"], second["kept"]) == (None, None)
    assert kept["sizes"]["jobs"] == Sizes().jobs
    assert kept["machine"]["cpus"] > 0
    assert [item.name for item in path.parent.iterdir()] == ["bench.json"]


def test_beats_are_kept_and_a_missed_one_is_made_up_for() -> None:
    began, at = time.monotonic(), []
    for number in pace.steadily(5, 100, threading.Event()):
        at.append(time.monotonic() - began)
        if number == 1:
            time.sleep(0.05)
    assert all(when >= number / 100 - 0.001 for number, when in enumerate(at))
    assert len(at) == 5


def test_the_warm_up_is_sent_and_not_counted() -> None:
    arrived: dict[int, float] = {}

    def send(number: int, now: object) -> None:
        now()  # type: ignore[operator]
        arrived[number] = time.monotonic() + (100.0 if number < pace.WARM_UP else 0.001)

    stop = threading.Event()
    taken = pace.milliseconds(pace.send_steadily(send, 5, 10_000, stop), arrived, stop)
    assert len(taken) == 5
    assert max(taken) < 50_000


async def test_work_on_a_thread_ends_before_its_cancellation_does() -> None:
    ended = threading.Event()

    def work(stop: threading.Event) -> None:
        try:
            pace.wait_until(lambda: False, "never", stop)
        finally:
            time.sleep(0.05)
            ended.set()

    task = asyncio.ensure_future(pace.apart(work))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
