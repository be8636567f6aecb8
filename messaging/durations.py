"""A histogram for a hot path: an observation is one bisect and two additions, without the client's lock.

One thread observes (the event loop); a scrape on another sees every observation in full or not at all, but for the
sum, which may be one ahead. Names, buckets and labels are what `prometheus_client.Histogram` would show.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Observations:
    """One consumer's seconds. `observe` is called by one thread only."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.total += seconds
        self.counts[bisect_left(self._bounds, seconds)] += 1


class Durations(Collector):
    """A histogram with one label, `consumer`, in the client's own registry. `buckets` are upper bounds in seconds."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._buckets = tuple(buckets)
        self._bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        self._consumers: dict[str, Observations] = {}
        REGISTRY.register(self)

    def labels(self, consumer: str) -> Observations:
        """Where this consumer's durations are counted; the same one each time."""
        return self._consumers.setdefault(consumer, Observations(self._buckets))

    def describe(self) -> Iterable[Metric]:
        """For the registry: the name, without a sample."""
        return [HistogramMetricFamily(self._name, self._documentation, labels=["consumer"])]

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=["consumer"])
        for consumer, seen in list(self._consumers.items()):
            total, counts = seen.total, list(accumulate(seen.counts))
            family.add_metric([consumer], list(zip(self._bounds, counts, strict=True)), total)
        yield family
