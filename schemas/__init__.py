"""WHAT IS SAID: the topics, the events on them, and every version they ever had.

    topics.toml   the one list of topics, with their producers, consumers and events
    topics        reads it; the only place that spells the names of retry and dead-letter topics
    periods       how long Kafka keeps what; retention: a service's own periods, held against those
    events        one dataclass per event, newest version
    avro/         <type>/v<major>.<minor>.avsc: a version is a new file, and a file never changes
    examples/     <type>/v<major>.<minor>/<what it shows>.json, under the schema of that version
    digests.txt   sha256 of every file in avro/ and examples/, so that a changed one shows
    catalog       reads avro/ and builds a process's codec
    compatibility pure: may data written with one schema be read with another
    deploy        the deploy step: topics on Kafka, schemas at the registry
    asyncapi      makes docs/asyncapi.yaml, the published contract
    operations    its part on who sends and receives; headers: that on keys and headers

How to add an event, a version of one, or a consumer is in docs/howto/, step by step.
"""
