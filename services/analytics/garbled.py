"""Records with a header whose name is not UTF-8, made readable for the Kafka client that faust uses.

It fails at the batch that holds one, again at each start, and so would stop the stream for good. Such a batch is read
once more, in Python, with a mark in place of what is no text; a record with the mark counts as one without headers.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record import memory_records
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy
from aiokafka.record.util import decode_varint_py

from messaging.message import RawHeaders, header_pairs

MARK = "\ufffd"


def install() -> None:
    """For every client of this process, from now on. Raises RuntimeError when aiokafka is not as it was in 0.14.0."""
    if getattr(fetcher, "MemoryRecords", None) not in (memory_records.MemoryRecords, _Records):
        raise RuntimeError("aiokafka reads records in another way now; see services/analytics/garbled.py.")
    fetcher.MemoryRecords = _Records


def readable(headers: RawHeaders) -> RawHeaders:
    """The headers, or none if one of their names could not be read."""
    pairs = header_pairs(headers)
    return [] if any(MARK in name for name, _ in pairs) else pairs


class _Records(_MemoryRecordsPy):  # type: ignore[misc]
    def next_batch(self, *bounds: Any) -> Any:
        raw = self._next_slice
        batch = super().next_batch(*bounds)
        return None if batch is None else _Batch(batch, raw)


class _Batch:
    """A batch as the client reads it, unless that fails."""

    def __init__(self, batch: Any, raw: Any) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        # Asked of the mark that ends a transaction.
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._batch))
        except UnicodeDecodeError:
            return iter(list(_Patient(self._raw)))


class _Patient(_DefaultRecordBatchPy):  # type: ignore[misc]
    _buffer: Any

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Text(self._buffer)

    def _read_msg(self, _decode: Any = None) -> Any:
        return super()._read_msg(decode_varint_py)


class _Text(bytearray):
    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Text(found) if isinstance(index, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "replace")
