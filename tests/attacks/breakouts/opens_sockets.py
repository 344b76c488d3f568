"""Opens a socket of every family, and reaches for one by its path."""

# expects: accepted
import socket

import torch.nn.functional as F
from torch import nn

FACTS = {}


def of_family(number):
    def way():
        socket.socket(number, socket.SOCK_STREAM).close()

    way.__name__ = f"stream_socket_of_family_{number}"
    return way


def raw_of_family(number):
    def way():
        socket.socket(number, socket.SOCK_RAW).close()

    way.__name__ = f"raw_socket_of_family_{number}"
    return way


def connect():
    socket.create_connection(("127.0.0.1", FACTS["port"]), timeout=1).close()


def by_path():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(FACTS["unix_socket"])


def by_path_from_a_pair():
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        with one, other:
            one.connect(FACTS["unix_datagrams"])
            one.send(b"x")


# inet, inet6, packet, netlink, kernel crypto, virtual machines' own
FAMILIES = (2, 10, 17, 16, 38, 40)
WAYS = [*map(of_family, FAMILIES), *map(raw_of_family, FAMILIES), connect, by_path, by_path_from_a_pair]


def attack():
    worked = []
    for way in WAYS:
        try:
            way()
        except (OSError, ValueError, MemoryError):
            continue
        worked.append(way.__name__)
    if worked:
        raise RuntimeError(f"these worked: {worked}")


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        attack()
        return F.relu(self.norm(x))
