"""The one process of the analytics service: `python -m services.analytics.main api`."""

from contextlib import AsyncExitStack

from messaging import process
from messaging.settings import read_secret
from schemas import topics
from services.analytics import parts
from services.analytics.cube import Cube
from services.analytics.settings import AnalyticsSettings
from web.tokens import Bearer


async def start_api(stack: AsyncExitStack, settings: AnalyticsSettings) -> None:
    """Everything the service does. It answers from the start, and says 503 until its tables are whole."""
    known, cube = topics.load(), Cube()
    pool = await parts.open_pool(stack, settings, "analytics-api")
    engine = parts.make_engine(stack, settings, cube, known)
    bearer = Bearer(read_secret(settings.token_secret_file, "the key that signs tokens"))
    timers = parts.start_timers(stack, settings, pool)
    face = parts.make_api_face(settings, pool, engine, timers, cube, known, bearer)
    await stack.enter_async_context(process.serve(face, settings))
    await parts.open_engine(stack, settings, engine, known)


STARTS = {"api": start_api}


if __name__ == "__main__":
    process.run_one_of("analytics", AnalyticsSettings, STARTS)
