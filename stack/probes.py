"""Asking a child over HTTP whether it is ready: one plain request, without what a full client sets up each time."""

import asyncio
import json
from urllib.parse import urlsplit

from stack.child import NotReady

_LONGEST = 64 * 1024


async def expect_ok(url: str) -> None:
    """GET the address. Raises NotReady with what came back unless that is a 200, OSError when nobody listens."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        answer = await reader.read(_LONGEST)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ")
    if len(status) < 2 or status[1] != b"200":
        said = _said(body.decode("utf-8", errors="replace").strip())[:150]
        raise NotReady(f"{parts.path} answered {status[1].decode() if len(status) > 1 else 'nothing'}: {said}")


def _said(body: str) -> str:
    """What is for people in it: of a problem its detail."""
    try:
        problem = json.loads(body)
    except ValueError:
        return body
    return str(problem["detail"]) if isinstance(problem, dict) and "detail" in problem else body
