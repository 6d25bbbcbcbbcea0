"""What all tests share: where the sample data lies, and how hypothesis runs.

Sample pictures, models and vectors are not part of the repository; they are looked for beside it and the tests that
need them skip where they are absent.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).resolve().parents[2] / "shared"

# No deadline, nor a limit on how long examples take to draw: a slow machine is not a defect, nor is one that stands
# still for a second. Derandomized: one commit has one verdict; `make fuzz` explores.
SLOW = (HealthCheck.too_slow,)
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.load_profile("repeatable")

# A shell that starts the tests in the background lets them ignore Ctrl-C; the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of sample data beside the repository. Skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no sample data at {SHARED}")
    return SHARED
