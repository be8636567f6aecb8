"""What a transaction took back is not read: a transport of faust's that reads what is committed, as others here do.

Faust reads so only when it writes in transactions itself. Written against the insides of faust-streaming 0.15.3.
"""

from typing import Any

import aiokafka
import faust
from faust.transport.drivers import aiokafka as driver

from services.analytics import fetching
from services.analytics.committing import Committing

READ_COMMITTED = "read_committed"


class Thread(fetching.Thread):
    """Where the Kafka client runs."""

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        consumer: Any = super()._create_worker_consumer(transport)
        # Looked at when the client starts, and this one has not. One that is made otherwise would read too much.
        if not hasattr(consumer, "_isolation_level"):
            raise RuntimeError(
                "aiokafka is told in another way now what to read; see services/analytics/committed.py."
            )
        consumer._isolation_level = READ_COMMITTED
        return consumer


class Reader(Committing):
    """Faust's consumer."""

    def _new_consumer_thread(self) -> Thread:
        return Thread(self, loop=self.loop, beacon=self.beacon)


class Transport(driver.Transport):
    """To be given to an app before it starts."""

    Consumer = Reader


def transport_of(app: faust.App) -> Transport:
    """Made as the app would make its own."""
    return Transport(app.conf.broker_consumer, app)
