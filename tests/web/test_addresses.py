"""Which addresses may be fetched, in every spelling of the same thing."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web import addresses
from web.addresses import Refused

PUBLIC = [
    "https://example.com/",
    "http://example.com:8080/a?b=c#d",
    "https://例え.jp/",
    "http://8.8.8.8/",
    "http://134744072/",  # 8.8.8.8 as one number
    "http://[2606:4700:4700::1111]/",
    "http://[::ffff:8.8.8.8]/",
    "HTTPS://EXAMPLE.COM",
    "https://example.com./",
    "https://a_b.example.com/",
]

PRIVATE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://017700000001/",
    "http://0/",
    "http://0.0.0.0:8080/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/",
    "http://198.18.0.1/",
    "http://192.0.2.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[::]/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::10.0.0.1]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0:0:0:0:0:80ff:fffe]/",  # Teredo for 127.0.0.1
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://localhost/",
    "http://LOCALHOST:5432/",
    "http://localhost./",
    "http://a.localhost/",
    "http://db/",
    "http://printer.local/",
    "http://metadata.google.internal/",
    "http://127。0。0。1/",
]

MALFORMED = [
    "http://example..com/",
    "http://.example.com/",
    "http://example.com../",
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 126}com/",
    "",
    "example.com",
    "//example.com/",
    "http://",
    "http:///path",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "data:text/html,hello",
    "http://ann@example.com/",
    "http://ann:secret@example.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:port/",
    "http://exa\nmple.com/",
    "http://exa mple.com/",
    "http://exa%20mple.com/",
    "http://exa<mple.com/",
    "http://a*b.com/",
    "http://8.8.8.8%20x/",
    "http://[2606:4700::1%25eth0]/",
    "http://[::1/",
    "http://" + "a" * 3000 + ".com/",
    "http://-.-/\x00",
]


@pytest.mark.parametrize("url", PUBLIC)
def test_public_addresses_may_be_fetched(url: str) -> None:
    assert addresses.parse(url).port in (80, 443, 8080)


@pytest.mark.parametrize("url", [*PRIVATE, *MALFORMED])
def test_everything_else_may_not(url: str) -> None:
    with pytest.raises(Refused) as refused:
        addresses.parse(url)
    assert str(refused.value).endswith(".")


def test_settings_may_allow_one_host_and_port() -> None:
    allow = frozenset({"127.0.0.1:8080", "localhost:9000", "[::1]:8080"})
    assert addresses.parse("http://127.0.0.1:8080/page", allow).port == 8080
    assert addresses.parse("http://localhost:9000/", allow).host == "localhost"
    assert addresses.parse("http://[::1]:8080/", allow).host == "::1"
    for other in ("http://127.0.0.1/", "http://127.0.0.1:8081/", "http://localhost:8080/", "ftp://127.0.0.1:8080/"):
        with pytest.raises(Refused):
            addresses.parse(other, allow)


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_the_same_however_ipv6_carries_it(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    carried = [
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(0x64FF9B << 96 | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1),
    ]
    assert {addresses.is_public(outer) for outer in carried} == {addresses.is_public(address)}


@given(st.ip_addresses())
def test_no_address_of_a_private_kind_is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        embedded = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
        assert embedded or not addresses.is_public(address)
