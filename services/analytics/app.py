"""The faust app with the settings under which it loses nothing. docs/decisions/0007-analytics-tables.md has why."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import faust
import mode

from services.analytics import garbled
from services.analytics.committed import transport_of
from services.analytics.tables import Counts, Recovered, Tables

TABLE = "counts"

# It says of every batch that it has more to send than it sends at once.
logging.getLogger("faust.transport.producer").setLevel(logging.ERROR)
garbled.install()

COMMIT_SECONDS = 0.5
SESSION_SECONDS = 10.0
SEND_SECONDS = 90.0
"""How long a changelog record may take; after that the process ends, and the event is read again."""


def make_app(
    group: str,
    topics: Sequence[str],
    *,
    bootstrap: str,
    folder: Path,
    agent: Callable[[Any], Awaitable[None]],
    recovered: Recovered,
) -> tuple[faust.App, Counts]:
    """An app that is not started, and its table. `agent` takes the stream of all topics, one event after the other;
    `recovered` is awaited before it, whenever the tables are up to date.
    """
    app = faust.App(
        group,
        broker=f"kafka://{bootstrap}".replace(",", ";"),
        datadir=folder,
        store="rocksdb://",
        Table=Counts,
        TableManager=Tables,
        # The deploy step makes topics, our own face is the only one, and nothing is looked for in our packages.
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
        # One process counts at a time, and always under this name: a new one takes a dead one's place without
        # waiting for its session to end, and an old one that comes back is fenced.
        consumer_group_instance_id=group,
        table_standby_replicas=0,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=COMMIT_SECONDS,
        broker_commit_every=10_000,
        broker_session_timeout=SESSION_SECONDS,
        broker_rebalance_timeout=SESSION_SECONDS,
        broker_heartbeat_interval=2.0,
        broker_request_timeout=15.0,
        producer_acks=-1,
        producer_request_timeout=SEND_SECONDS,
        # On a rebalance, do not wait for an event that may itself wait for something.
        stream_wait_empty=False,
    )
    app.transport = transport_of(app)
    source = app.topic(
        *topics, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
    )
    table = app.Table(TABLE, key_type=str, value_type=None)
    assert isinstance(table, Counts)
    # The default supervisor restarts a failed agent past the event it failed at.
    app.agent(source, name=f"{group}.count", concurrency=1, supervisor_strategy=mode.CrashingSupervisor)(agent)
    assert isinstance(app.tables, Tables)
    app.tables.recovered = recovered
    return app, table
