"""The one process of the notifications service: `python -m services.notifications.main api`."""

from contextlib import AsyncExitStack

from messaging import process
from services.notifications import parts
from services.notifications.settings import NotificationsSettings


async def start_api(stack: AsyncExitStack, settings: NotificationsSettings) -> None:
    """Everything the service does."""
    pool = await parts.open_pool(stack, settings, "notifications-api")
    await stack.enter_async_context(process.serve(parts.make_api_face(settings, pool), settings))


STARTS = {"api": start_api}


if __name__ == "__main__":
    process.run_one_of("notifications", NotificationsSettings, STARTS)
