"""How long Kafka keeps a record that a service no longer needs, as topic settings."""

SEGMENT_BYTES = 64 * 1024 * 1024

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

RETRY_DAYS = 10
"""How long the retry topic of an event's consumer keeps what was sent back to it: longer than event topics keep
theirs, lest a consumer that is away lose it first; shorter than a ledger remembers, lest it come again after that.
The retry topic of a job's consumer keeps it until it is done, as the job's own topic does.
"""

DEAD_LETTER_DAYS = 90
"""How long dead-letter topics do: the gateway has each letter in its table by then, whole."""

COMPACTED_DAYS = 7
"""After that long, and the next write, a table's changelog no longer holds what was superseded or deleted."""

_SEGMENTS = 7
"""Kafka deletes whole segments, so a record stays longer than asked for: by one of so many parts at most."""


def deleted(retention_ms: int, max_record_bytes: int) -> dict[str, str]:
    """Settings of a topic whose records go after that time; -1: never, other than by DeleteRecords."""
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        # A broker-wide limit on size would drop unread jobs.
        "retention.bytes": "-1",
        "max.message.bytes": str(max_record_bytes),
    }
    if retention_ms == -1:
        # Space of records deleted up to an offset comes back by whole segments: keep them small.
        config["segment.bytes"] = str(SEGMENT_BYTES)
    else:
        config["segment.ms"] = str(retention_ms // _SEGMENTS)
    return config


def compacted(max_record_bytes: int) -> dict[str, str]:
    """Settings of a topic that keeps the last record of each key: never deleted, only superseded."""
    return {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "max.compaction.lag.ms": str(COMPACTED_DAYS * DAY_MS),
        "max.message.bytes": str(max_record_bytes),
    }


def longest_days(retention_ms: int) -> float:
    """How many days after it was written a record may still be read from a topic with that retention."""
    return retention_ms * (_SEGMENTS + 1) / _SEGMENTS / DAY_MS
