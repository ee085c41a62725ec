"""Which dtypes are tried, and which numbers each holds exactly."""

from __future__ import annotations

LARGEST_EXACT = {
    "float64": 1 << 53,
    "float32": 1 << 24,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "float8_e4m3fn": 1 << 4,
    "float8_e5m2": 1 << 3,
    "int64": (1 << 63) - 1,
    "int32": (1 << 31) - 1,
    "int16": (1 << 15) - 1,
    "int8": (1 << 7) - 1,
    "uint64": (1 << 64) - 1,
    "uint32": (1 << 32) - 1,
    "uint16": (1 << 16) - 1,
    "uint8": (1 << 8) - 1,
    "bool": 1,
    "complex64": 1 << 24,
    "complex128": 1 << 53,
}
"""Every dtype of torch that a program could send -> all whole numbers from 0 to this one are exact in it."""

_PRIMES = (251, 127, 61, 31, 13, 7, 5, 3, 2)


def modulus(dtype: str, terms: int) -> int | None:
    """How many different values a rank may send, from 1 on, so that a sum of `terms` of them is exact.

    A prime, so that the values do not fall in step with sizes of buffers. None where not even two values fit.
    """
    if dtype == "bool":
        # Two values, and no sum.
        return 2 if terms == 1 else None
    largest = LARGEST_EXACT[dtype] // terms
    return next((prime for prime in _PRIMES if prime <= largest), None)
