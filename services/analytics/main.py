"""The one process of the analytics service: `python -m services.analytics.main api`."""

from contextlib import AsyncExitStack

from messaging import process
from services.analytics import parts
from services.analytics.settings import AnalyticsSettings


async def start_api(stack: AsyncExitStack, settings: AnalyticsSettings) -> None:
    """Everything the service does."""
    pool = await parts.open_pool(stack, settings, "analytics-api")
    await stack.enter_async_context(process.serve(parts.make_api_face(settings, pool), settings))


STARTS = {"api": start_api}


if __name__ == "__main__":
    process.run_one_of("analytics", AnalyticsSettings, STARTS)
