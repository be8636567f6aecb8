"""`workbot erase`: what is kept of one sender goes from the databases at once, from Kafka by retention."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import psycopg
import typer
from psycopg.conninfo import make_conninfo
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import services.analytics.erasure
import services.documents.erasure
import services.gateway.erasure
import services.notifications.erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.errors import MessagingError
from messaging.message import Key
from messaging.settings import read_secret
from services.documents.storage import LocalStorage
from stack import control
from stack.endpoints import Endpoints
from stack.terminal import Chosen, faults, out
from web.tokens import TEAM

Counts = Mapping[str, int]


class Line(NamedTuple):
    """How much of one kind a service keeps, or has erased."""

    service: str
    kind: str
    rows: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one service does about it, on a connection to its database."""

    service: str
    count: Callable[[Connection, Key], Awaitable[Counts]]
    erase: Callable[[Connection, Key, Told], Awaitable[Counts]]


AFTERMATHS = 2
AFTERMATH_SECONDS = 2.0
"""How often, and how long after, it is erased once more what runs under way wrote down meanwhile."""


class NotErased(MessagingError):
    """Something is left. What went is gone all the same, and erasing again goes on from there."""


def erase(
    tenant: Annotated[str, typer.Option(help="The sender's tenant.")],
    sender: Annotated[str, typer.Option(help="The sender: the user's id, `sub` of their tokens.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what there is.")] = False,
) -> None:
    """Erase what is kept of one sender: documents and files, requests, notifications, dead letters, counts.

    Shows how much there is and asks before anything goes. Safe to repeat, also after it broke off. End the sender's
    sign-in first: what they send meanwhile is kept. Kafka forgets by its retention; docs/capabilities/erasure.md says
    what goes when and what stays.

    Exits with 0 when all is gone (or was shown), with 1 when something is left or nothing was done.
    """
    owner = _owner(tenant, sender)
    with faults():
        endpoints = control.endpoints(Chosen.settings.data_dir)
        kept = asyncio.run(_count(endpoints, owner))
        out.print(f"Kept of sender {owner.sender} of tenant {owner.tenant}:", highlight=False, markup=False)
        out.print(_table(kept, "rows"))
        if dry_run:
            out.print("Counts by hour and day in analytics are not listed; they would go, too.", highlight=False)
            return
        if not yes:
            typer.confirm("Erase all of it for good?", abort=True)
        gone: list[Line] = []
        try:
            asyncio.run(_erase(endpoints, owner, kept, gone))
            for _ in range(AFTERMATHS):
                if not (left := _left(endpoints, owner)):
                    break
                # What was running when its rows went writes that down when it ends.
                time.sleep(AFTERMATH_SECONDS)
                asyncio.run(_erase(endpoints, owner, left, gone))
        finally:
            if gone:
                out.print("Erased:")
                out.print(_table(_summed(gone), "rows"))
        if left := _left(endpoints, owner):
            said = ", ".join(f"{line.rows} {line.kind} ({line.service})" for line in left)
            raise NotErased(f"This came in meanwhile: {said}. See that nothing is sent any more, then erase again.")
        out.print(
            "Nothing of this sender is left in the databases. Kafka forgets their records by retention: "
            "docs/capabilities/erasure.md.",
            highlight=False,
        )


def _left(endpoints: Endpoints, owner: Key) -> list[Line]:
    return [line for line in asyncio.run(_count(endpoints, owner)) if line.rows]


def _summed(lines: Sequence[Line]) -> list[Line]:
    """One line for each kind, in the order of the first."""
    sums: dict[tuple[str, str], int] = {}
    for service, kind, rows in lines:
        sums[service, kind] = sums.get((service, kind), 0) + rows
    return [Line(service, kind, rows) for (service, kind), rows in sums.items()]


async def _count(endpoints: Endpoints, owner: Key) -> list[Line]:
    lines = []
    for share in shares(LocalStorage(endpoints.storage)):
        async with _connected(endpoints, share.service) as conn:
            found = await share.count(conn, owner)
        lines += [Line(share.service, kind, rows) for kind, rows in found.items()]
    return lines


async def _erase(endpoints: Endpoints, owner: Key, kept: Sequence[Line], gone: list[Line]) -> None:
    """One service after the other, each before those that its events go to; `gone` grows with each that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        for share in shares(LocalStorage(endpoints.storage)):
            task = bar.add_task(share.service, total=sum(line.rows for line in kept if line.service == share.service))

            def told(_kind: str, more: int, task: TaskID = task) -> None:
                bar.advance(task, more)

            async with _connected(endpoints, share.service) as conn:
                found = await share.erase(conn, owner, told)
            gone += [Line(share.service, kind, rows) for kind, rows in found.items()]


def shares(storage: LocalStorage) -> list[Share]:
    """Every service's, in the order in which they are erased."""

    async def documents(conn: Connection, owner: Key, told: Told) -> Counts:
        return await services.documents.erasure.erase(conn, storage, owner, told)

    others = {
        "gateway": services.gateway.erasure,
        "notifications": services.notifications.erasure,
        "analytics": services.analytics.erasure,
    }
    return [
        Share("documents", services.documents.erasure.count, documents),
        *(Share(name, module.count, module.erase) for name, module in others.items()),
    ]


@asynccontextmanager
async def _connected(endpoints: Endpoints, service: str) -> AsyncIterator[Connection]:
    """As the owner of the tables; each statement is a transaction of its own. Raises NotErased for whatever
    goes wrong within.
    """
    password = read_secret(endpoints.owner.password_file, "the owner's database password")
    conninfo = make_conninfo(
        endpoints.owner.url,
        dbname=service,
        password=password,
        connect_timeout=5,
        application_name="workbot-erase",
    )
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            yield conn
    except (psycopg.Error, OSError) as error:
        reason = str(error).strip().rstrip(".")
        raise NotErased(f"{service}: {reason}. What is erased by now stays erased; run this again.") from error


def _owner(tenant: str, sender: str) -> Key:
    if ":" in tenant:
        raise typer.BadParameter("a tenant's name has no colon", param_hint="--tenant")
    if sender.startswith(TEAM):
        raise typer.BadParameter(f"no sender begins with {TEAM!r}: that is a team", param_hint="--sender")
    try:
        return Key.parse(f"{tenant}:{sender}".encode())
    except ValueError as error:
        hint = "--sender" if tenant else "--tenant"
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _table(lines: Sequence[Line], counted: str) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("service")
    drawn.add_column("what")
    drawn.add_column(counted, justify="right")
    for line in lines:
        drawn.add_row(line.service, line.kind, f"{line.rows:,}")
    return drawn
