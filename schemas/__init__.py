"""WHAT IS SAID: the topics, the events on them, and every version they ever had.

    topics.toml   the one list of topics, with their producers, consumers and events
    topics        reads it; the only place that spells the names of retry and dead-letter topics
    events        one dataclass per event, newest version
    avro/         <type>/v<major>.<minor>.avsc: a version is a new file, and a file never changes
    examples/     <type>/v<major>.<minor>/<what it shows>.json, under the schema of that version
    digests.txt   sha256 of every file in avro/ and examples/, so that a changed one shows
    catalog       reads avro/ and builds a process's codec
    compatibility pure: may data written with one schema be read with another
    deploy        the deploy step: topics on Kafka, schemas at the registry

To add a field: a new minor file (the field has a default), the field in `events`, an example, their digests.
To add an event: its first file and example, a dataclass listed in `events.ALL`, its type in topics.toml.
A change that is not compatible both ways is a new major: v2.0, in a record named for it.
"""
