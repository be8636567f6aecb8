"""Pure: which web addresses given to us by users may be called. What a name resolves to is judged again then.

The rules follow OWASP's "Server-Side Request Forgery Prevention Cheat Sheet": an allow list of schemes, no private
targets in any spelling, and a check of the very address that is connected to (`outbound` does that part).
"""

import ipaddress
import re
import socket
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import httpx

MAX_URL = 2048
MAX_HOST = 253
MAX_LABEL = 63
"""RFC 1035, 2.3.4: what a name's parts, and it as a whole, may take."""
_NAME = re.compile(r"[a-z0-9._-]+")
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """The address may not be called; the message says why and what would do."""


class Private(Refused):
    """It may not be called because it is private, and the settings do not allow it: see `told`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A web address taken apart. `host` is lower case ASCII as it will be resolved, without brackets."""

    url: str
    host: str
    port: int


def parse(url: str, allow: AbstractSet[str] = frozenset()) -> Target:
    """Take `url` apart. Raises Refused for another scheme, credentials, or a host that is private as written.

    `allow` holds the host:port pairs that may be private.
    """
    if len(url) > MAX_URL:
        raise Refused(f"The address is longer than {MAX_URL} characters.")
    try:
        parts = httpx.URL(url)
        host = parts.raw_host.decode("ascii").lower().removesuffix(".")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise Refused("This is not a web address; write it like https://example.com/page.") from None
    if parts.scheme not in _PORTS:
        raise Refused("Only http and https addresses can be used.")
    if not host:
        raise Refused("The address has no host; write it like https://example.com/page.")
    if len(host) > MAX_HOST or not all(0 < len(label) <= MAX_LABEL for label in host.split(".")):
        raise Refused(
            f"The address has no possible host: each part between two dots has 1 to {MAX_LABEL} characters."
        )
    literal = literal_address(host)
    # What no name holds was written with %; in brackets, that is the zone of somebody's own network.
    if not _NAME.fullmatch(host) and ("%" in host or literal is None):
        raise Refused("The address has no possible host: a name has letters, digits, hyphens and dots.")
    if parts.userinfo:
        raise Refused("The address holds a user name or password; send it without them.")
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if not 0 < port < 65536:
        raise Refused("The address names a port that does not exist.")
    target = Target(url, host, port)
    named_private = literal is None and (host == "localhost" or "." not in host or host.endswith(_LOCAL_SUFFIXES))
    if (named_private or (literal is not None and not is_public(literal))) and not allowed(target, allow):
        raise Private("The address is private; only those on the public internet can be used.")
    return target


def told(refused: Refused, setting: str) -> str:
    """The refusal in words; of a private address also which `setting` would allow it."""
    if isinstance(refused, Private):
        return f"{refused} {setting}, set before the start, names as host:port what may be private."
    return str(refused)


def allowed(target: Target, allow: AbstractSet[str]) -> bool:
    """Whether the settings name this very host and port."""
    return f"{target.host}:{target.port}" in allow or f"[{target.host}]:{target.port}" in allow


def literal_address(host: str) -> Address | None:
    """The IP address a host spells, in any form the system's resolver takes (2130706433, 0177.1, 0x7f.0.0.1)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    # inet_aton stops at a blank; a host never holds one, so what it takes is the whole host.
    if not host or not host[0].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, also when it carries another one inside."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return is_public(inner)
        if address in _NAT64_LOCAL or address.is_site_local:
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    )


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address an IPv6 one leads to: mapped, 6to4, Teredo, NAT64, or the old compatible form."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _V4_COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
