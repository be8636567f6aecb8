"""What becomes of deliveries: to receivers that are well, slow, broken or gone, by the real process.

No other process may run beside those of these tests: it would take part of the deliveries, with settings of its own.
"""

import asyncio
import json
import time
import uuid
from contextlib import ExitStack

import httpx

from tests.fixtures.origin import Answer, Request, serving
from tests.fixtures.processes import Home
from tests.fixtures.smtp import mail_server
from tests.fixtures.stack import Infra
from tests.messaging.harness import read_all
from tests.notifications.conftest import Speaker, Start, read, request

PATH = "/api/notifications/subscriptions"
DELIVERIES = "/api/notifications/deliveries"
SENDER = "workbot@example.com"


async def settled(client: httpx.Client, count: int, seconds: float = 60.0) -> list[dict[str, object]]:
    """The caller's deliveries once so many have come to an end. The loop goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        items = await asyncio.to_thread(lambda: client.get(DELIVERIES, params={"limit": 200}).json()["items"])
        ended: list[dict[str, object]] = [item for item in items if item["state"] in ("delivered", "failed")]
        if len(ended) >= count:
            return ended
        assert time.monotonic() < deadline, items
        await asyncio.sleep(0.05)


async def test_a_sender_is_told_of_their_documents_and_nobody_elses(
    start: Start, speaker: Speaker, tenant: str
) -> None:
    async with serving(lambda _: Answer(204)) as origin:
        with start(webhook_allow=f"127.0.0.1:{origin.port}") as process:
            with process.client("ann", tenant, "sender") as ann:
                made = ann.post(PATH, json={"channel": "webhook", "address": f"{origin.url}/secret-path"}).json()
                mine = read(tenant, "ann")
                await speaker.say(
                    mine, read(tenant, "bob"), read(tenant, "ann", "waiting_for_review"), request(tenant, "ann")
                )
                (delivery,) = await settled(ann, 1)
                assert (delivery["state"], delivery["attempts"], delivery["error"]) == ("delivered", 1, None)
                assert (delivery["subscription"], delivery["receiver"]) == (made["id"], "127.0.0.1")
                assert delivery["kind"] == "document_approved"
            with process.client("rob", tenant, "viewer") as rob:
                assert [item["id"] for item in rob.get(DELIVERIES).json()["items"]] == [delivery["id"]]
            with process.client("bob", tenant, "sender") as bob:
                assert bob.get(DELIVERIES).json()["items"] == []
    (call,) = origin.requests
    assert call.headers["idempotency-key"] == delivery["id"]
    assert json.loads(call.body)["url"].endswith(f"/api/documents/{mine.document_id}")


async def test_one_receiver_that_is_down_holds_nobody_else(
    infra: Infra, home: Home, start: Start, speaker: Speaker, tenant: str
) -> None:
    """One hangs, one says 500 twice, one says 429 with a time, one refuses, one is gone for good; the sixth is well,
    and has all of its ten deliveries while the others are still being tried."""
    calls: dict[str, int] = {}
    hung = asyncio.Event()

    async def respond(request: Request) -> Answer:
        name = request.path
        calls[name] = calls.get(name, 0) + 1
        match name:
            case "/hangs":
                hung.set()
                await asyncio.sleep(3600)
            case "/fails" if calls[name] <= 2:
                return Answer(500)
            case "/busy" if calls[name] == 1:
                return Answer(429, headers={"Retry-After": "2"})
            case "/refuses":
                return Answer(400)
            case "/gone":
                return Answer(410)
        return Answer(200)

    async with serving(respond) as origin:
        allow = f"127.0.0.1:{origin.port}"
        with start(webhook_allow=allow, webhook_timeout_seconds=5) as process, ExitStack() as stack:
            clients = {
                name: stack.enter_context(process.client(name, tenant, "sender"))
                for name in ("hangs", "fails", "busy", "refuses", "gone", "well")
            }
            for name, client in clients.items():
                made = client.post(PATH, json={"channel": "webhook", "address": f"{origin.url}/{name}"})
                assert made.status_code == 201, made.text
            await speaker.say(*(read(tenant, name) for name in clients if name != "well"))
            await asyncio.wait_for(hung.wait(), 60)
            await speaker.say(*(read(tenant, "well") for _ in range(10)))
            well = await settled(clients["well"], 10)
            assert {item["state"] for item in well} == {"delivered"}
            (hanging,) = clients["hangs"].get(DELIVERIES).json()["items"]
            assert hanging["state"] in ("sending", "queued")

            (fails,) = await settled(clients["fails"], 1)
            assert (fails["state"], fails["attempts"], fails["error"]) == ("delivered", 3, None)
            (busy,) = await settled(clients["busy"], 1)
            assert (busy["state"], busy["attempts"]) == ("delivered", 2)
            assert await waited(home, tenant, "busy") >= 1.9

            (refused,) = await settled(clients["refuses"], 1)
            assert (refused["state"], refused["attempts"]) == ("failed", 1)
            assert "400" in str(refused["error"])
            (gone,) = await settled(clients["gone"], 1)
            assert gone["state"] == "failed"
            assert clients["gone"].get(PATH).json()["items"][0]["disabled_at"] is not None
            await speaker.say(read(tenant, "gone"))
            await speaker.say(read(tenant, "well"))
            await settled(clients["well"], 11)
            assert len(clients["gone"].get(DELIVERIES).json()["items"]) == 1
    # Other tests have put what has no headers there.
    dead = {
        ((headers.get("ce_subject") or b"").decode("utf-8", "replace"), headers.get("workbot_dead_reason"))
        for record in read_all(infra.kafka_bootstrap, "notifications.deliveries.deliverer.dlq", 6)
        for headers in [dict(record.headers() or [])]
    }
    assert {(refused["id"], b"receiver_refused"), (gone["id"], b"receiver_gone")} <= dead
    assert not {item["id"] for item in well} & {subject for subject, _ in dead}


async def waited(home: Home, tenant: str, sender: str) -> float:
    """Seconds between a sender's first run and the one after, once both are written down."""
    while True:
        rows = home.rows(
            "select extract(epoch from max(started_at) - min(finished_at))::float8 from ledger_attempts"
            " where consumer = 'deliverer' and tenant = %s and sender = %s having count(*) > 1",
            tenant,
            sender,
        )
        if rows:
            return float(str(rows[0][0]))
        await asyncio.sleep(0.1)


async def test_what_was_unsubscribed_is_not_sent_any_more(start: Start, speaker: Speaker, tenant: str) -> None:
    async def respond(_: Request) -> Answer:
        return Answer(503)

    async with serving(respond) as origin:
        with start(webhook_allow=f"127.0.0.1:{origin.port}") as process, process.client("ann", tenant) as ann:
            made = ann.post(PATH, json={"channel": "webhook", "address": origin.url}).json()
            await speaker.say(read(tenant, "ann"))
            deadline = time.monotonic() + 60
            while not origin.requests:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            assert ann.delete(f"{PATH}/{made['id']}").status_code == 204
            (delivery,) = await settled(ann, 1)
    assert delivery["state"] == "failed"
    assert delivery["subscription"] is None
    assert "removed" in str(delivery["error"])


async def test_an_e_mail_arrives(start: Start, speaker: Speaker, tenant: str) -> None:
    async with mail_server() as sink:
        settings = {"smtp_host": "127.0.0.1", "smtp_port": sink.port, "smtp_tls": "none", "smtp_from": SENDER}
        with start(**settings) as process, process.client("ada", tenant, "admin") as ada:
            for bad in (
                "ann",
                "ann@",
                "ann@localhost",
                "a@b.example, c@d.example",
                "a@b.example\r\nBcc: c@d.example",
            ):
                answer = ada.post(PATH, json={"channel": "email", "address": bad})
                assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "address"), bad
            made = ada.post(PATH, json={"channel": "email", "address": "it@example.com", "team": "it"}).json()
            assert made["secret"] is None
            await speaker.say(request(tenant, title="Größer\r\nBcc: eve@example.com"))
            (delivery,) = await settled(ada, 1)
    (received,) = sink.received
    assert (delivery["state"], delivery["receiver"], delivery["team"]) == ("delivered", "it@example.com", "it")
    assert received.receiver == "it@example.com"
    assert received.message["Subject"] == "New request: Größer Bcc: eve@example.com"
    assert "Bcc" not in received.message
    assert received.message["Message-ID"] == f"<{delivery['id']}@example.com>"
    assert uuid.UUID(str(delivery["id"]))
