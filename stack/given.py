"""Which settings a stack was started with, kept as marks that tell a difference but not a value."""

import hashlib
import hmac
from collections.abc import Mapping

from stack import state
from stack.layout import Layout

_PLACES = ("WORKBOT_DATA_DIR", "WORKBOT_CACHE_DIR")
"""Where things are kept is no setting of what runs, and the data directory may be given by an option, too."""


def marks(layout: Layout, environment: Mapping[str, str]) -> dict[str, str]:
    """A mark per variable. Made with this data directory's own name, so that a value cannot be looked up by it."""
    key = layout.identity().encode()
    return {
        name: hmac.new(key, value.encode("utf-8", errors="surrogateescape"), hashlib.sha256).hexdigest()
        for name, value in environment.items()
        if name not in _PLACES
    }


def changed(layout: Layout, environment: Mapping[str, str]) -> list[str] | None:
    """The variables that differ from those the running stack was started with; None when it has not kept them."""
    before = state.read(layout.state).given
    if before is None:
        return None
    now = marks(layout, environment)
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
