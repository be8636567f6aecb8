"""The two processes of the gateway: `python -m services.gateway.main api` and `… worker`."""

from contextlib import AsyncExitStack

from messaging import process
from messaging.settings import read_secret
from services.gateway import parts
from services.gateway.settings import GatewaySettings
from web.tokens import Bearer


async def start_api(stack: AsyncExitStack, settings: GatewaySettings) -> None:
    """Takes requests in, forwards the services' APIs, and serves the layer's own."""
    pool = await parts.open_pool(stack, settings, "gateway-api", autocommit=True)
    codec = parts.make_codec(stack, settings)
    bearer = Bearer(read_secret(settings.token_secret_file, "the key that signs tokens"))
    forwardings = parts.make_forwardings(settings, bearer, parts.open_upstreams(stack, settings))
    lag = parts.open_lag(stack, settings)
    workers = parts.open_workers(stack, settings)
    face = parts.make_api_face(settings, pool, bearer, codec, forwardings, lag, workers)
    await stack.enter_async_context(process.serve(face, settings))
    for forwarding in forwardings.values():
        stack.callback(forwarding.close)
    await parts.prepare(stack, codec, pool)


async def start_worker(stack: AsyncExitStack, settings: GatewaySettings) -> None:
    """Sends the gateway's events, copies dead letters into the table, sends back what staff decided to, and clears
    what is past its time."""
    pool = await parts.open_pool(stack, settings, "gateway-worker", autocommit=False)
    relay = parts.start_relay(stack, settings)
    sender = parts.start_sender(stack, settings, pool)
    projector = parts.make_projector(settings, pool)
    timers = parts.start_timers(stack, settings, pool)
    face = parts.make_worker_face(pool, relay, projector, sender, timers)
    await stack.enter_async_context(process.serve(face, settings))
    await parts.start_projector(stack, settings, projector)


STARTS = {"api": start_api, "worker": start_worker}


if __name__ == "__main__":
    process.run_one_of("gateway", GatewaySettings, STARTS)
