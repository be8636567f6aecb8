"""What a consumer promises, as data: who may run how much, in which order, and how often it is tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """How slots are shared.

    per_key  slots guaranteed to each sender (a strict cap when `lend` is off)
    total    slots of the whole consumer
    lend     idle slots go to whoever has work once nobody under the guarantee waits
    ordered  strictly in order per key, across retries and restarts; never lends
    """

    per_key: int = 1
    total: int = 10
    lend: bool = False
    ordered: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.per_key <= self.total:
            raise ValueError(f"per_key must be between 1 and total ({self.total}), not {self.per_key}")
        if self.ordered and (self.lend or self.per_key != 1):
            raise ValueError("an ordered consumer runs one job per key and never lends")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a failed job is tried again: full jitter over an exponential, in seconds.

    attempts counts every run, the first included. Source of the jitter: Amazon Builders' Library,
    "Timeouts, retries and backoff with jitter".
    """

    attempts: int = 4
    base: float = 1.0
    cap: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base <= 0 or self.cap < self.base:
            raise ValueError("need attempts >= 1 and 0 < base <= cap")


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer of one topic, with the topics that follow from it by rule.

    dead_letter_share  when more than this share of the last jobs, over the senders, would die of the same reason, the
                       consumer stops and alarms instead; 1.0 turns that off
    alias              its name in the books, where another consumer of the same service goes by the same name
    shared_group       its consumer group on Kafka, when one reader takes several topics in one
    """

    consumer: str
    topic: str
    retry_topic: str
    dead_letter_topic: str
    policy: Policy
    backoff: Backoff
    dead_letter_share: float = 0.5
    alias: str | None = None
    shared_group: str | None = None

    @property
    def name(self) -> str:
        """What ledger, metrics, queue reports and logs call it: unique within a service, and so within its database
        and its processes."""
        return self.alias or self.consumer

    @property
    def group(self) -> str:
        """The consumer group on Kafka: the same for every process of this consumer."""
        return self.shared_group or f"{self.topic}.{self.consumer}"
