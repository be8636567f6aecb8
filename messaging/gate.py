"""Pure: when a consumer must not start anything, and until when. Time is passed in, in seconds."""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0


class Gate:
    """Held shut by what all jobs need: a database or registry that is away, a provider that says "wait".

    An outage is probed: each pause of a resource in a row is twice as long, up to the longest, then the next jobs try
    again. One success forgets it.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._pauses: dict[str, int] = {}

    def pause(self, resource: str, now: float, longest: float = LONGEST_PAUSE) -> float:
        """An outage of `resource` was met; returns the seconds it holds the gate. Many in one pause count once."""
        until = self._until.get(resource, 0.0)
        if until > now:
            return until - now
        pauses = self._pauses.get(resource, 0)
        self._pauses[resource] = pauses + 1
        seconds = min(longest, FIRST_PAUSE * 2.0 ** min(pauses, 16))
        self._until[resource] = now + seconds
        return seconds

    def wait(self, resource: str, seconds: float, now: float) -> None:
        """The other side named the time: hold the gate that long (the longest word counts)."""
        self._until[resource] = max(self._until.get(resource, 0.0), now + seconds)

    def passed(self) -> None:
        """A job went through: outages are over."""
        if self._pauses:
            self._pauses.clear()

    def opens_in(self, now: float) -> float:
        """Seconds until the gate opens; 0.0 when it is open."""
        for resource in [name for name, until in self._until.items() if until <= now]:
            del self._until[resource]
        return max((until - now for until in self._until.values()), default=0.0)

    def holders(self) -> list[str]:
        """Which resources hold it, for people."""
        return sorted(self._until)
