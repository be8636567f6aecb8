"""What the process is made of. Each part is opened on the given stack, which closes them in reverse."""

from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI

from messaging import migrate
from messaging.database import Pool, make_pool
from services.notifications.settings import NotificationsSettings
from web.bodies import pace
from web.faces import make_face
from web.probes import Check

MIGRATIONS = Path(__file__).parent / "migrations"


async def open_pool(stack: AsyncExitStack, settings: NotificationsSettings, name: str) -> Pool:
    """The database, verified."""
    pool = make_pool(settings, name, autocommit=False)
    stack.push_async_callback(pool.close)
    await pool.open()
    await migrate.verify(pool, [MIGRATIONS])
    return pool


def make_api_face(settings: NotificationsSettings, pool: Pool) -> FastAPI:
    """The service over HTTP."""
    return make_face("Notifications", live={}, ready={"database": _answers(pool)}, pace=pace(settings))


def _answers(pool: Pool) -> Check:
    async def database() -> bool:
        async with pool.connection() as conn:
            await conn.execute("select 1")
        return True

    return database
