"""Where more was committed than was settled, the group is moved back before anything is read."""

from collections.abc import Container

import faust
import structlog
from faust.transport.consumer import ThreadDelegateConsumer
from faust.types import TP

from services.analytics.counting import Look, progress
from services.analytics.gaps import Bound, resume_at

log = structlog.get_logger(__name__)


async def move_back(app: faust.App, topics: Container[str], look: Look, first: Bound) -> None:
    """Call it when the tables are up to date, before faust seeks to the committed offsets. `look` and `first` are as
    in `Gaps`. What was jumped over would else be lost, or end the process at every start.
    """
    consumer = app.consumer
    assert isinstance(consumer, ThreadDelegateConsumer)
    back: dict[TP, int] = {}
    for (topic, partition), committed in (await consumer.seek_to_committed()).items():
        last = look(progress(topic, partition)) if topic in topics else None
        if last is None or not committed or committed <= last["o"] + 1:
            continue
        to = resume_at(int(last["o"]), committed, await first(topic, partition))
        log.error("analytics.moved_back", topic=topic, partition=partition, committed=committed, to=to)
        if to < committed:
            back[TP(topic, partition)] = to
    if back:
        await consumer._commit(back)
