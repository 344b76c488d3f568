"""Where a request comes from, as far as that can be known."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

#: Headers that a proxy adds. Behind one every request seems to come from the proxy's own address.
_OF_PROXIES = frozenset(
    {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"}
)


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, means this machine itself."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def came_through_a_proxy(header_names: Collection[str]) -> bool:
    """Whether somebody stands between the client and us, whose address says nothing of the client's."""
    return not _OF_PROXIES.isdisjoint(header_names)
