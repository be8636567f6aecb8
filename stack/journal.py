"""The supervisor's own log: JSON lines in `logs/supervisor.log`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog


@contextmanager
def kept_in(path: Path) -> Iterator[None]:
    """Send the supervisor's log to the file for the length of a block."""
    with path.open("a", encoding="utf-8") as file:
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            logger_factory=structlog.WriteLoggerFactory(file),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.reset_defaults()
