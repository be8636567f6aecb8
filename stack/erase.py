"""`workbot erase`: what is kept of one sender goes from the databases at once, from Kafka by retention."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import services.analytics.erasure
import services.documents.erasure
import services.gateway.erasure
import services.notifications.erasure
from messaging import erasure
from messaging.database import Connection
from messaging.erasure import RUNS, Told
from messaging.message import Key, wrong_in_part
from services.documents.storage import LocalStorage
from stack import control
from stack.agreement import Counts, NotErased, Share, agree, alone, connected
from stack.endpoints import Endpoints
from stack.terminal import Chosen, faults, out, say
from web.tokens import TEAM


class Line(NamedTuple):
    """How much of one kind a service keeps, or has erased."""

    service: str
    kind: str
    rows: int


AFTERMATHS = 2
AFTERMATH_SECONDS = 2.0
"""How often, and how long after, it is looked for what runs under way wrote down of themselves meanwhile."""


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

    Exits with 0 when all is gone, was shown, or there was nothing; with 1 when something is left (other than lines of
    runs that have just ended), no stack runs, or the answer was no.
    """
    owner = _owner(tenant, sender)
    with faults():
        endpoints = control.reach(Chosen.settings.data_dir, "postgres")
        kept, asked_at = asyncio.run(_known(endpoints, owner))
        whose = f"sender {owner.sender} of tenant {owner.tenant}"
        something = any(line.rows for line in kept)
        unknown = not something and asked_at is None
        if something:
            say(f"Kept of {whose}:", out)
            out.print(_table(kept, "rows"))
        elif unknown:
            say(f"Nothing is known of {whose}; is the name right?", out)
        else:
            say(f"Nothing is kept of {whose}, whose erasure was asked for before: as of {asked_at:%F %T %Z}.", out)
        if dry_run:
            out.print("Counts by hour and day in analytics are not listed; they would go, too.", highlight=False)
            return
        if not yes:
            typer.confirm("Erase all of it for good?", abort=True)
        every = shares(LocalStorage(endpoints.storage))
        gone: list[Line] = []
        try:
            with alone(endpoints, every[0].service, owner):
                until = asyncio.run(agree(endpoints, every, owner))
                asyncio.run(_erase(endpoints, owner, until, kept, gone))
                _erase_aftermath(endpoints, owner, gone)
        finally:
            if any(line.rows for line in gone):
                out.print("Erased:")
                out.print(_table(_summed(gone), "rows"))
        left = asyncio.run(_look(endpoints, owner))[1]
        if any(line.kind != RUNS.kind for line in left):
            said = ", ".join(f"{line.rows} {line.kind} ({line.service})" for line in left)
            raise NotErased(f"This came in meanwhile: {said}. See that nothing is sent any more, then erase again.")
        if unknown and not left and not any(line.rows for line in gone):
            say(f"Nothing was known of {whose}, so nothing was erased; is the name right?", out)
            return
        say(
            f"Nothing of this sender is left in the databases{_but_runs(left)}. Kafka forgets their records by "
            "retention: docs/capabilities/erasure.md.",
            out,
        )


def _erase_aftermath(endpoints: Endpoints, owner: Key, gone: list[Line]) -> None:
    """Runs of what went are written down when they end."""
    for _ in range(AFTERMATHS):
        looked_at, left = asyncio.run(_look(endpoints, owner))
        if not left or any(line.kind != RUNS.kind for line in left):
            return
        # Nothing is new, so these are of what went.
        time.sleep(AFTERMATH_SECONDS)
        asyncio.run(_erase_runs(endpoints, owner, looked_at, left, gone))


async def _known(endpoints: Endpoints, owner: Key) -> tuple[list[Line], datetime | None]:
    """What is kept, and as of when an erasure of that name was asked for; None: never, as far as is remembered."""
    async with connected(endpoints, shares(LocalStorage(endpoints.storage))[0].service) as conn:
        asked_at = await erasure.asked_for(conn, owner)
    return await _count(endpoints, owner), asked_at


async def _look(endpoints: Endpoints, owner: Key) -> tuple[datetime, list[Line]]:
    """What is left, and from when on anything else is new."""
    async with connected(endpoints, shares(LocalStorage(endpoints.storage))[0].service) as conn:
        at = await erasure.moment(conn)
    return at, [line for line in await _count(endpoints, owner) if line.rows]


def _but_runs(left: Sequence[Line]) -> str:
    count = sum(line.rows for line in left)
    lines = "one line" if count == 1 else f"{count} lines"
    return f" but {lines} in the book of runs, of what has just ended" if count else ""


def _summed(lines: Sequence[Line]) -> list[Line]:
    """One line for each kind, in the order of the first."""
    sums: dict[tuple[str, str], int] = {}
    for service, kind, rows in lines:
        sums[service, kind] = sums.get((service, kind), 0) + rows
    return [Line(service, kind, rows) for (service, kind), rows in sums.items()]


async def _count(endpoints: Endpoints, owner: Key) -> list[Line]:
    lines = []
    for share in shares(LocalStorage(endpoints.storage)):
        async with connected(endpoints, share.service) as conn:
            found = await share.count(conn, owner)
        lines += [Line(share.service, kind, rows) for kind, rows in found.items()]
    return lines


async def _erase(endpoints: Endpoints, owner: Key, until: datetime, kept: Sequence[Line], gone: list[Line]) -> None:
    """One service after the other; `gone` grows with each that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        for share in shares(LocalStorage(endpoints.storage)):
            task = bar.add_task(share.service, total=sum(line.rows for line in kept if line.service == share.service))

            def told(_kind: str, more: int, task: TaskID = task) -> None:
                bar.advance(task, more)

            async with connected(endpoints, share.service) as conn:
                found = await share.erase(conn, owner, until, told)
            gone += [Line(share.service, kind, rows) for kind, rows in found.items()]


async def _erase_runs(
    endpoints: Endpoints, owner: Key, until: datetime, left: Sequence[Line], gone: list[Line]
) -> None:
    for service in sorted({line.service for line in left}):
        async with connected(endpoints, service) as conn:
            found = await erasure.erase(conn, [RUNS], owner, until, lambda kind, more: None)
        gone += [Line(service, kind, rows) for kind, rows in found.items()]


def shares(storage: LocalStorage) -> list[Share]:
    """Every service's, in the order in which they are erased."""

    async def documents(conn: Connection, owner: Key, until: datetime, told: Told) -> Counts:
        return await services.documents.erasure.erase(conn, storage, owner, until, told)

    others = {
        "gateway": services.gateway.erasure,
        "notifications": services.notifications.erasure,
        "analytics": services.analytics.erasure,
    }
    return [
        Share("documents", services.documents.erasure.count, services.documents.erasure.mark, documents),
        *(Share(name, module.count, module.mark, module.erase) for name, module in others.items()),
    ]


def _owner(tenant: str, sender: str) -> Key:
    if ":" in tenant:
        raise typer.BadParameter("a tenant's name has no colon", param_hint="--tenant")
    if sender.startswith(TEAM):
        raise typer.BadParameter(f"no sender begins with {TEAM!r}: that is a team", param_hint="--sender")
    for name, part in (("tenant", tenant), ("sender", sender)):
        if wrong := wrong_in_part(part):
            raise typer.BadParameter(f"the {name} {wrong}", param_hint=f"--{name}")
    return Key(tenant, sender)


def _table(lines: Sequence[Line], counted: str) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("service")
    drawn.add_column("what")
    drawn.add_column(counted, justify="right")
    for line in lines:
        drawn.add_row(line.service, line.kind, f"{line.rows:,}")
    return drawn
