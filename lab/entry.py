"""Where `fenced-lab` begins: nothing is imported before Ctrl-C has its words, for the commands take a second to import.

`lab.cli.main` is the same for callers that have it imported already.
"""

import sys


def main() -> int:
    """Runs the command line of this process; returns the exit status."""
    try:
        from client.terminal import guarded  # noqa: PLC0415 (see the module)

        return guarded("fenced-lab", _main)
    except KeyboardInterrupt:
        print("fenced-lab: interrupted", file=sys.stderr)
        return 1


def _main() -> int:
    from lab.cli import main as command  # noqa: PLC0415 (see the module)

    return command()
