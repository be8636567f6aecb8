"""Which port each child gets: `choose` decides, `Claims` asks the system and holds what was chosen."""

import socket
import sys
from collections.abc import Callable, Collection, Mapping

from messaging.errors import Misconfigured

INFRASTRUCTURE: Mapping[str, int] = {
    "postgres": 15432,
    "kafka": 19092,
    "kafka-controller": 19093,
    "registry": 18081,
    "registry-management": 18082,
}

SERVICES: Mapping[str, int] = {
    "documents-api": 3310,
    "documents-worker": 3360,
    "gateway-api": 3300,
    "gateway-worker": 3350,
    "notifications-api": 3320,
    "analytics-api": 3330,
}

DEFAULTS: Mapping[str, int] = {**INFRASTRUCTURE, **SERVICES}

STEP = 100
"""Distance between the candidates when a default is taken: 15432, 15532, …"""


class PortTaken(Misconfigured):
    """A port that a person asked for is in use."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(
            f"Port {port} for {name} is taken. Free it, or give another with {setting(name)} or --port {name}=N."
        )
        self.name = name
        self.port = port


def setting(name: str) -> str:
    """The environment variable that fixes a port."""
    return f"WORKBOT_PORT_{name.upper().replace('-', '_')}"


def choose(
    fixed: Mapping[str, int],
    remembered: Mapping[str, int],
    claim: Callable[[int], bool],
    defaults: Mapping[str, int] = DEFAULTS,
    wanted: Collection[str] = (),
) -> dict[str, int]:
    """One port for each name in `defaults`, no port twice. `claim` says whether a port can be had, and then keeps it.

    A fixed one is used as it is; else the default, the one remembered from the last run, or the nearest free one in
    steps of `STEP`: what had to move once comes back as soon as it can. Remembered ones that are named in `wanted`,
    because a person fixed them then, come before their defaults. Raises PortTaken for a fixed port in use or given
    twice, Misconfigured for an unknown name.
    """
    unknown = sorted(fixed.keys() - defaults.keys())
    if unknown:
        raise Misconfigured(f"There is no port named {unknown[0]}; the names are {', '.join(defaults)}.")
    chosen: dict[str, int] = {}
    for name in (*(n for n in defaults if n in fixed), *(n for n in defaults if n not in fixed)):
        used = set(chosen.values())
        if name in fixed:
            if fixed[name] in used or not claim(fixed[name]):
                raise PortTaken(name, fixed[name])
            chosen[name] = fixed[name]
        else:
            usual = defaults[name]
            earlier = remembered.get(name, usual)
            first = (earlier, usual) if name in wanted else (usual, earlier)
            candidates = (*first, *range(usual + STEP, 65536, STEP))
            chosen[name] = next((p for p in candidates if p not in used and claim(p)), 0)
            if not chosen[name]:
                raise Misconfigured(f"No free port found for {name}; give one with {setting(name)}.")
    return {name: chosen[name] for name in defaults}


class Claims:
    """Ports this stack has chosen. Other stacks on the machine see the claim before the child listens.

    A claim is a name in Linux's abstract socket space: the kernel gives it back however the holder ends. Elsewhere
    there are no claims, only the look whether the port is free.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int) -> bool:
        """Claim a port; False when somebody listens there or has claimed it."""
        if not is_free(port):
            return False
        if sys.platform == "linux":
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0workbot-port-{port}")
            except OSError:
                claim.close()
                return False
            self._held.append(claim)
        return True

    def release(self) -> None:
        """Give every claim back."""
        while self._held:
            self._held.pop().close()


def is_free(port: int) -> bool:
    """Whether a loopback listener could open the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
