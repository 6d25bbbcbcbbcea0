"""Numbers on the command line that mean something: argparse refuses the others, with exit status 2."""

from __future__ import annotations

import argparse
import math
from typing import Final

__all__ = ["count", "count_or_0", "rate_hz", "rate_hz_or_0", "seconds", "tolerance"]

MAX_COUNT: Final = 1_000_000_000
MAX_RATE_HZ: Final = 10_000


def count(text: str) -> int:
    """How many: an integer of 1 or more."""
    value = _finite(text)
    if not 1 <= value <= MAX_COUNT or value != int(value):
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to {MAX_COUNT}, found {text!r}")
    return int(value)


def count_or_0(text: str) -> int:
    """How many: an integer of 0 or more."""
    return 0 if _finite(text) == 0 else count(text)


def rate_hz(text: str) -> float:
    """A rate above 0, in Hz."""
    value = rate_hz_or_0(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"expected a rate above 0 Hz, found {text!r}")
    return value


def rate_hz_or_0(text: str) -> float:
    """A rate in Hz, or 0 for no pace at all."""
    value = _finite(text)
    if not (value == 0 or 0.001 <= value <= MAX_RATE_HZ):
        raise argparse.ArgumentTypeError(f"expected 0.001 to {MAX_RATE_HZ} Hz, found {text!r}")
    return value


def tolerance(text: str) -> float:
    """A distance between two numbers: 0 or more."""
    value = _finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, found {text!r}")
    return value


def seconds(text: str) -> float:
    """A length of time: 0 or more seconds."""
    return tolerance(text)


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}")
    return value
