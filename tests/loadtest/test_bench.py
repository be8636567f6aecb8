"""The bench on the real servers, small: it measures what it says and leaves nothing behind."""

from confluent_kafka.admin import AdminClient

from loadtest.bench import no_op_jobs, pick_cost
from tests.fixtures.stack import Infra


async def test_every_job_is_run_beside_the_bare_loop_and_the_topics_are_gone(
    infra: Infra, kafka_admin: AdminClient
) -> None:
    figure = await no_op_jobs(infra.kafka_bootstrap, infra.admin_conninfo, 1000, 10, ledger=True)
    assert figure.part == "no-op jobs/s, 10 keys, with ledger"
    assert 0 < figure.ratio < 1
    assert not [name for name in kafka_admin.list_topics(timeout=10).topics if name.startswith("bench-")]


def test_a_pick_is_measured_for_each_start() -> None:
    middle, slow = pick_cost(200, tenants=True)
    assert 0 < middle <= slow
