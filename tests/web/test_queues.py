"""GET /api/queues: for staff, of their own tenant, and cheap to ask often."""

import httpx
import pytest

from messaging.errors import Outage
from messaging.queues import Queue
from web import queues, tokens
from web.faces import make_face
from web.tokens import Bearer

SECRET = "a secret of at least thirty-two bytes"


class Counting:
    """A consumer whose queue says how often it was looked at."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.away = False

    def queue(self, tenant: str) -> Queue:
        if self.away:
            raise Outage("The consumer has not started yet.", "consumer")
        self.looks.append(tenant)
        return Queue("reader", 10, 0, [], len(self.looks), 0, 0, 0, [], 0)


async def ask(counting: Counting, *callers: tuple[str, str]) -> list[httpx.Response]:
    app = make_face("Test", live={}, ready={})
    app.include_router(queues.router(Bearer(SECRET), {"reader": counting.queue}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://face") as client:
        return [
            await client.get(
                "/api/queues", headers={"Authorization": f"Bearer {tokens.issue(SECRET, 'eve', tenant, [role], 60)}"}
            )
            for tenant, role in callers
        ]


@pytest.mark.parametrize(("role", "status"), [("sender", 403), ("viewer", 200), ("admin", 200)])
async def test_it_is_for_staff(role: str, status: int) -> None:
    assert [answer.status_code for answer in await ask(Counting(), ("acme", role))] == [status]


async def test_each_tenant_is_looked_up_once_a_second() -> None:
    counting = Counting()
    answers = await ask(counting, ("acme", "admin"), ("acme", "viewer"), ("other", "admin"))
    assert counting.looks == ["acme", "other"]
    assert [answer.json()["queues"][0]["waiting"] for answer in answers] == [1, 1, 2]


async def test_a_consumer_that_has_not_started_is_busy() -> None:
    counting = Counting()
    counting.away = True
    (answer,) = await ask(counting, ("acme", "admin"))
    assert answer.status_code == 503
