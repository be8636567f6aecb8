"""Pure: the signature of a webhook. A receiver computes it anew, compares, and refuses what is too old."""

import hashlib
import hmac

HEADER = "X-WorkBot-Signature"


def sign(secret: str, at: int, body: bytes) -> str:
    """The header's value: `t=<Unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">`."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"
