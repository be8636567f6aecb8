"""How long a child that runs may stay silent before it is started anew: pure, on a monotonic clock in seconds."""

SERVICE_SECONDS = 30.0
"""For a service, asked on /healthz. Longer than a pause it gets over by itself; being not ready does not count."""

INFRA_SECONDS = 120.0
"""For a server of others' make, asked by its probe: it may be recovering, and a restart would begin that again."""


def silent_since(before: float | None, asked: float, answered: bool) -> float | None:
    """When the silence began, after one more question put at `asked`; None while there is none."""
    if answered:
        return None
    return asked if before is None else before


def is_out(since: float | None, now: float, patience: float) -> bool:
    """Whether the silence has lasted for `patience` seconds."""
    return since is not None and now - since >= patience
