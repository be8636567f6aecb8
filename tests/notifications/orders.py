"""A delivery to carry out, made up."""

import uuid
from datetime import UTC, datetime

from services.notifications.records import Channel, Order

SECRET = "whsec_test"


def order(
    channel: Channel, address: str, title: str = "Your document was approved", body: str = "Well done."
) -> Order:
    return Order(
        id=uuid.uuid4(),
        tenant="acme",
        channel=channel,
        address=address,
        secret=SECRET if channel == "webhook" else None,
        unwanted=None,
        notification=uuid.uuid4(),
        event_id=str(uuid.uuid4()),
        kind="document_approved",
        title=title,
        body=body,
        href="/api/documents/d-1",
        created_at=datetime(2026, 5, 4, 12, 30, tzinfo=UTC),
    )
