"""What every HTTP face shares.

    problems   errors as RFC 9457 problem details, and the handlers that make every failure one
    tokens     bearer tokens: who is asking, for which tenant, in which roles
    probes     /healthz, /readyz, /metrics, and the metrics and trace of each request
    faces      an application with all three in place

The room knows no service; it imports `messaging` only.
"""
