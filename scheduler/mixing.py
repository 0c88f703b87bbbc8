"""SplitMix64's finaliser, as a hash of counters and names (Steele, Lea, Flood, Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014): a bijection of 64 bits.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A bijection on [0, 2^64)."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
