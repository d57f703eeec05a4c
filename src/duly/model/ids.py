"""Job ids are UUID version 7 (RFC 9562, section 5.7): 48 bits of milliseconds, then 74 random bits.

They sort by time, which is what the day partitions of the facts stand on, and a client that makes its own
can repeat an enqueue after a lost reply: the same id is the same job.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_MAX_MILLISECONDS = (1 << 48) - 1


def uuid7(milliseconds: int | None = None) -> UUID:
    """Make a version-7 UUID for the given Unix time in milliseconds (None: now)."""
    if milliseconds is None:
        milliseconds = time.time_ns() // 1_000_000
    return uuid7_with(milliseconds, os.urandom(10))


def uuid7_with(milliseconds: int, noise_bytes: bytes) -> UUID:
    """The version-7 UUID of this time whose random bits are from the first ten bytes given: the same for the same."""
    noise = int.from_bytes(noise_bytes[:10], "big")
    rand_a = (noise >> 62) & 0xFFF
    rand_b = noise & ((1 << 62) - 1)
    return UUID(int=((milliseconds & _MAX_MILLISECONDS) << 80) | _VERSION_7 | (rand_a << 64) | _VARIANT | rand_b)


def uuid7_time(job_id: UUID) -> datetime | None:
    """When a version-7 UUID was made (UTC, to the millisecond); None for any other version, or a time past year
    9999.
    """
    if job_id.version != 7:
        return None
    try:
        return datetime.fromtimestamp((job_id.int >> 80) / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
