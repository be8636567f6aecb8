"""Pure: how many of each sender's parked records the next pass over a partition is for.

A pass goes from the first record of the lanes that run low, in the order of the log, and takes along what the other
lanes have room for. So senders whose records are mixed need one pass together and not one each, and a pass is short.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from messaging.message import Key

LEAST = 8
"""Records that a lane which runs low gets in each pass if there is enough for all, however far ahead its next lie."""


def shares(lanes: Mapping[Key, tuple[Sequence[int], int]], hungry: Iterable[Key], most: int) -> dict[Key, int]:
    """Of each lane so many from the front, at most `most` in all.

    `lanes`: each one's parked offsets, ascending, and its room, 1 or more. Of the hungry those that are not among
    `lanes` are left out, and, where there is not enough for all, the last.
    """
    low = [key for key in hungry if key in lanes][: max(0, most)]
    if not low:
        return {}
    least = min(LEAST, most // len(low))
    counts = {key: min(lanes[key][1], least, len(lanes[key][0])) for key in low}
    most -= sum(counts.values())
    begin = min(lanes[key][0][0] for key in counts)
    heads = [(offsets[0], key, 0) for key, (offsets, _room) in lanes.items() if offsets[0] >= begin]
    heapify(heads)
    while heads and most > 0:
        _offset, key, taken = heads[0]
        offsets, room = lanes[key]
        taken += 1
        if taken > counts.get(key, 0):
            counts[key] = taken
            most -= 1
        if taken < min(len(offsets), room):
            heapreplace(heads, (offsets[taken], key, taken))
        else:
            heappop(heads)
    return {key: count for key, count in counts.items() if count}
