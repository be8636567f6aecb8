"""How long `POST /api/documents` takes, beside `GET /healthz` on the same connection: what HTTP alone costs here."""

import http.client
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from loadtest import corpus
from loadtest.bench.figures import Round, Row, at_most, middle_and_slow
from loadtest.bench.pace import WARM_UP, Stop, apart, steadily
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging.errors import Outage
from web import tokens

_TOKEN_SECONDS = 3600.0
_TIMEOUT_SECONDS = 30.0


def rows(_sizes: Sizes) -> Sequence[Row]:
    """Median and p99 in milliseconds."""
    name = "POST /api/documents"
    return [
        Row("post.p50", f"{name}, p50", "ms", "GET /healthz"),
        Row("post.p99", f"{name}, p99", "ms", "GET /healthz", at_most(25)),
    ]


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """One kept-alive connection; a tenant of the bench's own, new in each run."""
    address = urlsplit(servers.documents_api)
    tenant = f"bench-{uuid.uuid4().hex[:8]}"
    token = tokens.issue(servers.token_secret, "bench", tenant, ["sender"], _TOKEN_SECONDS)
    text = corpus.page(1, 1).decode()
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS)
    try:

        async def take() -> Round:
            posts, gets = await apart(partial(_measure, connection, token, text, sizes))
            return middle_and_slow("post", posts, gets)

        yield take
    finally:
        connection.close()


def _measure(
    connection: http.client.HTTPConnection, token: str, text: str, sizes: Sizes, stop: Stop
) -> tuple[list[float], list[float]]:
    """Milliseconds of the POSTs and of the GETs, in turns."""
    posts, gets = [], []
    for _ in steadily(WARM_UP + max(1, round(sizes.requests * sizes.seconds)), sizes.requests, stop):
        # A text of its own each time: nothing may be answered from what is known.
        posts.append(_post(connection, token, f"{text}\n{uuid.uuid4()}"))
        gets.append(_timed(connection, "GET", "/healthz", None, {}, http.client.OK))
    return posts[WARM_UP:], gets[WARM_UP:]


def _post(connection: http.client.HTTPConnection, token: str, text: str) -> float:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"text": text}).encode()
    return _timed(connection, "POST", "/api/documents", body, headers, http.client.ACCEPTED)


def _timed(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    expected: int,
) -> float:
    """Milliseconds from sending to the last byte of the answer. Raises Outage when it is not the expected one."""
    begun = time.perf_counter()
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Outage(f"The documents API does not answer {method} {path}: {error}", "documents") from error
    taken = (time.perf_counter() - begun) * 1000
    if answer.status != expected:
        told = said[:300].decode(errors="replace")
        raise Outage(f"The documents API answered {answer.status} to {method} {path}: {told}", "documents")
    return taken
