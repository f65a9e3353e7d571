"""Kubernetes quantities ("250m", "4Gi") as numbers."""

import math
import re
from fractions import Fraction

_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {name: Fraction(1000 ** (power + 1)) for power, name in enumerate("kMGTPE")}
_SUFFIXES |= {f"{name}i": Fraction(1024 ** (power + 1)) for power, name in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"^([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))$")


def parse(text: str | float) -> Fraction:
    """The exact value. Raises ValueError with the text for what is not a quantity."""
    match = _QUANTITY.match(str(text))
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity (a number with m, k, M, G, Ki, Mi, Gi ...)")
    return Fraction(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]


def divided(value: str | float, divisor: str | float = "1") -> int:
    """How many divisors make up a value, rounded up, as in resourceFieldRef; a divisor of 0 means 1."""
    return math.ceil(parse(value) / (parse(divisor) or 1))
