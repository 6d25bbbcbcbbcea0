"""The C++ programs, built once each way for all tests of the examples."""

from pathlib import Path

import pytest

from tests.examples.cpp_programs import build


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs with AddressSanitizer and UndefinedBehaviorSanitizer."""
    return build(tmp_path_factory.mktemp("cpp-sanitized"), sanitize=True)
