"""What the layer's parts log while they are measured."""

import logging
import sys

import structlog


def be_quiet() -> None:
    """Log only errors, to stderr: other news would run through the table. For each process of the bench."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
