"""Keys go from Kafka first, then from this disk and from the cube.

Whoever is ended in between finds what Kafka may still have by going through this disk once more: another tombstone
does no harm. The other way round, a key that is gone here and not yet there would come back when the disk is lost.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from services.analytics.counting import Value
from services.analytics.cube import Cube
from services.analytics.tables import Counts

AT_ONCE = 500
"""Keys whose end on Kafka is awaited together."""

K = TypeVar("K")


async def take_out(table: Counts, cube: Cube, of: Callable[[str, Value], K | None]) -> Counter[K]:
    """Take out every key that `of` gives a name (not None) to; how many went of each name. Nobody may set these keys
    meanwhile. Raises what Kafka refuses a tombstone with; what is not gone by then is on this disk still.
    """
    gone: Counter[K] = Counter()
    piece: dict[str, K] = {}
    async for key, value in table.everything():
        # It may have gone since the walk began.
        if (name := of(key, value)) is None or table.look(key) is None:
            continue
        piece[key] = name
        if len(piece) == AT_ONCE:
            await _remove(table, cube, list(piece))
            gone.update(piece.values())
            piece.clear()
    await _remove(table, cube, list(piece))
    gone.update(piece.values())
    return gone


async def _remove(table: Counts, cube: Cube, keys: Sequence[str]) -> None:
    await asyncio.gather(*[table.end(key) for key in keys])
    for key in keys:
        # Another removal may have been faster.
        if (before := table.look(key)) is not None:
            table.drop(key)
            cube.apply(key, before, None)
