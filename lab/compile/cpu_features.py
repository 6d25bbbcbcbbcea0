"""Which CPU features code compiled for a target may use, in the words a vehicle can check (/proc/cpuinfo).

Asked of the compiler itself: the macros it defines for the target, less those it defines for the architecture's
baseline. Every new macro must be known, either as a feature that compilers generate code for or as one that needs
an explicit intrinsic (and so never appears in a kernel); an unknown one is an error, so that no need goes unstated.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# macro -> /proc/cpuinfo flag (arch/x86/include/asm/cpufeatures.h)
_X86 = {
    "SSE3": "pni", "SSSE3": "ssse3", "SSE4_1": "sse4_1", "SSE4_2": "sse4_2", "SSE4A": "sse4a", "POPCNT": "popcnt",
    "CRC32": "sse4_2", "GCC_HAVE_SYNC_COMPARE_AND_SWAP_16": "cx16", "LAHF_SAHF": "lahf_lm", "AVX": "avx",
    "AVX2": "avx2", "BMI": "bmi1", "BMI2": "bmi2", "F16C": "f16c", "FMA": "fma", "LZCNT": "abm", "MOVBE": "movbe",
    "AES": "aes", "PCLMUL": "pclmulqdq", "ADX": "adx", "SHA": "sha_ni", "GFNI": "gfni", "VAES": "vaes",
    "VPCLMULQDQ": "vpclmulqdq", "PRFCHW": "3dnowprefetch", "XOP": "xop", "FMA4": "fma4", "TBM": "tbm",
    "AVX512F": "avx512f", "AVX512BW": "avx512bw", "AVX512CD": "avx512cd", "AVX512DQ": "avx512dq",
    "AVX512VL": "avx512vl", "AVX512BF16": "avx512_bf16", "AVX512BITALG": "avx512_bitalg", "AVX512IFMA": "avx512ifma",
    "AVX512VBMI": "avx512vbmi", "AVX512VBMI2": "avx512_vbmi2", "AVX512VNNI": "avx512_vnni",
    "AVX512VPOPCNTDQ": "avx512_vpopcntdq", "AVX512FP16": "avx512_fp16", "AVX512VP2INTERSECT": "avx512_vp2intersect",
    "AVXVNNI": "avx_vnni",
}  # fmt: skip
_X86_EXPLICIT = frozenset({
    "XSAVE", "XSAVEC", "XSAVEOPT", "XSAVES", "FSGSBASE", "INVPCID", "CLFLUSHOPT", "CLWB", "CLZERO", "CLDEMOTE",
    "MWAITX", "PKU", "RDPID", "RDPRU", "RDRND", "RDSEED", "SHSTK", "WBNOINVD", "ENQCMD", "MOVDIR64B", "MOVDIRI",
    "PCONFIG", "PTWRITE", "SERIALIZE", "SGX", "TSXLDTRK", "UINTR", "WAITPKG", "KL", "WIDEKL", "HRESET", "USERMSR",
    "CMPCCXADD", "RAOINT", "PREFETCHI", "LWP", "RTM", "AMX_TILE", "AMX_INT8", "AMX_BF16", "AMX_FP16", "AMX_COMPLEX",
})  # fmt: skip
# macro -> HWCAP name (arch/arm64/kernel/cpuinfo.c)
_ARM = {
    "ATOMICS": ("atomics",), "CRC32": ("crc32",), "AES": ("aes", "pmull"), "SHA2": ("sha1", "sha2"),
    "SHA3": ("sha3",), "SHA512": ("sha512",), "SM3": ("sm3",), "SM4": ("sm4",), "DOTPROD": ("asimddp",),
    "FP16_SCALAR_ARITHMETIC": ("fphp",), "FP16_VECTOR_ARITHMETIC": ("asimdhp",), "FP16_FML": ("asimdfhm",),
    "QRDMX": ("asimdrdm",), "RCPC": ("lrcpc",), "BF16": ("bf16",), "MATMUL_INT8": ("i8mm",), "COMPLEX": ("fcma",),
    "JCVT": ("jscvt",), "FRINT": ("frint",), "SVE": ("sve",), "SVE2": ("sve2",), "SVE2_BITPERM": ("svebitperm",),
    "SVE_BF16": ("svebf16",), "SVE_MATMUL_INT8": ("svei8mm",),
}  # fmt: skip
_ARM_EXPLICIT = frozenset({
    "CRYPTO", "BTI", "PAUTH", "MEMORY_TAGGING", "RNG", "SVE_VECTOR_OPERATORS", "BF16_SCALAR_ARITHMETIC",
    "BF16_VECTOR_ARITHMETIC", "SVE_BITS", "SME", "LS64",
})  # fmt: skip
BASELINES = {"x86_64": "x86_64", "aarch64": "generic"}


def feature_names(arch: str, cpu: str, macros_of: Callable[[str], str]) -> tuple[str, ...]:
    """Sorted cpuinfo names for `cpu`. macros_of(cpu): the compiler's predefined macros, one #define a line.

    Raises ValueError that names a macro this table does not know.
    """
    new = _defined(macros_of(cpu)) - _defined(macros_of(BASELINES[arch]))
    found: set[str] = set()
    for macro in sorted(new):
        if arch == "x86_64":
            found.update(_x86_feature(macro))
        else:
            found.update(_arm_feature(macro))
    return tuple(sorted(found))


def _defined(text: str) -> set[str]:
    return set(re.findall(r"^#define (\w+) ", text, re.MULTILINE))


def _x86_feature(macro: str) -> tuple[str, ...]:
    name = macro.strip("_")
    if name in _X86:
        return (_X86[name],)
    if name in _X86_EXPLICIT or not re.fullmatch(r"__[A-Z][A-Z0-9_]*__", macro):  # lower case names the CPU itself
        return ()
    raise ValueError(f"the compiler uses CPU feature {macro}, which the table does not name")


def _arm_feature(macro: str) -> tuple[str, ...]:
    prefix = "__ARM_FEATURE_"
    if not macro.startswith(prefix):
        return ()
    name = macro.removeprefix(prefix)
    if name in _ARM:
        return _ARM[name]
    if name in _ARM_EXPLICIT:
        return ()
    raise ValueError(f"the compiler uses CPU feature {macro}, which the table does not name")
