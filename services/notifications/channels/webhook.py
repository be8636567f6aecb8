"""Deliveries as signed webhooks: one POST of JSON, to an address that a user gave and that is judged each time."""

import asyncio
import json
import time
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpcore
import httpx

from messaging.errors import Deferred, NotRetryable, Retryable
from services.notifications.channels import RECEIVER_GONE, signature
from services.notifications.records import Order
from services.notifications.subscribing import ALLOWING
from web import addresses, outbound
from web.outbound import Resolve

_MAY_PASS = frozenset({408, 421, 425, 429})
"""Client errors that another try may not meet."""

_HEADERS = {"User-Agent": "WorkBot/1 (webhooks)", "Content-Type": "application/json", "Accept": "*/*"}


class Webhook:
    """Calls webhooks. No redirect is followed, and of an answer only the status and the headers are read."""

    def __init__(
        self,
        *,
        public_url: str,
        allow: AbstractSet[str] = frozenset(),
        timeout_seconds: float,
        resolve: Resolve,
    ) -> None:
        self._public_url = public_url
        self._allow = allow
        self._timeout = timeout_seconds
        self._client = outbound.client(allow, resolve, timeout_seconds=timeout_seconds, headers=_HEADERS)

    async def deliver(self, order: Order) -> None:
        """Post it. Delivered is what was answered 2xx.

        Raises NotRetryable for an address that may not be called, a redirect, and answers 4xx; Retryable for no
        answer in time and for 408, 421, 425 and 5xx; Deferred when 429 or 503 name a time.
        """
        try:
            addresses.parse(order.address, self._allow)
            async with asyncio.timeout(self._timeout):
                await self._post(order)
        except addresses.Refused as refused:
            raise NotRetryable(addresses.told(refused, ALLOWING), "address_refused") from None
        except (TimeoutError, httpx.TimeoutException, httpcore.TimeoutException):
            raise Retryable(f"The receiver did not answer within {self._timeout:g} seconds.") from None
        except (OSError, httpx.HTTPError, httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise Retryable(f"The receiver could not be reached: {outbound.cause(error)}") from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _post(self, order: Order) -> None:
        assert order.secret is not None
        body = payload(order, self._public_url)
        headers = {
            "Idempotency-Key": str(order.id),
            signature.HEADER: signature.sign(order.secret, int(time.time()), body),
        }
        async with self._client.stream("POST", order.address, content=body, headers=headers) as answer:
            _judge(answer)


def payload(order: Order, public_url: str) -> bytes:
    """Pure: what is posted; the same in every run of a delivery."""
    said = {
        "delivery": str(order.id),
        "notification": str(order.notification),
        "event": order.event_id,
        "tenant": order.tenant,
        "kind": order.kind,
        "title": order.title,
        "body": order.body,
        "url": public_url + order.href,
        "created_at": order.created_at.astimezone(UTC).isoformat(),
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def seconds_to_wait(header: str | None, now: datetime) -> float | None:
    """Pure: how long a Retry-After asks us to wait; None when it says nothing that can be used."""
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header.strip()[:9])
    try:
        at = parsedate_to_datetime(header)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    except (ValueError, OverflowError):  # the latter for a time zone that is days away
        return None
    return max(0.0, seconds)


def _judge(answer: httpx.Response) -> None:
    status = answer.status_code
    if answer.is_success:
        return
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        asked = seconds_to_wait(answer.headers.get("retry-after"), datetime.now(UTC))
        if asked is not None:
            raise Deferred(f"The receiver answered {status} and asks for {asked:g} seconds.", asked)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
        raise Retryable(f"The receiver answered {status}.")
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        raise NotRetryable(
            f"The receiver answered {status}; redirects are not followed. Subscribe the final address.", "redirected"
        )
    if status == HTTPStatus.GONE:
        raise NotRetryable("The receiver answered 410: it is gone, and its subscription disabled.", RECEIVER_GONE)
    raise NotRetryable(f"The receiver refused it: it answered {status}.", "receiver_refused")
