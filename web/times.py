"""Times as parameters of an address."""

import re
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator

# What stands before the offset of a time of the day can be a blank in no other case: it was a + that nobody encoded.
_PLUS_LOST = re.compile(r"(\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?) (\d{2}:?\d{2})")


def plus_restored(given: Any) -> Any:
    """Pure: in an address + means a blank, and a client that wrote a time's offset as it is written meant +."""
    if isinstance(given, str) and (lost := _PLUS_LOST.fullmatch(given)):
        return f"{lost[1]}+{lost[2]}"
    return given


QueryTime = Annotated[AwareDatetime, BeforeValidator(plus_restored)]
"""A time with its zone."""
