"""Which addresses a fetcher may connect to: those of the public internet, unless the operator allows its own networks.

The tables are ours, since what `ipaddress` calls global differs between versions of Python.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network

from clerk.errors import Unreadable

# Nobody keeps documents there, whatever is allowed: link-local addresses give away a cloud machine's credentials.
_NEVER = [
    ip_network(text)
    for text in (
        "169.254.0.0/16",
        "168.63.129.16/32",  # a public address, but within Azure the machine's host
        "224.0.0.0/4",
        "255.255.255.255/32",
        "fe80::/10",
        "ff00::/8",
        "fd00:ec2::254/128",  # the metadata service of AWS
    )
]
_PRIVATE = [
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "240.0.0.0/4",
        "2001::/23",  # Teredo and other protocols that carry addresses within addresses
        "2001:db8::/32",
        "2002::/16",  # 6to4 does so too
        "3fff::/20",
    )
]
_GLOBAL_V6 = ipaddress.IPv6Network(
    "2000::/3"
)  # all that has been given out; mapped, compatible and local ones are elsewhere
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class NotPermitted(Unreadable):
    """A host of which no address may be connected to."""

    def __init__(self, host: str, found: Iterable[str]) -> None:
        own = any(permitted(address, allow_private=True) for address in found)
        hint = "FETCH_ALLOW_PRIVATE=1 allows one's own networks" if own else "nothing is fetched from such an address"
        super().__init__(f"{host} is not on the public internet; {hint}")


def permitted(address: str, allow_private: bool = False) -> bool:
    """Whether to connect to this address, which is a number: never a name."""
    try:
        number: IPv4Address | IPv6Address = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(number, IPv6Address) and number.scope_id is not None:
        return False
    if any(one in network for one in (number, *_within(number)) for network in _NEVER):
        return False
    return allow_private or _is_public(number)


def _is_public(number: IPv4Address | IPv6Address) -> bool:
    if isinstance(number, IPv6Address):
        if number in _NAT64:  # how networks that only speak version 6 reach the rest
            return all(_is_public(inner) for inner in _within(number))
        if number not in _GLOBAL_V6:
            return False
    return number.is_global and not any(number in network for network in _PRIVATE)


def _within(number: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The addresses of version 4 that one of version 6 carries."""
    if isinstance(number, IPv4Address):
        return []
    last = IPv4Address(int(number) & 0xFFFF_FFFF) if int(number) >> 32 in (0, int(_NAT64.network_address) >> 32) else None
    return [inner for inner in (number.ipv4_mapped, number.sixtofour, *(number.teredo or ()), last) if inner is not None]
