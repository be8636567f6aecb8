"""From POST /api/requests to the topic, through the real processes, with Kafka and the registry away in between."""

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from messaging.codec import Codec
from messaging.message import headers_to_dict
from schemas import topics
from schemas.events import RequestCreated
from tests.fixtures.outbox import Proxy, host_of, wait_for
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Home, Running, variables
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start

PATH = "/api/requests"
TOPIC = RequestCreated.TOPIC
SENDERS, EACH = 5, 30
PATIENCE_SECONDS = 60.0


@contextmanager
def proxied(target: str, *, kafka: bool) -> Iterator[Proxy]:
    proxy = Proxy(target, kafka=kafka)
    try:
        yield proxy
    finally:
        proxy.close()


class Arrivals:
    """What comes on the topic from now on for one tenant: (key, headers, value) in the order read."""

    def __init__(self, bootstrap: str, tenant: str) -> None:
        self.records: list[tuple[str, dict[str, bytes], bytes]] = []
        self._prefix = f"{tenant}:".encode()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
        )
        self._consumer.assign(
            [
                TopicPartition(TOPIC, number, self._consumer.get_watermark_offsets(TopicPartition(TOPIC, number))[1])
                for number in range(topics.load()[TOPIC].partitions)
            ]
        )

    def __enter__(self) -> "Arrivals":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, f"only {len(self.records)} came"
            self.poll(0.1)

    def poll(self, seconds: float) -> None:
        for record in self._consumer.consume(1000, seconds):
            assert record.error() is None
            key, value = record.key(), record.value()
            if isinstance(key, bytes) and key.startswith(self._prefix):
                self.records.append((key.decode(), headers_to_dict(record.headers()), value or b""))

    def ids(self, key: str) -> list[str]:
        """Subjects under a key in the order of their first delivery."""
        return list(
            dict.fromkeys(headers["ce_subject"].decode() for owner, headers, _ in self.records if owner == key)
        )


@pytest.mark.usefixtures("deployed")
async def test_an_event_says_what_was_filed(infra: Infra, start: Start, tenant: str, codec: Codec) -> None:
    asked = {"title": "Größe", "body": "a\n" * 10_000, "team": "IT"}
    with (
        start("worker"),
        start("api") as gateway,
        Arrivals(infra.kafka_bootstrap, tenant) as arrivals,
        gateway.client("ann", tenant, "sender") as ann,
    ):
        filed = ann.post(PATH, json=asked)
        assert filed.status_code == 201
        arrivals.until(lambda: bool(arrivals.records))
    ((key, headers, value),) = arrivals.records
    assert key == f"{tenant}:ann"
    event = await codec.decode(headers, value, {RequestCreated})
    assert event == RequestCreated(request_id=filed.json()["id"], tenant=tenant, sender="ann", channel="api", **asked)
    assert headers["ce_source"] == b"gateway"
    assert headers["ce_subject"].decode() == filed.json()["id"]


@pytest.mark.usefixtures("deployed")
def test_kafka_and_the_registry_may_be_away(infra: Infra, start: Start, home: Home, tenant: str) -> None:
    """Every request is answered 201 meanwhile; afterwards every event arrives, in order per sender."""
    registry = infra.registry_url.split("/")[2]
    keys = [f"{tenant}:s{number}" for number in range(SENDERS)]
    with (
        proxied(infra.kafka_bootstrap, kafka=True) as kafka,
        proxied(registry, kafka=False) as schemas,
        start("worker", kafka_bootstrap=kafka.address),
        start(
            "api",
            kafka_bootstrap=kafka.address,
            registry_url=infra.registry_url.replace(registry, schemas.address),
        ) as gateway,
        Arrivals(infra.kafka_bootstrap, tenant) as arrivals,
    ):

        def file(number: int) -> list[str]:
            """One sender's requests, one after the other."""
            ids = []
            with gateway.client(f"s{number}", tenant, "sender") as client:
                for place in range(EACH):
                    answer = client.post(PATH, json={"title": f"{place}", "team": "IT"})
                    assert answer.status_code == 201, answer.text
                    ids.append(answer.json()["id"])
            return ids

        def file_all() -> list[list[str]]:
            with ThreadPoolExecutor(SENDERS) as crowd:
                return list(crowd.map(file, range(SENDERS)))

        before = file_all()
        arrivals.until(lambda: all(len(arrivals.ids(key)) == EACH for key in keys))
        schemas.cut()
        kafka.cut()
        during = file_all()
        arrivals.poll(1.0)
        assert sum(len(arrivals.ids(key)) for key in keys) == SENDERS * EACH, "Kafka is away"
        kafka.heal()
        arrivals.until(lambda: all(len(arrivals.ids(key)) == 2 * EACH for key in keys))
    for key, first, then in zip(keys, before, during, strict=True):
        assert arrivals.ids(key) == first + then
    assert home.rows("select count(*) from outbox_refused") == [(0,)]


@contextmanager
def killed_at_the_end(
    infra: Infra, home: Home, folder: Path, **settings: object
) -> "Iterator[tuple[Running, httpx.Client]]":
    """An api that is alive, ready or not, and a sender's client of it; kill -9 at the end."""
    url = f"http://127.0.0.1:{settings['port']}"
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.gateway.main", "api"],
            env=variables(infra, home, folder, settings),
            stderr=output,
            cwd=folder,
        )
    running = Running(url, process, log)
    try:
        wait_for(lambda: status(url, "healthz") == 200)
        with running.client("ann", f"{settings['port']}", "sender") as client:
            yield running, client
    finally:
        running.kill()


def status(url: str, path: str) -> int:
    try:
        return httpx.get(f"{url}/{path}", trust_env=False).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.usefixtures("deployed")
def test_an_api_that_is_killed_while_the_registry_is_away_files_requests_again(
    infra: Infra, home: Home, tmp_path: Path
) -> None:
    """One that never met the registry lists them, refuses new ones, and goes on by itself once it is there."""
    registry = infra.registry_url.split("/")[2]
    asked = {"title": "A chair", "team": "IT"}
    home.change("delete from schema_ids")
    with proxied(registry, kafka=False) as schemas:
        schemas.cut()
        given: dict[str, object] = {
            "port": free_port(),
            "kafka_bootstrap": "127.0.0.1:9",
            "registry_url": infra.registry_url.replace(registry, schemas.address),
        }
        with killed_at_the_end(infra, home, tmp_path, **given) as (api, ann):
            wait_for(lambda: "start.waits" in api.log.read_text())
            assert ann.get("/readyz").json()["parts"] == {"database": "ok", "schemas": "failing"}
            assert ann.get(PATH).json()["items"] == []
            refused = ann.post(PATH, json=asked)
            assert refused.status_code == 503
            assert "Retry-After" in refused.headers
            schemas.heal()
            wait_for(lambda: status(api.url, "readyz") == 200)
            assert ann.post(PATH, json=asked).status_code == 201
        schemas.cut()
        with killed_at_the_end(infra, home, tmp_path, **given) as (api, ann):
            wait_for(lambda: status(api.url, "readyz") == 200)
            assert ann.post(PATH, json=asked).status_code == 201
            assert len(ann.get(PATH).json()["items"]) == 2
    said = api.log.read_text()
    assert said.count("codec.uses_kept_ids") == 1
    assert "Traceback" not in said
    assert home.rows("select distinct get_byte(payload, 0) from outbox where key = %s", f"{given['port']}:ann") == [
        (0,)
    ]
    ids = home.rows("select count(distinct substr(payload, 1, 5)) from outbox where key = %s", f"{given['port']}:ann")
    assert ids == [(1,)]


@pytest.mark.usefixtures("deployed")
def test_an_api_that_starts_while_postgres_is_away_waits_for_it(infra: Infra, home: Home, tmp_path: Path) -> None:
    with proxied(host_of(home.conninfo), kafka=False) as database:
        database.cut()
        given: dict[str, object] = {
            "port": free_port(),
            "database_url": f"postgresql://{home.name}@{database.address}/{home.name}",
        }
        log = tmp_path / "log"

        def heal_once_it_waits() -> None:
            wait_for(lambda: log.exists() and "start.waits" in log.read_text())
            database.heal()

        healing = threading.Thread(target=heal_once_it_waits)
        healing.start()
        with killed_at_the_end(infra, home, tmp_path, **given) as (api, ann):
            healing.join()
            wait_for(lambda: status(api.url, "readyz") == 200)
            assert ann.post(PATH, json={"title": "A chair", "team": "IT"}).status_code == 201
    said = api.log.read_text()
    assert '"resource": "database"' in said
    assert "start.goes_on" in said
    assert "Traceback" not in said
