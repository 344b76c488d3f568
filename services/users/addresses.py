"""The origin of a request, as far as it can be known."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

#: Headers that proxies add. Behind a proxy every request appears to come from the proxy's address.
_OF_PROXIES = frozenset(
    {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"}
)


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, denotes this machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def came_through_a_proxy(header_names: Collection[str]) -> bool:
    """Whether a proxy forwarded the request; the peer address then says nothing about the client."""
    return not _OF_PROXIES.isdisjoint(header_names)


def household(host: str) -> str:
    """Return the unit for counting requests: an IPv4 address, or the /64 of an IPv6 one, since one client owns a whole /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed, 64), strict=False))
