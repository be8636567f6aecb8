"""`workbot events`: how far each consumer is, and delivering again what one has had."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import psycopg
import typer
from psycopg.conninfo import make_conninfo
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from messaging.errors import Misconfigured
from messaging.lag import Lag, PartitionLag
from messaging.ledger import highest_generation
from messaging.message import Key, wrong_in_part
from messaging.policy import Subscription
from messaging.redelivery import Redelivery, Stretch, next_generation
from messaging.settings import read_secret
from schemas import topics
from schemas.topics import Topics
from stack import control, services
from stack.endpoints import Endpoints
from stack.terminal import Chosen, faults, out, say

EARLIEST = "EARLIEST"

LOOK_SECONDS = 2.0
"""How often it is looked whether a consumer that must not run has begun to."""

app = typer.Typer(no_args_is_help=True, help="How far consumers are, and delivering events again.")


@dataclass(frozen=True, slots=True)
class _Order:
    """One consumer's part of a replay."""

    subscription: Subscription
    redelivery: Redelivery
    generation: int
    stretches: Sequence[Stretch]

    @property
    def offsets(self) -> int:
        return sum(stretch.end - stretch.first for stretch in self.stretches)


@app.command()
def positions(
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this one: a consumer's name, or <topic>.<consumer>.")
    ] = None,
) -> None:
    """Show each consumer's position, end, lag and the age of its oldest unread record, by partition.

    A position of - is one that the consumer has not kept yet: it has not finished a record of that partition. An age
    of - means that nothing waits, or that the oldest record could not be read in time.
    """
    with faults():
        listed = topics.load()
        subscriptions = _chosen(listed, consumer)
        endpoints = control.reach(Chosen.settings.data_dir, "kafka")
        found = asyncio.run(_lag(endpoints, listed, subscriptions))
        drawn = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("consumer", "topic", "partition", "position", "end", "lag", "oldest unread"):
            name = title in ("consumer", "topic")
            # On a narrow terminal names are folded: a number that is cut short is another one.
            drawn.add_column(title, justify="left" if name else "right", no_wrap=not name, overflow="fold")
        for subscription, partitions in zip(subscriptions, found, strict=True):
            for at in partitions:
                position = "-" if at.position is None else str(at.position)
                age = "-" if at.oldest_seconds is None else f"{at.oldest_seconds:.1f} s"
                drawn.add_row(
                    subscription.consumer, at.topic, str(at.partition), position, str(at.end), str(at.lag), age
                )
        out.print(drawn)
        if any(at.position is None for partitions in found for at in partitions):
            say(
                "A position of -: the consumer has not finished a record there yet; it begins with the oldest kept.",
                out,
            )


@app.command()
def replay(
    consumer: Annotated[
        str, typer.Option(metavar="NAME", help="A consumer's name (all its topics), or <topic>.<consumer>.")
    ],
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help=f"ISO 8601, such as 2026-11-30T06:00 (UTC unless it says else), or {EARLIEST}: all that is kept.",
        ),
    ],
    key: Annotated[str | None, typer.Option(metavar="TENANT:SENDER", help="Only the events of this sender.")] = None,
    while_running: Annotated[
        bool,
        typer.Option(
            "--while-running",
            help="Also when the consumer runs and keeps an order: old events then come between new ones.",
        ),
    ] = False,
) -> None:
    """Deliver again, to one consumer, the events it has had since a time.

    They come as new runs of the same messages: an effect that is tied to the event's id, such as a notification, is
    not made twice. The consumer's position does not move. Refused while a consumer that keeps an order runs.
    """
    with faults(), ExitStack() as stack:
        listed, now = topics.load(), datetime.now(UTC)
        start, wanted = _time(since, now), _key(key)
        subscriptions = _chosen(listed, consumer)
        for subscription in subscriptions:
            _refuse_impossible(listed, subscription)
        endpoints = control.reach(Chosen.settings.data_dir, "kafka", "postgres")
        orders = []
        for subscription in subscriptions:
            partitions = listed[subscription.topic].partitions
            redelivery = stack.enter_context(Redelivery(endpoints.kafka, subscription, partitions))
            if subscription.policy.ordered and not while_running and redelivery.running():
                raise _runs(listed, subscription)
            highest = asyncio.run(_highest_generation(endpoints, listed, subscription))
            orders.append(
                _Order(subscription, redelivery, next_generation(highest, now), redelivery.stretches(start))
            )
        for order in orders:
            _carry_out(order, wanted, guarded=order.subscription.policy.ordered and not while_running)


def _runs(listed: Topics, subscription: Subscription) -> Misconfigured:
    parts = [child.name for child in control.status(Chosen.settings.data_dir).children]
    part = services.consuming(listed[subscription.topic].consumers[subscription.consumer].service, parts)
    return Misconfigured(
        f"{subscription.topic}.{subscription.consumer} runs, and keeps an order per sender: what is delivered again "
        f"would race with what is new. Stop {part} first (`workbot stop {part}`) and start it afterwards, or say "
        "--while-running if old events may come between new ones."
    )


def _carry_out(order: _Order, key: Key | None, *, guarded: bool) -> None:
    """`guarded`: the consumer must not run meanwhile, and may come back by itself if it had only crashed."""
    name = f"{order.subscription.topic}.{order.subscription.consumer}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task(name, total=order.offsets)
        looked_at = time.monotonic()

        def progress(passed: int, copied: int) -> None:
            nonlocal looked_at
            bar.update(task, completed=passed)
            last = passed == order.offsets
            if guarded and (last or time.monotonic() > looked_at + LOOK_SECONDS):
                looked_at = time.monotonic()
                if order.redelivery.running():
                    raise Misconfigured(
                        f"{name} began to run meanwhile: {copied:,} old events may come between new ones. Stop it, "
                        "and say this again for the rest."
                    )

        copied = order.redelivery.run(order.stretches, key, order.generation, progress)
    whose = "" if key is None else f" of {key}"
    out.print(f"{name}: {copied:,} events{whose} are delivered again.", highlight=False, markup=False)


def _chosen(listed: Topics, name: str | None) -> list[Subscription]:
    all_ = [listed.subscription(topic, consumer) for topic in listed for consumer in listed[topic].consumers]
    chosen = [one for one in all_ if name in (None, one.consumer, f"{one.topic}.{one.consumer}")]
    if not chosen:
        known = ", ".join(f"{one.topic}.{one.consumer}" for one in all_)
        raise Misconfigured(f"There is no consumer {name!r}. There are: {known}.")
    return chosen


def _refuse_impossible(listed: Topics, subscription: Subscription) -> None:
    topic, name = listed[subscription.topic], f"{subscription.topic}.{subscription.consumer}"
    if topic.until_done:
        raise Misconfigured(
            f"{subscription.topic} keeps no job that is done, so there is nothing to deliver again to {name}. What "
            "died can be sent back: docs/capabilities/dead-letters.md."
        )
    if not topic.consumers[subscription.consumer].replay:
        raise Misconfigured(f"{name} counts what it reads: what is delivered again would be counted again.")


def _time(text: str, now: datetime) -> float | None:
    if text.upper() == EARLIEST:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Misconfigured(
            f"--from {text!r} is neither {EARLIEST} nor a time such as 2026-11-30T06:00 or 2026-11-30T06:00+01:00."
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if at > now:
        raise Misconfigured(
            f"--from {at.isoformat()} is still to come; now it is {now.isoformat(timespec='seconds')}."
        )
    return at.timestamp()


def _key(text: str | None) -> Key | None:
    if text is None:
        return None
    tenant, colon, sender = text.partition(":")
    if not colon:
        raise Misconfigured(f"--key takes TENANT:SENDER, such as acme:nadia, not {text!r}.")
    for name, part in (("tenant", tenant), ("sender", sender)):
        if wrong := wrong_in_part(part):
            raise Misconfigured(f"--key takes TENANT:SENDER, such as acme:nadia; in {text!r} the {name} {wrong}.")
    return Key(tenant, sender)


async def _lag(endpoints: Endpoints, listed: Topics, of: Sequence[Subscription]) -> list[list[PartitionLag]]:
    lag = Lag(endpoints.kafka, "workbot-positions")
    try:
        places = {
            one: [(name, n) for name in (one.topic, one.retry_topic) for n in range(listed[one.topic].partitions)]
            for one in of
        }
        groups: dict[str, list[tuple[str, int]]] = {}
        for one, wanted in places.items():
            groups.setdefault(one.group, []).extend(wanted)
        found = await lag.of(groups)
        by_place = {(group, at.topic, at.partition): at for group, all_ in found.items() for at in all_}
        return [[by_place[one.group, *place] for place in wanted] for one, wanted in places.items()]
    finally:
        await lag.close()


async def _highest_generation(endpoints: Endpoints, listed: Topics, subscription: Subscription) -> int:
    service = listed[subscription.topic].consumers[subscription.consumer].service
    password = read_secret(endpoints.owner.password_file, "the owner's database password")
    conninfo = make_conninfo(endpoints.owner.url, dbname=service, password=password, connect_timeout=5)
    async with await psycopg.AsyncConnection.connect(conninfo) as conn:
        return await highest_generation(conn, subscription.name)
