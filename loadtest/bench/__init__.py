"""Speed of the parts, each beside a bare loop of the same client in the same run: `make bench`.

The seconds are this machine's, on this day; the ratio is what can be compared. Read in this order:

    figures      a row of the table: rounds of (value, bare value), their medians, what was promised
    run          every measurement in rounds; table draws what came out and keeps it as JSON
    servers      the running stack, or one of the bench's own; rooms are topics and a database on it
    pace         sends at a steady rate, and blocking work that can be broken off
    bare         the loops a program without the layer would have
    quiet        what the layer's parts log meanwhile

    backlog      rows/s of the relay                       commit   from a commit to a consumer
    jobs         no-op jobs/s of the fair consumer         start    from a send to a job's start
    pick         the scheduler's choice                    post     POST /api/documents
    requests     requests/s with their event; filing: one of them; serving: the APIs it measures
"""
