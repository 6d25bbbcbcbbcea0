"""What this machine's processors can do, in the kernel's own words, and whether a bundle's needs are met.

Names are those of /proc/cpuinfo: `flags` on x86_64, `Features` on aarch64. Where a sandbox hides /proc/cpuinfo (systemd
ProcSubset=pid) the same facts are read from /sys/devices/system/cpu/modalias (x86_64: numbers of X86_FEATURE_* in
arch/x86/include/asm/cpufeatures.h) or from the auxiliary vector (aarch64: AT_HWCAP, AT_HWCAP2 of asm/hwcap.h).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from hal.error import HalCode, HalError

CPUINFO = Path("/proc/cpuinfo")
MODALIAS = Path("/sys/devices/system/cpu/modalias")
AUXV = Path("/proc/self/auxv")
_AT_HWCAP, _AT_HWCAP2 = 16, 26  # linux/auxvec.h

# word * 32 + bit, for the features that compilers generate code for
_X86_BITS = {
    "cx16": 4 * 32 + 13, "pni": 4 * 32 + 0, "pclmulqdq": 4 * 32 + 1, "ssse3": 4 * 32 + 9, "fma": 4 * 32 + 12,
    "sse4_1": 4 * 32 + 19, "sse4_2": 4 * 32 + 20, "movbe": 4 * 32 + 22, "popcnt": 4 * 32 + 23, "aes": 4 * 32 + 25,
    "avx": 4 * 32 + 28, "f16c": 4 * 32 + 29, "lahf_lm": 6 * 32 + 0, "abm": 6 * 32 + 5, "sse4a": 6 * 32 + 6,
    "3dnowprefetch": 6 * 32 + 8, "xop": 6 * 32 + 11, "fma4": 6 * 32 + 16, "tbm": 6 * 32 + 21,
    "bmi1": 9 * 32 + 3, "avx2": 9 * 32 + 5, "bmi2": 9 * 32 + 8, "avx512f": 9 * 32 + 16, "avx512dq": 9 * 32 + 17,
    "adx": 9 * 32 + 19, "avx512ifma": 9 * 32 + 21, "avx512cd": 9 * 32 + 28, "sha_ni": 9 * 32 + 29,
    "avx512bw": 9 * 32 + 30, "avx512vl": 9 * 32 + 31, "avx_vnni": 12 * 32 + 4, "avx512_bf16": 12 * 32 + 5,
    "avx512vbmi": 16 * 32 + 1, "avx512_vbmi2": 16 * 32 + 6, "gfni": 16 * 32 + 8, "vaes": 16 * 32 + 9,
    "vpclmulqdq": 16 * 32 + 10, "avx512_vnni": 16 * 32 + 11, "avx512_bitalg": 16 * 32 + 12,
    "avx512_vpopcntdq": 16 * 32 + 14, "avx512_vp2intersect": 18 * 32 + 8, "avx512_fp16": 18 * 32 + 23,
}  # fmt: skip
_ARM_HWCAP = [
    "fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid",
    "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512", "sve", "asimdfhm", "dit",
    "uscat", "ilrcpc", "flagm", "ssbs", "sb", "paca", "pacg",
]  # fmt: skip
_ARM_HWCAP2 = [
    "dcpodp", "sve2", "sveaes", "svepmull", "svebitperm", "svesha3", "svesm4", "flagm2", "frint", "svei8mm", "svef32mm",
    "svef64mm", "svebf16", "i8mm", "bf16",
]  # fmt: skip


def machine_features() -> frozenset[str]:
    """Features that every processor of this machine has. Raises HalError DRIVER_UNAVAILABLE if nothing tells them."""
    lines = _lines(CPUINFO)
    listed = [frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))]
    if listed:
        return frozenset.intersection(*listed)
    if platform.machine() == "x86_64":
        found = _from_modalias("".join(_lines(MODALIAS)))
    else:
        found = _from_auxv(AUXV.read_bytes() if AUXV.exists() else b"")
    if not found:
        raise HalError(HalCode.DRIVER_UNAVAILABLE, "the processor's features cannot be read",
                       expected=f"{CPUINFO}, {MODALIAS} or {AUXV}", todo="make one of them readable")  # fmt: skip
    return found


def cpu_name() -> str:
    """The processor's name for reports; the architecture where none is told."""
    for line in _lines(CPUINFO):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def missing_features(required: Iterable[str], have: Iterable[str]) -> tuple[str, ...]:
    """What is required and not there, sorted."""
    return tuple(sorted(frozenset(required) - frozenset(have)))


def _from_modalias(text: str) -> frozenset[str]:
    """ "cpu:type:x86,ven…:feature:,0000,0001,…": the numbers are hexadecimal."""
    _, _, numbers = text.strip().partition(":feature:")
    present = {int(number, 16) for number in numbers.split(",") if number}
    return frozenset(name for name, bit in _X86_BITS.items() if bit in present)


def _from_auxv(raw: bytes) -> frozenset[str]:
    words = {}
    for at in range(0, len(raw) - 15, 16):
        key, value = struct.unpack_from("<QQ", raw, at)
        words[key] = value
    one = [name for bit, name in enumerate(_ARM_HWCAP) if words.get(_AT_HWCAP, 0) >> bit & 1]
    two = [name for bit, name in enumerate(_ARM_HWCAP2) if words.get(_AT_HWCAP2, 0) >> bit & 1]
    return frozenset(one + two)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
