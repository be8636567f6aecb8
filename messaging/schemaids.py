"""What a process does before it writes events: learn their schema ids, and see that kept ones still hold."""

from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any

from messaging.background import Background
from messaging.codec import Codec
from messaging.database import Pool
from messaging.learnt import Learnt
from messaging.patience import waited_out


async def learn(stack: AsyncExitStack, codec: Codec, events: Collection[type[Any]], pool: Pool) -> None:
    """Return once the codec can write these events. A registry that is away is waited for, unless the ids are kept.

    Kept ones are checked in the background until the registry has answered, or the stack is left. Raises
    Misconfigured when the registry answers and does not have one of the events.
    """
    kept = Learnt(pool)
    if await waited_out("learn schema ids", lambda: codec.prepare(events, kept)):
        return
    background = Background()
    stack.push_async_callback(background.close)
    background.spawn(waited_out("check kept schema ids", lambda: codec.check(events, kept)))
