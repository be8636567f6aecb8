"""The two processes of the documents service: `python -m services.documents.main api` and `… worker`."""

from contextlib import AsyncExitStack

from messaging import process
from messaging.settings import read_secret
from services.documents import parts
from services.documents.settings import DocumentsSettings
from web.tokens import Bearer


async def start_api(stack: AsyncExitStack, settings: DocumentsSettings) -> None:
    """Takes documents in and shows them."""
    base = await parts.open_base(stack, settings, "documents-api", autocommit=True)
    await stack.enter_async_context(process.serve(parts.make_api_face(settings, base, _bearer(settings)), settings))
    await parts.prepare(stack, base)


async def start_worker(stack: AsyncExitStack, settings: DocumentsSettings) -> None:
    """Reads documents, sends the service's events, keeps its house clean. Stops reading first, sending last."""
    base = await parts.open_base(stack, settings, "documents-worker", autocommit=False)
    relay = parts.start_relay(stack, settings)
    timers = parts.start_timers(stack, settings, base)
    consumer = await parts.make_consumer(stack, settings, base)
    face = parts.make_worker_face(base, relay, timers, consumer, _bearer(settings))
    await stack.enter_async_context(process.serve(face, settings))
    await parts.prepare(stack, base)
    await parts.open_consumer(stack, settings, consumer)


def _bearer(settings: DocumentsSettings) -> Bearer:
    return Bearer(read_secret(settings.token_secret_file, "the key that signs tokens"))


STARTS = {"api": start_api, "worker": start_worker}


if __name__ == "__main__":
    process.run_one_of("documents", DocumentsSettings, STARTS)
