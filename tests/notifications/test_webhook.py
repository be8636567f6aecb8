"""A webhook's call: what is sent, what the answers mean, and where it never goes."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from messaging.errors import Deferred, NotRetryable, Retryable
from services.notifications.channels import RECEIVER_GONE
from services.notifications.channels.webhook import Webhook, seconds_to_wait
from tests.fixtures.origin import Answer, Origin, serving
from tests.notifications.orders import SECRET, order


@asynccontextmanager
async def webhooks(
    *origins: Origin, seconds: float = 5.0, names: dict[str, list[str]] | None = None
) -> AsyncIterator[Webhook]:
    """Calls that may reach the origins, and whose resolver knows `names` and addresses as numbers."""

    async def resolve(host: str, port: int) -> list[str]:
        return (names or {}).get(host, [host])

    webhook = Webhook(
        public_url="https://workbot.example",
        allow={f"127.0.0.1:{origin.port}" for origin in origins},
        timeout_seconds=seconds,
        resolve=resolve,
    )
    yield webhook
    await webhook.aclose()


async def test_what_is_sent_is_signed_and_says_who_it_is() -> None:
    async with serving(lambda _: Answer(204)) as origin, webhooks(origin) as webhook:
        sent = order("webhook", f"{origin.url}/hook?for=us", title="Grüße 🦊")
        before = int(time.time())
        await webhook.deliver(sent)
        await webhook.deliver(sent)
    first, again = origin.requests
    assert (first.method, first.path) == ("POST", "/hook?for=us")
    assert first.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"] == str(sent.id)
    assert first.body == again.body
    stamp, _, digest = first.headers["x-workbot-signature"].partition(",v1=")
    assert before <= int(stamp.removeprefix("t=")) <= time.time()
    signed = stamp.removeprefix("t=").encode() + b"." + first.body
    assert digest == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert json.loads(first.body) == {
        "delivery": str(sent.id),
        "notification": str(sent.notification),
        "event": sent.event_id,
        "tenant": "acme",
        "kind": "document_approved",
        "title": "Grüße 🦊",
        "body": "Well done.",
        "url": "https://workbot.example/api/documents/d-1",
        "created_at": "2026-05-04T12:30:00+00:00",
    }


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_delivered_is_what_was_answered_so(status: int) -> None:
    async with serving(lambda _: Answer(status, b"x" * 100)) as origin, webhooks(origin) as webhook:
        await webhook.deliver(order("webhook", origin.url))


@pytest.mark.parametrize("status", [408, 421, 425, 429, 500, 502, 503, 599])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    async with serving(lambda _: Answer(status)) as origin, webhooks(origin) as webhook:
        with pytest.raises(Retryable) as failed:
            await webhook.deliver(order("webhook", origin.url))
    assert not isinstance(failed.value, Deferred)
    assert str(status) in str(failed.value)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_may_say_when(status: int) -> None:
    async with serving(lambda _: Answer(status, headers={"Retry-After": "7"})) as origin, webhooks(origin) as webhook:
        with pytest.raises(Deferred) as failed:
            await webhook.deliver(order("webhook", origin.url))
    assert failed.value.retry_after == 7.0


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, "receiver_refused"),
        (401, "receiver_refused"),
        (404, "receiver_refused"),
        (410, RECEIVER_GONE),
        (422, "receiver_refused"),
        (304, "redirected"),
    ],
)
async def test_a_refusal_is_final(status: int, reason: str) -> None:
    async with serving(lambda _: Answer(status)) as origin, webhooks(origin) as webhook:
        with pytest.raises(NotRetryable) as failed:
            await webhook.deliver(order("webhook", origin.url))
    assert failed.value.reason == reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    async with serving(lambda _: Answer(204)) as inside:
        redirect = Answer(status, headers={"Location": inside.url})
        async with serving(lambda _: redirect) as origin, webhooks(origin, inside) as webhook:
            with pytest.raises(NotRetryable) as failed:
                await webhook.deliver(order("webhook", origin.url))
    assert failed.value.reason == "redirected"
    assert inside.requests == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "[::1]", "10.0.0.1", "169.254.169.254", "inside.example"]
)
async def test_no_private_address_is_called(host: str) -> None:
    async with serving(lambda _: Answer(204)) as origin, webhooks(names={"inside.example": ["127.0.0.1"]}) as webhook:
        with pytest.raises(NotRetryable) as failed:
            await webhook.deliver(order("webhook", f"http://{host}:{origin.port}/"))
    assert failed.value.reason == "address_refused"
    assert origin.connections == 0


async def test_an_endless_answer_is_not_read() -> None:
    async def endless(_: object) -> Answer:
        return Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5_000_000)

    async with serving(endless) as origin, webhooks(origin) as webhook:
        await webhook.deliver(order("webhook", origin.url))


@pytest.mark.parametrize("raw", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_broken_answer_may_pass(raw: bytes) -> None:
    async with serving(lambda _: Answer(raw=raw)) as origin, webhooks(origin) as webhook:
        with pytest.raises(Retryable):
            await webhook.deliver(order("webhook", origin.url))


@pytest.mark.parametrize(
    "raw", [b"\x00\xff secret banner 1.2\r\n\r\n", b"SSH-2.0-banner_9.6\r\n\r\n", b"HTTP/1.1 200 OK\r\nbanner"]
)
async def test_what_is_no_answer_is_not_passed_on(raw: bytes) -> None:
    """Else deliveries would read out whatever listens behind an address."""
    async with serving(lambda _: Answer(raw=raw)) as origin, webhooks(origin) as webhook:
        with pytest.raises(Retryable) as failed:
            await webhook.deliver(order("webhook", origin.url))
    assert str(failed.value) == "The receiver could not be reached: it broke off, or its answer is not HTTP."


async def test_receivers_that_hang_delay_nobody_else() -> None:
    """More than may be called at once, all of them with their answer under way."""
    over = asyncio.Event()

    async def hang(_: object) -> Answer:
        await over.wait()
        return Answer(204)

    async with (
        serving(hang) as hanging,
        serving(lambda _: Answer(204)) as well,
        webhooks(hanging, well, seconds=60.0) as webhook,
    ):
        waiting = [asyncio.create_task(webhook.deliver(order("webhook", hanging.url))) for _ in range(40)]
        async with asyncio.timeout(30):
            while len(hanging.requests) < len(waiting):
                await asyncio.sleep(0.01)
            await webhook.deliver(order("webhook", well.url))
        assert not any(task.done() for task in waiting)
        over.set()
        await asyncio.gather(*waiting)


async def test_silence_may_pass(unused_tcp_port: int) -> None:
    async def never(_: object) -> Answer:
        await asyncio.sleep(60)
        return Answer()

    async with serving(never) as origin, webhooks(origin, Origin(unused_tcp_port), seconds=0.3) as webhook:
        with pytest.raises(Retryable, match="did not answer"):
            await webhook.deliver(order("webhook", origin.url))
        with pytest.raises(Retryable, match="could not be reached"):
            await webhook.deliver(order("webhook", f"http://127.0.0.1:{unused_tcp_port}/"))


NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("0", 0.0),
        (" 30 ", 30.0),
        ("9" * 400, 999999999.0),
        ("Mon, 04 May 2026 12:01:00 GMT", 60.0),
        ("Mon, 04 May 2026 11:00:00 GMT", 0.0),
        ("Mon, 99 May 2026 11:00:00 GMT", None),
        ("Mon, 04 May 2026 11:00:00 +99999999999999", None),
    ],
)
def test_when_to_come_back(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds
