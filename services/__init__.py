"""WHO SAYS IT: the services, each with its own database, role and processes.

    documents       takes documents in, keeps them, reads them on the fair queue
    gateway         the one public origin: forwards the others' APIs; dead letters, lag, queues
    notifications   tells people what happened, once per event

A service imports `schemas`, `web` and `messaging`, and never another service: what one tells another travels as an
event. Inside each the same names: `main` (wiring), `settings`, `api` (requests), `handlers` (jobs and events),
`store` (all the SQL), and nouns for the pure rules.
"""
