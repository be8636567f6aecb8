"""Pure: what becomes of a reading."""

from collections.abc import Sequence

from services.documents.fields import Field

WAITING_FOR_REVIEW = "waiting_for_review"
APPROVED = "approved"


def status_after_reading(fields: Sequence[Field], bar: float) -> str:
    """A person looks at it unless there are fields and every one reaches the bar."""
    sure = bool(fields) and all(field.confidence >= bar for field in fields)
    return APPROVED if sure else WAITING_FOR_REVIEW
