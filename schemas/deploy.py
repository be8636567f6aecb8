"""The deploy step's share: topics on Kafka, schemas at the registry. Run them as often as you like, at once too."""

from messaging import admin
from messaging.codec import Contract
from messaging.errors import Misconfigured
from messaging.registry import Registry
from schemas import catalog, compatibility, topics


async def create_topics(bootstrap: str) -> list[str]:
    """Bring Kafka's topics to what topics.toml says; returns one line per change made.

    Raises Misconfigured when a topic exists with another number of partitions, Outage when Kafka is away.
    """
    return await admin.create_topics(bootstrap, topics.load().specs())


async def register(registry_url: str) -> list[str]:
    """Register every version of every event, oldest first; returns one line per version with its schema id.

    Raises Misconfigured when a version breaks another of its major (found here first, then by the registry),
    Outage when the registry is away.
    """
    registry = Registry(registry_url)
    lines = []
    try:
        for contract in catalog.contracts():
            lines += await _register_line(registry, contract)
    finally:
        await registry.close()
    return lines


async def _register_line(registry: Registry, contract: Contract) -> list[str]:
    line = catalog.line(contract.event.TYPE, contract.event.MAJOR)
    schemas = [version.schema() for version in line]
    if faults := compatibility.faults(schemas):
        raise Misconfigured(f"{contract.subject} has versions that do not read each other: {'; '.join(faults)}")
    return [
        f"{version}: id {await registry.register(contract.subject, schema)}"
        for version, schema in zip(line, schemas, strict=True)
    ]
