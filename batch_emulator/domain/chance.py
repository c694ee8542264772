"""Random draws for machines, which depend only on a key and the number of the machine.

A draw is one number of the sequence of SplitMix64 (Steele, Lea and Flood, "Fast Splittable
Pseudorandom Number Generators", 2014), selected by its position: seeding a generator for each
draw costs ten times as much. The emulator and the simulator take the same draws.
"""

from __future__ import annotations

import math
from hashlib import blake2b

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ANOTHER = 0xD1342543DE82EF95  # far from any small multiple of the above
_NODE_BITS = 32  # positions have the machine in the low half and the node above it


def chance_key(root: int, *words: str) -> int:
    """Return the key of a purpose, such as the evictions of one pool."""
    text = "/".join((str(root), *words)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def draw_uniform(key: int, node: int, machine: int) -> float:
    """Return a number above 0, at most 1, for a machine of a node."""
    mixed = key + ((node << _NODE_BITS) + machine) * _GOLDEN & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return ((mixed ^ mixed >> 31) + 1) * 2.0**-64


def draw_wait(key: int, node: int, machine: int, mean: float) -> float:
    """Return a waiting time: exponential with this mean."""
    return -mean * math.log(draw_uniform(key, node, machine))


def draw_normal(key: int, node: int, machine: int) -> float:
    """Return a number of the standard normal distribution, by Box and Muller."""
    other = key ^ _ANOTHER
    radius = math.sqrt(2 * draw_wait(key, node, machine, 1.0))
    return radius * math.cos(2 * math.pi * draw_uniform(other, node, machine))
