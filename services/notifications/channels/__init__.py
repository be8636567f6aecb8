"""How a delivery leaves the house: by e-mail, or as a signed webhook.

Each is carried at least once; the delivery's id travels along, so that a receiver can drop what it has had.
"""

from collections.abc import Mapping
from typing import Protocol

from messaging.errors import NotRetryable
from services.notifications.records import Channel, Order

RECEIVER_GONE = "receiver_gone"
"""Why a delivery failed whose receiver wants nothing more, ever."""


class Carrier(Protocol):
    """One way."""

    async def deliver(self, order: Order) -> None:
        """Carry it to its address. Raises NotRetryable for what will not change, Retryable or Deferred for what may
        pass; never an error that would hold those who go elsewhere.
        """
        ...

    async def aclose(self) -> None:
        """Let go of what it holds."""
        ...


class Channels:
    """The ways there are in this process."""

    def __init__(self, carriers: Mapping[Channel, Carrier]) -> None:
        self._carriers = carriers

    def of(self, channel: Channel) -> Carrier:
        """The way of that name. Raises NotRetryable when it is not set up any more."""
        if channel not in self._carriers:
            raise NotRetryable(f"Nothing is sent by {channel} here: it is not set up.", "channel_not_set_up")
        return self._carriers[channel]

    async def aclose(self) -> None:
        """Close them."""
        for carrier in self._carriers.values():
            await carrier.aclose()
