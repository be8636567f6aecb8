"""Every error of the messaging room, and what the reader of one should do.

    MessagingError
    ├── Retryable              try again later; costs an attempt
    │   ├── Unavailable        a part we all need failed this job; many in a row open its breaker, like an outage
    │   └── Deferred           the other side of this job alone asks it to wait; the others go on
    ├── Throttled              the other side asks us to wait; costs nothing, closes the gate for everybody
    ├── Outage                 a part we all need (database, registry, broker) is away; pause, cost nothing
    ├── NotRetryable           no retry can fix it; dead letter after this attempt
    │   ├── Undecodable        the bytes do not say what the headers claim
    │   ├── UnknownEvent       no reader for this type and major version
    │   └── LostAttempts       the process died under this job too often
    ├── Fenced                 this run no longer owns the job; its effects are rolled back
    ├── OutboxFull             the outbox cannot drain; refuse new work (503), lose nothing
    ├── NoTurn                 the batch that was to take this did not come; nothing was done, try again later
    └── Misconfigured          stop the process; a person must act

An error a handler did not classify counts as Retryable: unknown never means "skip".
"""


class MessagingError(Exception):
    """Base of the tree. The message is one sentence a person understands."""


class Retryable(MessagingError):
    """The attempt failed in a way that may pass."""


class Unavailable(Retryable):
    """A dependency that all jobs share failed this one: an error of its own, or no answer in time.

    Retried at the job's cost, unless so many jobs in a row met it that `resource` must be away for everybody.
    """

    def __init__(self, message: str, resource: str) -> None:
        super().__init__(message)
        self.resource = resource


class Deferred(Retryable):
    """The other side, which is this job's alone, asks for `retry_after` seconds: nobody else waits for it.

    Costs an attempt, so that one who asks for ever comes to an end; the wait is no longer than the consumer's cap.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Throttled(MessagingError):
    """The provider answered "too many": wait `retry_after` seconds, for every job of this consumer."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Outage(MessagingError):
    """A shared dependency is away. `resource` names it for the alarm."""

    def __init__(self, message: str, resource: str) -> None:
        super().__init__(message)
        self.resource = resource


class NotRetryable(MessagingError):
    """The job itself is at fault, for good. `reason` is a short machine-readable word for dead letters."""

    def __init__(self, message: str, reason: str = "not_retryable") -> None:
        super().__init__(message)
        self.reason = reason


class Undecodable(NotRetryable):
    """Garbage bytes, a foreign framing, or a value that does not match its schema."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "undecodable")


class UnknownEvent(NotRetryable):
    """The consumer has no reader for this type, major version or schema id."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unknown_event")


class LostAttempts(NotRetryable):
    """The job was started several times and no run lived to tell the outcome."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "killed_its_process")


class Fenced(MessagingError):
    """Another run has taken the job over (its token changed), so this run's effects must not commit."""


class OutboxFull(MessagingError):
    """More rows wait in the outbox than the limit allows."""


class NoTurn(MessagingError):
    """An item waited too long for its batch to begin, and is in none."""


class Misconfigured(MessagingError):
    """A setting, a topic or a schema is not as this process needs it. The message names the remedy."""


def reason(error: Exception) -> str:
    """What a client's error says, for the middle of a sentence: its first line (hints are below), no full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".? ")
