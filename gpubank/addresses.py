"""Addresses that are called on somebody's word: which ones never are, and which ones a network opens.

A wide network opens neither this machine nor what clouds tell their machines: loopback and link-local addresses are
opened by a network of their own kind only, and addresses of metadata services, of everybody and of nobody by none.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_METADATA: Final = frozenset(
    ip_address(each).packed for each in ("fd00:ec2::254", "168.63.129.16", "100.100.100.200", "192.0.0.192")
)
"""Where clouds serve metadata and credentials to whoever asks, besides the link-local 169.254.169.254.

As bytes: the zone that an address may name (`%eth0`) makes it no other one.
"""

_BROADCAST: Final = IPv4Address("255.255.255.255")


def plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, so that a rule about one is a rule about both."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_never_called(address: Address) -> bool:
    """Whether a plain address is a metadata service's, everybody's or nobody's."""
    return address.is_unspecified or address.is_multicast or address == _BROADCAST or address.packed in _METADATA


def is_near(address: Address) -> bool:
    """Whether a plain address is this machine's or of its link: the same words mean another one on every machine."""
    return address.is_loopback or address.is_link_local


def is_opened(address: Address, networks: Iterable[Network]) -> bool:
    """Whether one of `networks` opens a plain address."""
    if is_never_called(address):
        return False
    return any(
        address in network
        and (network.is_loopback or not address.is_loopback)
        and (network.is_link_local or not address.is_link_local)
        for network in networks
    )
