"""One target under atheris: `python -m tests.fuzz.libfuzzer TARGET [libFuzzer's options and corpus folders]`.

Only `abi` and `signing` are instrumented, so that coverage is of what is tested. libFuzzer ends the process itself.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["abi", "signing"], enable_loader_override=False):
    from tests.fuzz import harness


def main() -> None:
    """Run the target that the command line names."""
    target = harness.TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
