"""Pure: a record's key and headers as JSON Schemas, for the published contract. On the wire all are UTF-8 text."""

from typing import Any

from messaging import deadletter, message

Shape = dict[str, Any]

KEYS: dict[str, Shape] = {
    "tenant:sender": {
        "type": "string",
        "description": "<tenant>:<sender>. What one sender caused is kept in order; slots are shared among senders.",
        "pattern": "^[^:]+:.+$",
        "examples": ["acme:nadia"],
    },
    "tenant:room": {
        "type": "string",
        "description": "<tenant>:<room>. What is said in one call is kept in order.",
        "pattern": "^[^:]+:.+$",
        "examples": ["acme:r-7f3a"],
    },
}
"""By what topics.toml calls the key. A part is at most `messaging.message.MAX_KEY_PART` bytes long."""


def event() -> Shape:
    """What every record carries from the start: CloudEvents 1.0, Kafka binding, binary mode, and two more."""
    required = {
        message.SPECVERSION: {"type": "string", "const": "1.0"},
        message.ID: _text(
            "The record's id. Whoever has an effect has it once per id, however often the record comes.",
            format="uuid",
        ),
        message.SOURCE: _text("The service that says it."),
        message.TYPE: _text("What happened, or what is to be done."),
        message.TIME: _text("When it was written down.", format="date-time"),
        message.SUBJECT: _text("The id of what it is about."),
        message.VERSION: _text("The major version, to be looked at before the value is.", pattern="^[1-9][0-9]*$"),
    }
    optional = {
        message.TRACEPARENT: _text(
            "The trace it belongs to (W3C Trace Context).",
            pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
        )
    }
    return {"type": "object", "required": list(required), "properties": required | optional}


def retry() -> Shape:
    """What a record on a retry topic carries on top, each replaced at every hop."""
    return _on_top(
        {
            deadletter.ORIGIN: _text("Where it was first read: topic, partition and offset."),
            deadletter.GENERATION: _number("How often it was sent back from the dead letters."),
        },
        {
            deadletter.DUE: _number("When it is tried again, in milliseconds of Unix time; absent: at once."),
            deadletter.FAILURES: _number("Attempts that failed in this generation; absent: none."),
        },
    )


def dead_letter() -> Shape:
    """What a dead letter carries on top."""
    return _on_top(
        {
            deadletter.ORIGIN: _text("Where it was first read: topic, partition and offset."),
            deadletter.GENERATION: _number("How often it was sent back before."),
            deadletter.DEAD_CONSUMER: _text("The consumer that gave up."),
            deadletter.DEAD_REASON: _text("Why, for machines, such as unknown_event or attempts_exhausted."),
            deadletter.DEAD_ERROR: _text("Why, in a sentence for people."),
            deadletter.DEAD_ATTEMPTS: _number("Attempts in this generation, the last included."),
            deadletter.DEAD_AT: _number("When, in milliseconds of Unix time."),
        },
        {},
    )


def _on_top(required: dict[str, Shape], optional: dict[str, Shape]) -> Shape:
    return {"type": "object", "required": list(required), "properties": required | optional}


def _text(description: str, **more: str) -> Shape:
    return {"type": "string", "description": description, **more}


def _number(description: str) -> Shape:
    return {"type": "string", "description": description, "pattern": "^[0-9]+$"}
