"""The supervisor's side of the control socket: JSON lines, one request and one answer each."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

log = structlog.get_logger("stack")

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Refused(Exception):
    """What was asked for cannot be done; the message is the answer."""


class Desk:
    """Answers `{"do": name, …}` with what the handler of that name returns, or with `{"error": …}`."""

    def __init__(self, listener: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._listener = listener
        self._handlers = handlers

    async def __aenter__(self) -> "Desk":
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listener)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            log.warning("a control connection broke off")
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            handler = self._handlers[request["do"]]
        except (ValueError, KeyError, TypeError):
            return {"error": "not a request this stack knows"}
        try:
            return await handler(request)
        except Refused as refusal:
            return {"error": str(refusal)}
        except Exception as error:  # the desk outlives a handler's fault; who asked is told
            log.exception("a control request failed")
            return {"error": f"{type(error).__name__}: {error}"}
