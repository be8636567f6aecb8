"""Bad input to the real workers: every consumer and its retry topic sets it aside, the projector shows it."""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from messaging.message import new_id
from schemas import topics
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from tests.fixtures.bad_input import Headers, Placing, Raw, bad_records, within_a_second
from tests.fixtures.processes import Home, Running
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start
from tests.gateway.letterbox import dead

READERS = {"documents.jobs": "reader"}
"""The consumers that are shown bad input here."""


@dataclass(frozen=True)
class House:
    """The documents service and the gateway's worker, and a job of theirs that can be read again and again."""

    infra: Infra
    worker: Running
    gateway_home: Home
    documents_home: Home
    job: Raw
    other_schema: int

    def good(self, size: int = 0) -> Raw:
        """The job once more, under an id of its own and about `size` bytes long: its document was read, so it is done
        at once."""
        filler = bytes(max(0, size - self.job.size - 200))
        return self.job.but(ce_id=str(new_id()).encode(), filler=filler)

    def started_behind(self, records: list[Raw], topic: str, placing: Placing) -> tuple[float, list[int]]:
        """Seconds from the writing of these, and of a good job behind them, to that job's start; their offsets."""
        good = self.good()
        message_id = dict(good.headers)["ce_id"]
        assert message_id is not None
        began = time.time()
        offsets = placing.put(topic, [*records, good])
        query = "select extract(epoch from started_at) from ledger_attempts where message_id = %s"
        ((started,),) = soon(lambda: self.documents_home.rows(query, message_id.decode()))
        return float(str(started)) - began, offsets[:-1]

    def letters(self, where: str, *parameters: object) -> list[tuple[object, ...]]:
        columns = "key, value, header_names, header_values, reason"
        return self.gateway_home.rows(f"select {columns} from dead_letters where {where}", *parameters)


def soon(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def house(infra: Infra, start: Start, start_documents: Start, home: Home, documents_home: Home) -> Iterator[House]:
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    with start_documents("api") as api, start_documents("worker") as worker, start("worker"):
        with api.client("ann", tenant, "sender") as ann:
            href = ann.post("/api/documents", json={"text": "Invoice 7 from Acme Ltd, total 12.50 EUR"}).json()[
                "href"
            ]
            soon(lambda: ann.get(href).json()["status"] in ("approved", "waiting_for_review"))
        job_row, other_row = (
            documents_home.rows("select key, payload, version, subject from outbox where type = %s", type_)[0]
            for type_ in ("document.reading_requested", "document.received")
        )
        key, payload, version, subject = job_row
        headers: Headers = [
            ("ce_id", b""),
            ("ce_type", b"document.reading_requested"),
            ("event_version", str(version).encode()),
            ("ce_subject", str(subject).encode()),
        ]
        assert isinstance(payload, bytes)
        assert isinstance(other_row[1], bytes)
        job = Raw(str(key).encode(), payload, headers)
        yield House(infra, worker, home, documents_home, job, int.from_bytes(other_row[1][1:5], "big"))


def test_every_consumer_there_is_is_shown_bad_input() -> None:
    """Whoever adds one adds it here."""
    known = topics.load()
    assert {(topic, consumer) for topic in known for consumer in known[topic].consumers} == set(READERS.items())


@pytest.mark.parametrize("retry", [False, True], ids=["topic", "retry topic"])
@pytest.mark.parametrize("source", READERS)
def test_bad_input_is_set_aside_and_the_next_job_goes_on(house: House, source: str, retry: bool) -> None:
    subscription = topics.load().subscription(source, READERS[source])
    topic = subscription.retry_topic if retry else source
    limit = MAX_RECORD_BYTES + (HEADROOM_BYTES if retry else 0)
    placing = Placing(house.infra.kafka_bootstrap)
    largest, _ = placing.put_largest(topic, house.good(), limit)
    written: dict[str, tuple[Raw, str, int]] = {}

    def behind_bad() -> float:
        bad = bad_records(house.good(), house.other_schema)
        bad["largest"] = (largest.but(ce_id=str(new_id()).encode()), "undecodable")
        seconds, offsets = house.started_behind([raw for raw, _ in bad.values()], topic, placing)
        written.update({name: (*bad[name], offset) for name, offset in zip(bad, offsets, strict=True)})
        return seconds

    def behind_good() -> float:
        bad = bad_records(house.good(), house.other_schema)
        sizes = [raw.size for raw, _ in bad.values()]
        return house.started_behind([house.good(size) for size in [*sizes, largest.size]], topic, placing)[0]

    house.started_behind([], topic, placing)  # the group has formed
    within_a_second(behind_good, behind_bad)
    ids = set()
    for name, (raw, reason, offset) in written.items():
        given = dict(raw.headers)
        # On a retry topic our own headers count: a consumer of ours would have written them.
        forged = given.get("workbot_origin") if retry else None
        origin = f"{topic}/0/{offset}" if forged is None else forged.decode()
        (letter,) = soon(
            lambda origin=origin: house.letters("source = %s and origin = %s and attempts = 1", source, origin)
        )
        kept = [(n.encode(), v) for n, v in raw.headers if not n.startswith("workbot_")]
        assert letter == (raw.key, raw.value, [n for n, _ in kept], [v for _, v in kept], reason), name
        ids.add((given.get("ce_id") or origin.encode()).decode())
    query = "select state, count(*) from ledger where message_id = any(%s) group by state"
    soon(lambda: house.documents_home.rows(query, list(ids)) == [("dead", len(written))])
    for path in ("/healthz", "/readyz"):
        assert httpx.get(house.worker.url + path, trust_env=False).status_code == 200


@pytest.mark.parametrize("source", READERS)
def test_bad_input_on_the_dead_letter_topic_is_shown_and_the_next_letter_follows(house: House, source: str) -> None:
    """Records that no consumer of ours wrote there; the projector stores them as they are."""
    topic = topics.load().subscription(source, READERS[source]).dead_letter_topic
    placing = Placing(house.infra.kafka_bootstrap)

    largest, _ = placing.put_largest(topic, house.good(), MAX_RECORD_BYTES + 2 * HEADROOM_BYTES)
    written: list[tuple[str, Raw, int]] = []

    def stored_behind(records: list[Raw]) -> tuple[float, list[int]]:
        message_id, began = str(new_id()), time.time()
        offsets = placing.put(topic, [*records, Raw(*dead("acme", message_id=message_id))])
        query = "select extract(epoch from stored_at) from dead_letters where message_id = %s"
        ((stored,),) = soon(lambda: house.gateway_home.rows(query, message_id))
        return float(str(stored)) - began, offsets[:-1]

    def behind_bad() -> float:
        bad = {name: raw for name, (raw, _) in bad_records(house.good(), house.other_schema).items()}
        bad["largest"] = largest.but(ce_id=str(new_id()).encode())
        seconds, offsets = stored_behind(list(bad.values()))
        written[:] = zip(bad, bad.values(), offsets, strict=True)
        return seconds

    def behind_good() -> float:
        sizes = [raw.size for raw, _ in bad_records(house.good(), house.other_schema).values()]
        letters = [dead("acme") for _ in [*sizes, largest.size]]
        return stored_behind(
            [
                Raw(key, bytes(max(0, size - len(key or b"") - 500)), headers)
                for size, (key, _, headers) in zip([*sizes, largest.size], letters, strict=True)
            ]
        )[0]

    stored_behind([])
    within_a_second(behind_good, behind_bad)
    for name, raw, offset in written:
        (letter,) = soon(
            lambda offset=offset: house.letters('topic = %s and "partition" = 0 and "offset" = %s', topic, offset)
        )
        kept = [(n.encode(), v) for n, v in raw.headers if not n.startswith("workbot_")]
        reason = "none of yours" if name.startswith("forged") else "unknown"
        assert letter == (raw.key, raw.value, [n for n, _ in kept], [v for _, v in kept], reason), name
