"""Whether 32 bytes are an Ed25519 public key worth trusting: canonical, on the curve, of prime order.

Verifiers accept keys of low order, for which one signature verifies many messages, and several encodings of one point,
which would let one key count twice. Both are refused when a key is loaded, by arithmetic on public data only (so
no constant time is needed). A few milliseconds a key.
Source: RFC 8032 §5.1 (parameters), §5.1.3 (decoding), §5.1.4 (addition in extended coordinates).
"""

from __future__ import annotations

from typing import Final

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_SQRT_MINUS_1: Final = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_IDENTITY: Final[_Point] = (0, 1, 1, 0)


def fault(encoded: bytes) -> str | None:
    """Return what is wrong with the 32-byte public key `encoded`, or None for a canonical point of prime order."""
    y = int.from_bytes(encoded, "little") & ((1 << 255) - 1)
    if y >= _P:
        return "a non-canonical point (y not below 2^255 - 19)"
    x = _recover_x(y, encoded[31] >> 7)
    if x is None:
        return "no point of the curve"
    point = (x, y, 1, x * y % _P)
    if _is_identity(_multiply(8, point)):
        return "a point of low order"
    if not _is_identity(_multiply(_L, point)):
        return "a point outside the prime-order group"
    return None


def _recover_x(y: int, sign: int) -> int | None:
    """Return x for y and the sign bit, or None if there is none or the encoding says minus zero."""
    u = (y * y - 1) % _P
    v = (_D * y * y + 1) % _P
    x = u * pow(v, 3, _P) * pow(u * pow(v, 7, _P), (_P - 5) // 8, _P) % _P
    if v * x * x % _P != u:
        x = x * _SQRT_MINUS_1 % _P
    if v * x * x % _P != u or (x == 0 and sign):
        return None
    return x if x & 1 == sign else _P - x


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _multiply(scalar: int, point: _Point) -> _Point:
    result = _IDENTITY
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _is_identity(p: _Point) -> bool:
    return p[0] == 0 and p[1] == p[2]
