"""The two processes with a model behind an OpenAI-compatible endpoint. No other worker of the group may run."""

import asyncio
import json

from schemas import deploy
from tests.documents.conftest import StartFace
from tests.documents.test_end_to_end import PATH, follow
from tests.fixtures.origin import Answer, Request, serving
from tests.fixtures.stack import Infra


async def test_a_model_on_a_bad_day(infra: Infra, start_process: StartFace, tenant: str) -> None:
    """Two failures and one answer that is no JSON, then a good one: four attempts, and the document is read."""
    await deploy.create_topics(infra.kafka_bootstrap)
    found = {"fields": [{"name": "total", "value": "1.00", "confidence": 0.9}]}
    good = Answer(body=json.dumps({"choices": [{"message": {"content": json.dumps(found)}}]}).encode())
    bad = [Answer(500, b"oops"), Answer(raw=b""), Answer(200, b"<html>")]

    def respond(_: Request) -> Answer:
        return bad.pop(0) if bad else good

    def read(url: str) -> dict[str, object]:
        with (
            start_process("api") as api,
            start_process("worker", storage=api.storage, model_url=url),
            api.client("ann", tenant) as ann,
        ):
            return follow(ann, ann.post(PATH, json={"text": "hello"}).headers["location"], 60)

    async with serving(respond) as origin:
        document = await asyncio.to_thread(read, f"{origin.url}/v1")
    assert (document["status"], document["attempts"], document["error"]) == ("approved", 4, None)
    assert len(origin.requests) == 3 + 2
