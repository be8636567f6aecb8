"""The schema registry, over the Confluent API. A schema id never changes its meaning, so ids are cached for ever."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from messaging.errors import Misconfigured, Outage, UnknownEvent

Schema = dict[str, Any]
"""An Avro record schema as JSON has it."""

COMPATIBILITY = "FULL_TRANSITIVE"
"""Every version reads every other: consumers and producers of any age work side by side."""

MAX_SCHEMA_ID = 2**31 - 1
"""The largest id there can be: the API's ids are 32-bit integers with a sign. Nobody is asked for one beyond it."""

UNKNOWN_SECONDS = 1.0
"""How long an id that the registry did not know is taken for unknown without asking again: however often one id
comes, it costs a call a second. So short because ids count up, and the next to be registered must not be refused for
what came before. Each other id costs a call of its own, and those have no bound: what is over one could neither be
called unknown, for it may just have been registered, nor wait, without holding up everybody.
"""
UNKNOWN_KEPT = 1000
"""How many of them are remembered, the last ones."""

_COLLISION_WAITS = (0.05, 0.1, 0.2, 0.4)  # seconds
_NOT_FOUND = {40401, 40402, 40403}  # the API's own codes: no such subject, version, schema


class Registry:
    """A client of the registry, for one event loop.

    `url` is the base address of the Confluent API. Every call raises Outage (resource "registry") when the
    registry is away, too slow (`timeout` seconds) or fails by itself, and Misconfigured when it refuses us.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        # trust_env off: a proxy meant for the internet must not catch calls inside the house.
        self._http = httpx.AsyncClient(base_url=url.rstrip("/"), timeout=timeout, trust_env=False)
        self._by_id: dict[int, Schema] = {}
        self._unknown: dict[int, tuple[float, str]] = {}  # until when (monotonic), and why; oldest first
        self._pending: dict[int, asyncio.Task[Schema]] = {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def schema_by_id(self, schema_id: int) -> Schema:
        """The schema a value was written with; asked for once however many wait, then remembered.

        Raises UnknownEvent when no schema has this id, or none that we could use. A registry that refuses us says
        nothing about the record that was read, so here that is an Outage, too.
        """
        if schema_id in self._by_id:
            return self._by_id[schema_id]
        if schema_id > MAX_SCHEMA_ID:
            raise UnknownEvent(f"No registry has a schema with id {schema_id}.")
        if schema_id in self._unknown:
            until, why = self._unknown[schema_id]
            if time.monotonic() < until:
                raise UnknownEvent(why)
        task = self._pending.get(schema_id)
        if task is None:
            task = self._pending[schema_id] = asyncio.create_task(self._fetch(schema_id))
            task.add_done_callback(lambda done: self._answered(schema_id, done))
        # Shielded: one waiter that is cancelled must not take the answer from the others.
        return await asyncio.shield(task)

    async def lookup(self, subject: str, schema: Schema) -> int:
        """The id under which exactly this schema is registered. Raises Misconfigured when it is not."""
        try:
            answer = await self._call("POST", f"/subjects/{quote(subject, safe='')}", {"schema": text_of(schema)})
        except _Refused as refused:
            if refused.not_found:
                raise Misconfigured(
                    f"The registry does not have this version of {subject}. Run the deploy step."
                ) from refused
            raise refused.misconfigured(f"to look up {subject}") from refused
        return _integer(answer, "id")

    async def register(self, subject: str, schema: Schema) -> int:
        """Register a version, or find it registered; returns its id. Several may do so at once.

        The subject is held to FULL_TRANSITIVE before its first version is let in. Raises Misconfigured when the
        registry refuses the schema as incompatible.
        """
        path = quote(subject, safe="")
        try:
            # The level can be set before the subject has a version, so nothing is ever let in without it.
            await self._insist("PUT", f"/config/{path}", {"compatibility": COMPATIBILITY})
            answer = await self._insist("POST", f"/subjects/{path}/versions", {"schema": text_of(schema)})
        except _Refused as refused:
            raise refused.misconfigured(f"a version of {subject}") from refused
        return _integer(answer, "id")

    async def compatibility(self, subject: str) -> str:
        """The compatibility level that the registry holds a subject to. Raises Misconfigured when it has none."""
        try:
            answer = await self._call("GET", f"/config/{quote(subject, safe='')}")
        except _Refused as refused:
            raise refused.misconfigured(f"to tell the level of {subject}") from refused
        return str(answer.get("compatibilityLevel"))

    def _answered(self, schema_id: int, task: "asyncio.Task[Schema]") -> None:
        del self._pending[schema_id]
        if not task.cancelled():
            task.exception()  # looked at here, for when all who waited have given up

    async def _fetch(self, schema_id: int) -> Schema:
        try:
            schema = await self._ask(schema_id)
        except UnknownEvent as error:
            self._unknown.pop(schema_id, None)
            if len(self._unknown) >= UNKNOWN_KEPT:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[schema_id] = (time.monotonic() + UNKNOWN_SECONDS, str(error))
            raise
        self._by_id[schema_id] = schema
        return schema

    async def _ask(self, schema_id: int) -> Schema:
        try:
            answer = await self._call("GET", f"/schemas/ids/{schema_id}")
        except _Refused as refused:
            if refused.not_found:
                raise UnknownEvent(f"The registry has no schema with id {schema_id}.") from refused
            raise Outage(str(refused.misconfigured(f"to tell schema {schema_id}")), "registry") from refused
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise UnknownEvent(f"Schema {schema_id} is not Avro.")
        try:
            schema = json.loads(str(answer.get("schema")))
        except ValueError as error:
            raise Outage(f"The registry's schema {schema_id} is not JSON.", "registry") from error
        if not isinstance(schema, dict):
            raise UnknownEvent(f"Schema {schema_id} is not a record.")
        return schema

    async def _insist(self, method: str, path: str, body: Mapping[str, str]) -> dict[str, Any]:
        """A call that writes what others may be writing too: the registry turns the slower one away, as it does
        an incompatible schema. Only asking again tells them apart."""
        for wait in _COLLISION_WAITS:
            try:
                return await self._call(method, path, body)
            except _Refused as refused:
                if refused.status != HTTPStatus.CONFLICT:
                    raise
            except Outage:
                pass
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
        return await self._call(method, path, body)

    async def _call(self, method: str, path: str, body: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise Outage(f"The schema registry does not answer: {type(error).__name__}.", "registry") from error
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status_code in (
            HTTPStatus.REQUEST_TIMEOUT,
            HTTPStatus.TOO_MANY_REQUESTS,
        ):
            raise Outage(f"The schema registry answers {answer.status_code}.", "registry")
        try:
            content = answer.json()
        except ValueError as error:
            raise Outage(f"The schema registry answers {answer.status_code} and no JSON.", "registry") from error
        if not isinstance(content, dict):
            raise Outage("The schema registry's answer is not an object.", "registry")
        if not answer.is_success:
            raise _Refused(answer.status_code, content)
        return content


class _Refused(Exception):
    """The registry understood the call and said no. Public methods turn it into an error of the tree."""

    def __init__(self, status: int, content: Mapping[str, Any]) -> None:
        super().__init__(str(content.get("message", ""))[:500])
        self.status = status
        self.not_found = content.get("error_code") in _NOT_FOUND

    def misconfigured(self, doing: str) -> Misconfigured:
        return Misconfigured(f"The registry refuses {doing} ({self.status}): {self}")


def text_of(schema: Schema) -> str:
    """A schema as the registry is given it."""
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _integer(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if not isinstance(value, int):
        raise Outage(f"The schema registry's answer has no {name}.", "registry")
    return value
