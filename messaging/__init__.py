"""HOW IT TRAVELS: from a database transaction to Kafka, and from Kafka to an effect that happens once.

Read in this order:

    message      the vocabulary: keys, envelopes, header names (imports nothing of ours)
    errors       the one error tree: try again, wait, set aside, stop
    settings     one typed class per process; the only reader of the environment
    telemetry    structured logs, the list of metrics, traceparent
    database     the connection pools; every URL and password goes through here
    migrate      numbered SQL under an advisory lock

    outbox       the write side: events in the caller's transaction
    relay        the read side: snapshot cursor, leader, delivery reports

    policy       what a consumer promises: caps, order, attempts, backoff
    fairness     pure: whose turn is it
    offsets      pure: how far a partition may be committed
    retry        pure: what becomes of a failure
    consumer     the scheduler that owns them; poller, parked, ledger, deadletter, garbled at its sides
    queues       pure: what waits and runs, for people; lag: how far a group is, asked from outside

    codec        Avro bytes and dataclasses (line: one event's); registry, admin: the deploy step's tools
    schemaids    learns the ids to write with before a process writes; learnt: keeps them for the registry's outages
    timers       claimed timers: crons that one instance runs; upkeep: those of every outbox and ledger
    erasure      one sender's rows erased, and the mark that keeps Kafka from bringing them back
    process      start in order, signals, drain, stop in reverse, health; patience: a server is away at the start

The package knows no event and no topic by name: both arrive as arguments.
"""
