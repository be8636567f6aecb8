"""What every HTTP face shares.

    problems      errors as RFC 9457 problem details, and the handlers that make every failure one
    faults        what the framework finds wrong with a request, in words that say what to send instead
    tokens        bearer tokens: who is asking, for which tenant, in which roles
    probes        /healthz, /readyz, /metrics, and the metrics and trace of each request
    bodies        how slowly a request's body may come
    idempotency   the Idempotency-Key header
    openapi       which problems each operation answers; reference: /docs, a page made of that
    addresses     pure: which addresses that users gave us may be called; outbound: calling them
    faces         an application with all of them in place

The room knows no service; it imports `messaging` only.
"""
