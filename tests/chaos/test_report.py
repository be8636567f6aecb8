"""What the report says of one strike."""

import pytest

from tests.chaos import report
from tests.chaos.records import Fault, Kind, Strike


@pytest.mark.parametrize(
    ("kind", "seconds", "back_at", "said"),
    [
        ("worker", 0.0, 107.8, "back 7.8 s after the strike"),
        ("broker-away", 13.3, 121.1, "held for 13.3 s, then back 7.8 s after being let go"),
        ("freeze", 5.0, 105.0, "held for 5 s, then back 0.0 s after being let go"),
        ("worker", 0.0, None, "not back"),
    ],
)
def test_it_says_from_when_a_return_counts(kind: Kind, seconds: float, back_at: float | None, said: str) -> None:
    fault = Fault(1, kind, 0.5, seconds=seconds)
    strike = Strike(fault, "kafka", 7, 100.0, 100.0 + seconds)
    strike.back_at = back_at
    assert report.line(strike).endswith(f"pid 7        {said}")
