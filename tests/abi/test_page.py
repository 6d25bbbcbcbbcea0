"""docs/abi.md says what the code does."""

from __future__ import annotations

import re

from abi import flat
from tests.support.abi_page import EXAMPLE, PAGE, blocks, refreshed


def test_the_generated_parts_are_up_to_date() -> None:
    assert PAGE.read_text() == refreshed(PAGE.read_text()), "run: python -m tests.support.abi_page"


def test_every_part_is_on_the_page() -> None:
    assert set(re.findall(r"<!-- ([a-z-]+): generated -->", PAGE.read_text())) == set(blocks())


def test_the_example_is_a_packet() -> None:
    """Read back from the page's own bytes."""
    body = PAGE.read_text().split("<!-- example: generated -->")[1]
    octets = re.findall(r"^ *\d+  ((?:[0-9a-f]{2} ?){8})", body, re.MULTILINE)
    packet = bytes.fromhex("".join(octets))
    assert flat.SUBMIT.unpack(packet, 8) == EXAMPLE
