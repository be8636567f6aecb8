"""Pure: what one event changes. Keys and values of the table, and the changes of a batch of records gathered.

Every key begins with the topic and partition its records come from, and every value holds the offset that was last
counted in it ("o"). So a record that comes again changes nothing, and one member of the group writes a key.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, NamedTuple

from messaging.errors import NotRetryable
from messaging.message import MAX_ID, Key
from schemas.events import DocumentRead, DocumentReceived, DocumentReceivedV1

Window = Literal["minute", "hour", "day"]

SECONDS: dict[Window, int] = {"minute": 60, "hour": 3600, "day": 86_400}
"""How long one bucket of each window is. Buckets begin at multiples of that since 1970, in UTC."""

READ_WITHIN: tuple[float, ...] = (1, 2, 5, 10, 30, 60, 300, 1800, 3600, 86_400)
"""Upper ends, in seconds, of the buckets of a document's time to read; one more takes the rest."""

AHEAD_SECONDS = 3600.0
"""How far an event may say it happened after Kafka had it, for clocks that differ; beyond it, Kafka's time counts."""

PROGRESS, WAITING, READING = "progress", "waiting", "reading"
_SEPARATOR = "\x1f"  # in no tenant's and no sender's name, for those are printable

Value = dict[str, Any]
Look = Callable[[str], Value | None]


class Place(NamedTuple):
    """One record: where it lies on Kafka."""

    topic: str
    partition: int
    offset: int


class Name(NamedTuple):
    """A key of the table, taken apart. `rest` begins with the kind: a window, PROGRESS, WAITING or READING."""

    topic: str
    partition: int
    rest: tuple[str, ...]

    def __str__(self) -> str:
        return _SEPARATOR.join((self.topic, str(self.partition), *self.rest))

    @classmethod
    def parse(cls, key: str) -> "Name":
        topic, partition, *rest = key.split(_SEPARATOR)
        return cls(topic, int(partition), tuple(rest))


@dataclass(frozen=True, slots=True)
class Fact:
    """What is counted of an event. `at` is when it happened, Unix time in seconds; `document` is whose reading began
    (`began`) or ended with it, None for other events.
    """

    type: str
    tenant: str
    sender: str
    at: float
    document: str | None = None
    began: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """How long buckets are kept, in seconds. An event that is older than that is not counted in such a bucket."""

    minute: float
    hour: float
    day: float

    def seconds(self, window: Window) -> float:
        return float(getattr(self, window))


def fact(event: Any, at: float) -> Fact:
    """Raises NotRetryable for an event without a tenant and sender that could be counted, or about a document without
    an id that a key can hold."""
    try:
        owner = Key.parse(f"{event.tenant}:{event.sender}".encode())
    except ValueError as error:
        raise NotRetryable(f"The event does not say whose it is: {error}.", "no_owner") from error
    if owner.tenant != event.tenant:
        raise NotRetryable("The event's tenant holds a colon, which ends it in a key.", "no_owner")
    document = getattr(event, "document_id", None)
    if document is not None and (not document.isprintable() or not 0 < len(document) <= MAX_ID):
        raise NotRetryable("The event is about a document that has no usable id.", "unusable_id")
    if isinstance(event, DocumentReceived | DocumentReceivedV1):
        return Fact(event.TYPE, *owner, at, event.document_id, began=True)
    if isinstance(event, DocumentRead):
        return Fact(event.TYPE, *owner, at, event.document_id)
    return Fact(event.TYPE, *owner, at)


def happened(told: str | None, stored: float) -> float:
    """When an event happened: what it says of itself (`told`, RFC 3339) if that can be, else when Kafka had it."""
    try:
        at = datetime.fromisoformat(told or "")
    except ValueError:
        return stored
    if at.tzinfo is None:
        return stored
    seconds = at.timestamp()
    return seconds if 0 <= seconds <= stored + AHEAD_SECONDS else stored


def bucket(window: Window, at: float) -> int:
    """Where the bucket that holds this moment begins, Unix time in seconds."""
    return int(at // SECONDS[window]) * SECONDS[window]


def progress(topic: str, partition: int) -> str:
    """The key that holds the last offset settled in a partition: counted or set aside."""
    return str(Name(topic, partition, (PROGRESS,)))


def bucket_of(took: float) -> int:
    """The index of a time to read among READ_WITHIN's buckets."""
    return next((n for n, end in enumerate(READ_WITHIN) if took <= end), len(READ_WITHIN))


class Outcome(Enum):
    """What became of an event: counted now, counted before, or too old for every window."""

    COUNTED = "counted"
    REPEATED = "repeated"
    TOO_OLD = "too old"


class Tally:
    """The changes of a few records, not written yet. `look` finds the value of a key as it was before them.

    `keep` says which buckets are past their time; `homes` names the topic that a retry topic's records come from.
    """

    def __init__(self, look: Look, keep: Keep, homes: Mapping[str, str] | None = None) -> None:
        self._look = look
        self._keep = keep
        self._homes = homes or {}
        self._new: dict[str, Value | None] = {}
        self._progress: dict[str, Value] = {}

    def add(self, place: Place, fact: Fact, now: float) -> Outcome:
        """Count one event: all of it, or, when this raises, nothing."""
        changed: dict[str, Value | None] = {}
        outcome = Outcome.TOO_OLD
        for window in SECONDS:
            start = bucket(window, fact.at)
            if start + SECONDS[window] + self._keep.seconds(window) < now:
                continue
            key = self._name(place, window, str(start), fact.type, fact.tenant, fact.sender)
            old = self._get(key) or {"n": 0, "o": -1}
            counts = place.offset > old["o"]
            if counts:
                outcome = Outcome.COUNTED
            elif outcome is Outcome.TOO_OLD:
                outcome = Outcome.REPEATED
            # Written even if it was counted: a crash may have left it on this disk only.
            changed[key] = {"n": old["n"] + 1, "o": place.offset} if counts else old
        if fact.document is not None and outcome is not Outcome.TOO_OLD:
            changed |= self._reading(place, fact, fact.document)
        self._new |= changed
        self.settled(place)
        return outcome

    def settled(self, place: Place) -> None:
        """This record needs no more work, counted or not."""
        self._progress[progress(place.topic, place.partition)] = {"o": place.offset}

    def take(self) -> Iterator[tuple[str, Value | None]]:
        """The changes in the order to write them in; None removes a key. How far we are comes last."""
        new, last = self._new, self._progress
        self._new, self._progress = {}, {}
        yield from new.items()
        yield from last.items()

    def _reading(self, place: Place, fact: Fact, document: str) -> dict[str, Value | None]:
        # Received on the topic and read by way of the retry topic: same key, and so the same partition number.
        home = place._replace(topic=self._homes.get(place.topic, place.topic))
        waiting = self._name(home, WAITING, document)
        since = self._get(waiting)
        if fact.began:
            return {waiting: since or {"at": fact.at, "o": place.offset}}
        key = self._name(place, READING, str(bucket("day", fact.at)), fact.tenant, fact.sender)
        old = self._get(key)
        if old is not None and place.offset <= old["o"]:
            return {key: old, waiting: None}
        if since is None:
            return {}
        took = max(0.0, fact.at - since["at"])
        old = old or {"n": 0, "s": 0.0, "b": [0] * (len(READ_WITHIN) + 1)}
        within = list(old["b"])
        within[bucket_of(took)] += 1
        return {key: {"n": old["n"] + 1, "s": old["s"] + took, "b": within, "o": place.offset}, waiting: None}

    def _get(self, key: str) -> Value | None:
        return self._new[key] if key in self._new else self._look(key)

    def _name(self, place: Place, *rest: str) -> str:
        return str(Name(place.topic, place.partition, rest))


def owner(key: str) -> Key | None:
    """Whose count a key holds; None of one that is nobody's."""
    kind, *rest = Name.parse(key).rest
    return Key(*rest[-2:]) if kind == READING or kind in SECONDS else None


def outdated(key: str, value: Value, now: float, keep: Keep) -> bool:
    """Whether a key has had its time."""
    kind, *rest = Name.parse(key).rest
    if kind == PROGRESS:
        return False
    if kind == WAITING:
        return bool(value["at"] + keep.hour < now)
    window: Window = "day" if kind == READING else kind  # type: ignore[assignment]
    return int(rest[0]) + SECONDS[window] + keep.seconds(window) < now
