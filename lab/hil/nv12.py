"""NV12 buffers and BT.709 colour, as the synthetic cameras write them.

`Nv12Layout` says where every byte of a picture lies: a luma plane of one byte a pixel and a chroma plane of
one (Cb, Cr) pair per 2×2 pixels, each with its own stride. Odd sizes round chroma up. A producer that takes
its addresses from a layout alone is right for tight, padded and oddly strided buffers alike.

Colours are R'G'B' in 0..1 (already gamma-coded) and become limited-range codes by ITU-R BT.709-6.
"""

import enum
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
BytesLike = bytes | bytearray | memoryview | mmap.mmap | U8
Rgb = tuple[float, float, float]

# ITU-R BT.709-6 §3.2–3.3: E'Y = Kr·E'R + Kg·E'G + Kb·E'B; E'CB = (E'B − E'Y)/1.8556; E'CR = (E'R − E'Y)/1.5748.
KR, KG, KB = 0.2126, 0.7152, 0.0722
CB_DIVISOR, CR_DIVISOR = 1.8556, 1.5748
# ITU-R BT.709-6 §4.5: D'Y = INT[219·E'Y + 16], D'C = INT[224·E'C + 128] for 8 bits.
LUMA_BLACK, LUMA_WHITE, LUMA_SPAN = 16, 235, 219
CHROMA_LOW, CHROMA_ZERO, CHROMA_HIGH, CHROMA_SPAN = 16, 128, 240, 224


class Nv12Refusal(enum.Enum):
    """Why a layout or a buffer was refused."""

    SIZE = "nv12-size"
    STRIDE = "nv12-stride"
    OFFSET = "nv12-offset"
    BUFFER = "nv12-buffer"


class Nv12Error(ValueError):
    """A layout or buffer that cannot hold the picture; `code` names which rule it broke."""

    def __init__(self, code: Nv12Refusal, message: str) -> None:
        super().__init__(f"{code.value}: {message}")
        self.code = code


@dataclass(frozen=True)
class Nv12Layout:
    """Where an NV12 picture of `width`×`height` pixels lies in a buffer; all offsets and strides in bytes."""

    width: int
    height: int
    luma_stride: int
    chroma_offset: int
    chroma_stride: int
    luma_offset: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise Nv12Error(Nv12Refusal.SIZE, f"picture is {self.width}×{self.height}; both must be at least 1")
        for name, stride, least in (
            ("luma", self.luma_stride, self.width),
            ("chroma", self.chroma_stride, 2 * self.chroma_width),
        ):
            if stride < least:
                raise Nv12Error(
                    Nv12Refusal.STRIDE, f"{name} stride is {stride} bytes; a row needs {least}: raise the stride"
                )
        if self.luma_offset < 0 or self.chroma_offset < self.luma_end:
            raise Nv12Error(
                Nv12Refusal.OFFSET,
                f"luma starts at {self.luma_offset}, chroma at {self.chroma_offset}; luma must start at 0 or later "
                f"and chroma at {self.luma_end} or later, after the luma plane",
            )

    @classmethod
    def tight(cls, width: int, height: int) -> "Nv12Layout":
        """The layout without padding: chroma follows luma at once."""
        return cls(width, height, width, width * height, 2 * _half(width))

    @classmethod
    def aligned(cls, width: int, height: int, stride_bytes: int, luma_rows: int) -> "Nv12Layout":
        """A padded layout: both strides `stride_bytes`, and `luma_rows` ≥ `height` rows before the chroma plane."""
        return cls(width, height, stride_bytes, stride_bytes * luma_rows, stride_bytes)

    @property
    def chroma_width(self) -> int:
        """(Cb, Cr) pairs in a chroma row."""
        return _half(self.width)

    @property
    def chroma_height(self) -> int:
        """Rows of the chroma plane."""
        return _half(self.height)

    @property
    def luma_end(self) -> int:
        """First byte after the last luma pixel."""
        return self.luma_offset + self.luma_stride * (self.height - 1) + self.width

    @property
    def buffer_bytes(self) -> int:
        """Least size of a buffer in this layout: it ends with the last chroma pair."""
        return self.chroma_offset + self.chroma_stride * (self.chroma_height - 1) + 2 * self.chroma_width

    def planes(self, buffer: BytesLike) -> tuple[U8, U8]:
        """Views of a bytes-like `buffer`: luma [height, width] and chroma [chroma_height, 2·chroma_width].

        Writable where the buffer is. Raises Nv12Error(BUFFER) when the buffer is shorter than `buffer_bytes`
        or not contiguous.
        """
        octets = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
        if octets.dtype != np.uint8 or not octets.flags.c_contiguous or octets.nbytes < self.buffer_bytes:
            raise Nv12Error(
                Nv12Refusal.BUFFER,
                f"buffer holds {octets.nbytes} bytes of {octets.dtype} (contiguous: {octets.flags.c_contiguous}); "
                f"the layout needs {self.buffer_bytes} contiguous bytes of uint8",
            )
        luma: U8 = np.ndarray((self.height, self.width), np.uint8, octets, self.luma_offset, (self.luma_stride, 1))
        chroma: U8 = np.ndarray(
            (self.chroma_height, 2 * self.chroma_width), np.uint8, octets, self.chroma_offset, (self.chroma_stride, 1)
        )
        return luma, chroma


def _half(extent: int) -> int:
    return (extent + 1) // 2


def encode_bt709_limited(colour: Rgb) -> tuple[float, float, float]:
    """(Y, Cb, Cr) codes, not rounded, of R'G'B' in 0..1: ITU-R BT.709-6 §3.2, §3.3 and §4.5, 8 bits limited range."""
    red, green, blue = colour
    luma = KR * red + KG * green + KB * blue
    return (
        LUMA_BLACK + LUMA_SPAN * luma,
        CHROMA_ZERO + CHROMA_SPAN * (blue - luma) / CB_DIVISOR,
        CHROMA_ZERO + CHROMA_SPAN * (red - luma) / CR_DIVISOR,
    )
