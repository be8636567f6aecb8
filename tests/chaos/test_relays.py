"""The relay's run is judged by the promises made of it."""

import pytest

from tests.chaos import relays
from tests.messaging.leaderkills import Findings


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Findings(written=3, lost=["w0/1"]), "events: 1 lost: w0/1"),
        (Findings(written=3, invented=["w9/9"]), "events: 1 effects twice: w9/9: nobody wrote it"),
        (Findings(written=3, out_of_order=["acme:a"]), "events: 1 out of order: acme:a"),
        (Findings(written=3, recoveries=[0.4, 3.01]), "events: 1 late: the next event was out after 3.01 s"),
    ],
)
def test_a_broken_promise_is_said_in_a_line(found: Findings, said: str) -> None:
    assert relays.judge(found).broken() == [said]


def test_repeats_and_a_takeover_in_time_are_no_fault() -> None:
    judged = relays.judge(Findings(written=3, recoveries=[0.4, 2.99], repeats=2))
    assert judged.broken() == []
    assert (judged.ended, judged.in_all["takeover"].seconds) == (3, 2.99)
