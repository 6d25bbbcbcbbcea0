"""The C++ programs, built once each way for all tests of the examples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.cpp_programs import Peer, build


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs with AddressSanitizer and UndefinedBehaviorSanitizer."""
    return build(tmp_path_factory.mktemp("cpp-sanitized"), sanitize=True)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs as a user builds them."""
    return build(tmp_path_factory.mktemp("cpp"), sanitize=False)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with Peer(tmp_path / "peer.sock") as made:
        yield made
