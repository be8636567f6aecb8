"""The one process of the notifications service: `python -m services.notifications.main api`."""

from contextlib import AsyncExitStack

from messaging import process
from messaging.settings import read_secret
from services.notifications import parts
from services.notifications.settings import NotificationsSettings
from web.tokens import Bearer


async def start_api(stack: AsyncExitStack, settings: NotificationsSettings) -> None:
    """Everything the service does. Stops working first, then streaming and serving, sending last."""
    base = await parts.open_base(stack, settings)
    bearer = Bearer(read_secret(settings.token_secret_file, "the key that signs tokens"))
    relay = parts.start_relay(stack, settings)
    timers = parts.start_timers(stack, settings, base)
    ringer = parts.start_ringer(stack, base)
    feed = parts.start_feed(stack, settings, base)
    consumers = parts.make_consumers(stack, settings, base, ringer)
    face = parts.make_api_face(settings, base, feed, relay, timers, consumers, bearer)
    await stack.enter_async_context(process.serve(face, settings))
    stack.callback(feed.close)
    await parts.prepare(stack, base)
    await parts.open_consumers(stack, settings, consumers)


STARTS = {"api": start_api}


if __name__ == "__main__":
    process.run_one_of("notifications", NotificationsSettings, STARTS)
