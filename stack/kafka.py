"""Apache Kafka 4.4 as a child: one node, broker and KRaft controller in one process, on loopback."""

import asyncio
import base64
import uuid
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from stack.child import Child, NotReady
from stack.guarded import finish
from stack.java import ENVIRONMENT, java
from stack.layout import Layout

_LOGGING = """<Configuration status="WARN">
  <Appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{ISO8601} %p %m (%c{1})%n"/></Console>
  </Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="out"/></Root>
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
    <Logger name="org.apache.kafka.coordinator.group" level="INFO"/>
  </Loggers>
</Configuration>
"""

_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
# one node
offsets.topic.replication.factor=1
offsets.topic.num.partitions=10
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=5
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=5
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
# after a kill the broker may register anew once its old session has ended (9 s otherwise)
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=750
# a killed consumer's partitions move on after about 6 s; the defaults leave them idle for 45 s
group.initial.rebalance.delay.ms=0
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=6000
group.consumer.heartbeat.interval.ms=1500
group.consumer.min.heartbeat.interval.ms=1000
"""


class Kafka:
    """The broker of one data directory. `jars` sees to its class path and returns it."""

    def __init__(self, layout: Layout, port: int, controller_port: int, jars: Callable[[], list[Path]]) -> None:
        self._layout = layout
        self._data = layout.data / "kafka"
        self._config = layout.run / "kafka.properties"
        self._logging = layout.run / "kafka-log4j2.xml"
        self._arguments = layout.run / "kafka.classpath"
        self._jars = jars
        self._controller_port = controller_port
        self._admin: AdminClient | None = None
        self.bootstrap = f"127.0.0.1:{port}"
        self._port = port

    def child(self) -> Child:
        return Child(
            name="kafka",
            command=self._java("kafka.Kafka", str(self._config), heap_megabytes=512),
            address=self.bootstrap,
            ports=(self._port, self._controller_port),
            environment=ENVIRONMENT,
            prepare=self._prepare,
            probe=self._probe,
        )

    def _java(self, *arguments: str, heap_megabytes: int) -> tuple[str, ...]:
        options = (f"-Dlog4j2.configurationFile={self._logging}", f"@{self._arguments}")
        return java(*arguments, heap_megabytes=heap_megabytes, options=options)

    async def _probe(self) -> None:
        """A metadata request that names a broker and a controller."""
        if self._admin is None:
            self._admin = AdminClient(
                {
                    "bootstrap.servers": self.bootstrap,
                    "reconnect.backoff.max.ms": 500,
                    # A broker that is not there yet is no news: the child's state says so.
                    "log_level": 0,
                }
            )
        metadata = await asyncio.to_thread(self._admin.list_topics, timeout=2.0)
        if not metadata.brokers or metadata.controller_id < 0:
            raise NotReady("no broker has registered yet")

    async def _prepare(self) -> None:
        self._logging.write_text(_LOGGING, "utf-8")
        self._config.write_text(
            _PROPERTIES.format(broker=self._port, controller=self._controller_port, data=self._data), "utf-8"
        )
        # An argument file: the command line stays short enough to read.
        jars = await asyncio.to_thread(self._jars)
        self._arguments.write_text(f'-cp "{":".join(map(str, jars))}"\n', "utf-8")
        if (self._data / "meta.properties").exists():
            return
        self._data.mkdir(mode=0o700, exist_ok=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        format_storage = self._java(
            *("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._config)),
            heap_megabytes=128,
        )
        await finish(
            Child(name="the storage tool", command=format_storage, environment=ENVIRONMENT), self._layout, "kafka"
        )
