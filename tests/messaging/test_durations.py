"""The quick histogram shows what the client's own would."""

import random

from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from messaging import telemetry
from messaging.durations import Durations

BUCKETS = (0.005, 0.1, 1, 60)


def test_its_samples_are_those_of_the_clients_histogram() -> None:
    registry, rng = CollectorRegistry(), random.Random(1)
    theirs = Histogram("workbot_test_seconds", "For the test", ["consumer"], buckets=BUCKETS, registry=registry)
    ours = Durations("workbot_test_seconds", "For the test", BUCKETS)
    try:
        for consumer in ("a", "b"):
            for seconds in [0.0, 0.005, 0.1, 60.0, 61.0, *(rng.expovariate(1) for _ in range(500))]:
                theirs.labels(consumer).observe(seconds)
                ours.labels(consumer).observe(seconds)
        (expected,) = registry.collect()
        (shown,) = ours.collect()
        assert (shown.name, shown.documentation, shown.type) == (expected.name, expected.documentation, expected.type)
        assert shown.samples == [sample for sample in expected.samples if not sample.name.endswith("_created")]
        assert REGISTRY.get_sample_value("workbot_test_seconds_count", {"consumer": "a"}) == 505
    finally:
        REGISTRY.unregister(ours)


def test_what_a_consumer_counts_is_shown_once_flushed_and_counted_once() -> None:
    meters, labels = telemetry.ConsumerMeters("test-meters"), {"consumer": "test-meters"}

    def shown(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(name, {**labels, **more})

    assert shown("workbot_jobs_finished_total", outcome="dead") == 0
    meters.ended["done"] += 3
    meters.lent += 2
    for _ in range(2):
        meters.flush()
        assert shown("workbot_jobs_finished_total", outcome="done") == 3
        assert shown("workbot_starts_lent_total") == 2
