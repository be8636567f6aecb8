"""A service behind us, over kept HTTP/1.1 connections, both bodies streamed."""

import asyncio
import select
import socket
from collections.abc import AsyncIterable, Iterable
from typing import Any

import httpcore

from messaging.errors import Misconfigured
from messaging.process import MAX_CONNECTIONS

CONNECT_SECONDS = 2.0
KEPT_CONNECTIONS = 50
KEPT_SECONDS = 3.0
"""Less than the 5 s after which uvicorn closes an idle connection, so that none is closed just as it is used."""


class Upstream:
    """Calls one origin, such as http://127.0.0.1:3310. No cookies, no redirects, no header that was not given."""

    def __init__(self, origin: str, silence_seconds: float) -> None:
        self.origin = origin
        url = httpcore.URL(origin)
        if url.scheme != b"http" or not url.host:
            raise Misconfigured(f"A service behind the gateway is reached at http://host:port, not {origin!r}.")
        self._host, self._port = url.host, url.port or 80
        self.authority = self._host + (b":%d" % self._port)
        self._timeouts = {
            "timeout": dict.fromkeys(("read", "write"), silence_seconds)
            | {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS}
        }
        self._pool = httpcore.AsyncConnectionPool(
            # As many as we serve: a call, however long its answer streams, never waits for another's to end.
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEPT_SECONDS,
            network_backend=_Sockets(),
        )

    async def send(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: AsyncIterable[bytes]
    ) -> httpcore.Response:
        """The answer, as soon as its headers are there; close it. `target` is path and query as they were sent.

        Raises what httpcore raises, and what `body` does.
        """
        url = httpcore.URL(scheme=b"http", host=self._host, port=self._port, target=target)
        request = httpcore.Request(method, url, headers=headers, content=body, extensions=self._timeouts)
        return await self._pool.handle_async_request(request)

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Sockets(httpcore.AsyncNetworkBackend):
    """Plain sockets on the loop.

    A service may answer before it has read the whole request (413) and close. Whoever is still sending then meets an
    error, and an asyncio transport, httpcore's own backend, throws the answer away with the connection. A socket does
    not: what has arrived can be read.
    """

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                family, kind, protocol, _name, address = (
                    await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                )[0]
                connection = socket.socket(family, kind, protocol)
                try:
                    connection.setblocking(False)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.sock_connect(connection, address)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return _Stream(connection)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._loop.sock_recv(self._socket, max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._loop.sock_sendall(self._socket, buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            # Asked of an idle connection: the other side has closed it.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(0))
        return None
