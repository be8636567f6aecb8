"""A header whose name is not UTF-8: any other client may write one, and it must not kill whoever reads it."""

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from messaging.job import Job
from tests.fixtures.stack import Infra
from tests.messaging.harness import Recording, consuming, read_all, send, subscription, until

WARM = 200
"""Records before it: CPython treats what ran often otherwise than what runs first."""


def put_garbled(infra: Infra, topic: str, key: bytes, value: bytes, name: bytes) -> None:
    """Produce a record with such a header, past the Python client: it takes only text for names."""
    (library,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    kafka = ctypes.CDLL(str(library))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(kafka, function).restype = pointer
    error = ctypes.create_string_buffer(256)
    config = pointer(kafka.rd_kafka_conf_new())
    assert (
        kafka.rd_kafka_conf_set(config, b"bootstrap.servers", infra.kafka_bootstrap.encode(), error, size(256)) == 0
    )
    producer = pointer(kafka.rd_kafka_new(0, config, error, size(256)))
    assert producer.value, error.value
    headers = pointer(kafka.rd_kafka_headers_new(size(1)))
    assert kafka.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(-1), b"v", ctypes.c_ssize_t(1)) == 0
    # Pairs of a tag and its arguments, see rd_kafka_vtype_t: topic, value, key, flags (copy), headers, end.
    refused = kafka.rd_kafka_producev(
        producer,
        *(ctypes.c_int(1), ctypes.c_char_p(topic.encode())),
        *(ctypes.c_int(4), ctypes.c_char_p(value), size(len(value))),
        *(ctypes.c_int(5), ctypes.c_char_p(key), size(len(key))),
        *(ctypes.c_int(7), ctypes.c_int(2)),
        *(ctypes.c_int(10), headers),
        ctypes.c_int(0),
    )
    assert refused == 0
    assert kafka.rd_kafka_flush(producer, ctypes.c_int(10_000)) == 0
    kafka.rd_kafka_destroy(producer)


@pytest.mark.parametrize("suffix", ["", ".reader.retry"])
async def test_it_is_a_dead_letter_and_the_next_record_runs(
    infra: Infra, topic: Callable[..., str], suffix: str
) -> None:
    sub = subscription(topic())
    topic(name=sub.retry_topic)
    topic(name=sub.dead_letter_topic)
    handler = Recording(_nothing)
    send(infra.kafka_bootstrap, sub.topic + suffix, [("acme:ann", n) for n in range(WARM)])
    for _ in range(2):
        await asyncio.to_thread(put_garbled, infra, sub.topic + suffix, b"acme:ann", b"not JSON", b"\xff\xfe")
    send(infra.kafka_bootstrap, sub.topic + suffix, [("acme:ann", 1)])
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) == WARM + 1, what="the next record runs")
        await until(lambda: len(read_all(infra.kafka_bootstrap, sub.dead_letter_topic)) == 2, what="dead letters")
    letters = read_all(infra.kafka_bootstrap, sub.dead_letter_topic)
    assert {(letter.key(), letter.value()) for letter in letters} == {(b"acme:ann", b"not JSON")}


async def _nothing(_job: Job) -> None:
    """A no-op job."""
