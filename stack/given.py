"""Which settings a stack was given: those nothing knows, and marks that tell a difference but not a value."""

import difflib
import hashlib
import hmac
from collections.abc import Mapping

from messaging.settings import variables
from services.analytics.settings import AnalyticsSettings
from services.documents.settings import DocumentsSettings
from services.gateway.settings import GatewaySettings
from services.notifications.settings import NotificationsSettings
from stack import state
from stack.layout import Layout
from stack.services import OWN_VARIABLES
from stack.settings import StackSettings

KINDS = (StackSettings, DocumentsSettings, GatewaySettings, NotificationsSettings, AnalyticsSettings)
"""Every class of settings that a process of the stack is read into."""

_PLACES = ("WORKBOT_DATA_DIR", "WORKBOT_CACHE_DIR")
"""Where things are kept is no setting of what runs, and the data directory may be given by an option, too."""


_OF_TESTS = {"WORKBOT_TEST_STACK"}
"""Read by the tests alone, which start stacks."""


def unknown(environment: Mapping[str, str]) -> dict[str, str | None]:
    """The variables that no part has a setting for, each with the one that is spelt most like it, if any is."""
    known = {variable for kind in KINDS for variable in variables(kind).values()} | _OF_TESTS
    return {
        name: next(iter(difflib.get_close_matches(name, known, 1, cutoff=0.85)), None)
        for name in sorted(environment)
        if name not in known
    }


def ignored(environment: Mapping[str, str]) -> list[str]:
    """The variables that the services do read, but always as the stack sets them."""
    return sorted(OWN_VARIABLES & environment.keys())


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
