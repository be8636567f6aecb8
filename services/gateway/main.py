"""The two processes of the gateway: `python -m services.gateway.main api` and `… worker`."""

from contextlib import AsyncExitStack

from messaging import process
from messaging.settings import read_secret
from services.gateway import parts
from services.gateway.settings import GatewaySettings
from web.tokens import Bearer


async def start_api(stack: AsyncExitStack, settings: GatewaySettings) -> None:
    """Forwards the services' APIs, and serves the layer's own."""
    pool = await parts.open_pool(stack, settings, "gateway-api", autocommit=True)
    bearer = Bearer(read_secret(settings.token_secret_file, "the key that signs tokens"))
    upstream = parts.open_upstream(stack, settings)
    lag = parts.open_lag(stack, settings)
    workers = parts.open_workers(stack, settings)
    face = parts.make_api_face(settings, pool, bearer, upstream, lag, workers)
    await stack.enter_async_context(process.serve(face, settings))


async def start_worker(stack: AsyncExitStack, settings: GatewaySettings) -> None:
    """Copies dead letters into the table, sends back what staff decided to, and clears what was decided long ago."""
    pool = await parts.open_pool(stack, settings, "gateway-worker", autocommit=False)
    sender = parts.start_sender(stack, settings, pool)
    projector = await parts.start_projector(stack, settings, pool)
    timers = parts.start_timers(stack, settings, pool)
    face = parts.make_worker_face(pool, projector, sender, timers)
    await stack.enter_async_context(process.serve(face, settings))


STARTS = {"api": start_api, "worker": start_worker}


if __name__ == "__main__":
    process.run_one_of("gateway", GatewaySettings, STARTS)
