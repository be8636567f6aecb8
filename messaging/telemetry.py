"""What a process says about itself: structured logs, metrics from one list, and the trace it belongs to."""

import logging
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import structlog
from prometheus_client import Counter, Gauge, Histogram

from messaging.durations import Durations
from messaging.settings import ProcessSettings

# Every metric of the layer. A name exists here or nowhere; label values stay few (never a sender or an id).

JOBS_FINISHED = Counter("workbot_jobs_finished_total", "Runs that ended, by outcome", ["consumer", "outcome"])
JOB_SECONDS = Durations(
    "workbot_job_slot_seconds", "Seconds a job held its slot", (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 15, 60, 300)
)
JOB_WAIT_SECONDS = Durations(
    "workbot_job_wait_seconds", "Seconds from ready to started", (0.005, 0.02, 0.1, 0.5, 1, 5, 30, 120, 600, 3600)
)
SLOTS_RUNNING = Gauge("workbot_slots_running", "Slots in use", ["consumer"])
SLOTS_TOTAL = Gauge("workbot_slots_total", "Slots this process may use", ["consumer"])
JOBS_WAITING = Gauge("workbot_jobs_waiting", "Jobs read and ready, not started", ["consumer"])
JOBS_PARKED = Gauge("workbot_jobs_parked", "Jobs known by offset only, read again when due", ["consumer"])
JOBS_DELAYED = Gauge("workbot_jobs_delayed", "Jobs that wait for their retry time", ["consumer"])
STARTS_LENT = Counter("workbot_starts_lent_total", "Starts above the guarantee, on an idle slot", ["consumer"])
RETRIES = Counter("workbot_retries_total", "Failures that will be tried again", ["consumer", "error"])
DEAD_LETTERS = Counter("workbot_dead_letters_total", "Jobs set aside", ["consumer", "reason"])
FENCED = Counter("workbot_fenced_total", "Runs whose effects were refused: another run owns the job", ["consumer"])
ATTEMPTS_DROPPED = Counter(
    "workbot_attempts_dropped_total", "Rows of the attempts table that could not be written", ["consumer"]
)
STALLS = Counter("workbot_stalls_total", "Times the watchdog found work, free slots and no start", ["consumer"])
CONSUMER_LAG = Gauge("workbot_consumer_lag", "Records behind the end", ["consumer", "topic", "partition"])
PAYLOAD_BYTES = Gauge("workbot_consumer_payload_bytes", "Bytes of waiting payloads in memory", ["consumer"])
CONSUMER_PAUSED = Gauge("workbot_consumer_paused", "1 while an outage or a breaker holds starts", ["consumer"])

RELAY_PUBLISHED = Counter("workbot_relay_published_total", "Outbox rows confirmed by Kafka", ["relay"])
RELAY_REFUSED = Counter("workbot_relay_refused_total", "Outbox rows Kafka refused, set aside", ["relay"])
RELAY_LEADER = Gauge("workbot_relay_leader", "1 on the process that leads this relay", ["relay"])
RELAY_BACKLOG = Gauge("workbot_relay_backlog", "Outbox rows committed and not yet confirmed", ["relay"])
RELAY_OLDEST_SECONDS = Gauge("workbot_relay_oldest_seconds", "Age of the oldest waiting outbox row", ["relay"])
RELAY_TAKEOVERS = Counter("workbot_relay_takeovers_total", "Leaders replaced because frozen", ["relay"])
RELAY_OUTAGES = Counter("workbot_relay_outages_total", "Times a server was away for the relay", ["relay", "resource"])
OLDEST_WRITER_SECONDS = Gauge("workbot_oldest_writer_seconds", "Age of the cluster's oldest open writer", ["relay"])

LETTERS_STORED = Counter("workbot_letters_stored_total", "Dead letters written to the table")
LETTERS_SENT_BACK = Counter("workbot_letters_sent_back_total", "Dead letters that Kafka has taken back")
LETTERS_UNOWNED = Gauge("workbot_letters_unowned", "Open dead letters that no tenant owns", ["source"])
PROJECTOR_OUTAGES = Counter(
    "workbot_projector_outages_total", "Times a server was away for the dead-letter projector", ["resource"]
)

EVENTS_COUNTED = Counter("workbot_events_counted_total", "Events counted by analytics", ["consumer"])
EVENTS_REPEATED = Counter(
    "workbot_events_repeated_total", "Events that analytics read again and had counted already", ["consumer"]
)
EVENTS_TOO_OLD = Counter(
    "workbot_events_too_old_total", "Events older than every window that analytics keeps, in no count", ["consumer"]
)
EVENTS_EXPIRED = Counter(
    "workbot_events_expired_total", "Events that Kafka's retention deleted before analytics read them", ["topic"]
)
OFFSETS_EMPTY = Counter(
    "workbot_offsets_empty_total",
    "Offsets without an event that analytics passed over: marks of transactions, and what they took back",
    ["topic"],
)
TABLE_KEYS = Gauge("workbot_table_keys", "Keys in the tables of this process", ["group"])

STREAMS_OPEN = Gauge("workbot_streams_open", "Live streams of notifications that are followed")
STREAMS_DROPPED = Counter("workbot_streams_dropped_total", "Live streams ended because their client fell behind")

TIMER_RUNS = Counter("workbot_timer_runs_total", "Claimed timers that ran, by outcome", ["timer", "outcome"])
HTTP_SECONDS = Histogram(
    "workbot_http_request_seconds",
    "Seconds from request to last byte",
    ["method", "route", "status"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)

_random = random.Random()  # noqa: S311 - trace ids only have to differ
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
_trace: ContextVar["_Span | None"] = ContextVar("span", default=None)


class ConsumerMeters:
    """What one consumer counts for each job. Counters are plain numbers until `flush`: each `inc` takes a lock."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self.slot_seconds = JOB_SECONDS.labels(consumer)
        self.wait_seconds = JOB_WAIT_SECONDS.labels(consumer)
        self.lent = 0
        self.ended = dict.fromkeys(("done", "retry", "dead", "released", "fenced"), 0)
        for outcome in self.ended:
            JOBS_FINISHED.labels(consumer, outcome)

    def flush(self) -> None:
        """Add what was counted since the last time; called at every tick of the consumer and at its end."""
        STARTS_LENT.labels(self._consumer).inc(self.lent)
        self.lent = 0
        for outcome, jobs in self.ended.items():
            JOBS_FINISHED.labels(self._consumer, outcome).inc(jobs)
            self.ended[outcome] = 0


def configure_logging(settings: ProcessSettings, process: str) -> None:
    """Send structured logs to stderr, as JSON lines or for a console, with the process's name in each."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if settings.log_format == "json" else structlog.dev.ConsoleRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def _add_trace(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    span = _trace.get()
    if span is not None:
        event["trace"] = span.traceparent()[3:35]
    return event


def new_traceparent() -> str:
    """A fresh W3C trace context, sampled: version, trace id, span id, flags."""
    ids = _random.randbytes(24).hex()
    return f"00-{ids[:32]}-{ids[32:]}-01"


def current_traceparent() -> str | None:
    """The trace the running code belongs to; goes into outbox rows and outgoing headers."""
    span = _trace.get()
    return span.traceparent() if span is not None else None


class _Span:
    """A span of a trace, made up when somebody first asks: most jobs neither log nor send. Shared by child tasks."""

    __slots__ = ("_parent", "_traceparent")

    def __init__(self, parent: str | bytes | None) -> None:
        self._parent = parent
        self._traceparent: str | None = None

    def traceparent(self) -> str:
        if self._traceparent is None:
            parent = self._parent
            if isinstance(parent, bytes):
                parent = parent.decode("ascii", "replace")
            match = _TRACEPARENT.fullmatch(parent) if parent else None
            self._traceparent = (
                f"00-{match[1]}-{_random.randbytes(8).hex()}-{match[2]}" if match else new_traceparent()
            )
        return self._traceparent


def enter_trace(parent: bytes | None) -> None:
    """Put the rest of this task into the trace of `parent`, a header as it came: a new span of it, or a new trace."""
    _trace.set(_Span(parent))


@contextmanager
def trace(parent: str | None) -> Iterator[str]:
    """Run a block in the trace of `parent`, as `enter_trace` does; the trace before it holds again afterwards."""
    before = _trace.get()
    try:
        span = _Span(parent)
        _trace.set(span)
        yield span.traceparent()
    finally:
        _trace.set(before)
