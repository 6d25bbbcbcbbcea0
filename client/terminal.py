"""The outer edge of a command line: whatever happens inside, its user gets words and an exit status, no traceback.

Ctrl-C, a reader that has gone, a full disk under the output, a path that is no text, and our own faults end here.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

__all__ = ["guarded"]

DONE, FAULT = 0, 1
_PLACES = 3  # of a fault: the innermost calls that are named


def guarded(program: str, command: Callable[[], int]) -> int:
    """Runs a command and writes its output to the end; returns its exit status, FAULT for what went wrong on the way.

    SystemExit, with which argparse ends, passes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold bytes that are no text
    try:
        try:
            return command()
        finally:
            _flush()
    except KeyboardInterrupt:
        words = "interrupted"
    except BrokenPipeError:  # whoever reads, such as `head`, has read enough
        _discard_output()
        return DONE
    except OSError as error:
        _discard_output()
        words = f"{error}; see that the output has room, and the command what it needs"
    except Exception as error:
        words = f"fault: {type(error).__name__}: {error} at {_places(error)}; this is our defect: report it"
    print(f"{program}: {words}", file=sys.stderr)
    return FAULT


def _flush() -> None:
    if sys.stdout is not None:  # it is where the caller closed descriptor 1
        sys.stdout.flush()


def _discard_output() -> None:
    """What could not be written is dropped: the interpreter would try it again at its end."""
    output = sys.stdout
    if output is sys.__stdout__ and output is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, output.fileno())
        os.close(null)


def _places(error: Exception) -> str:
    """The innermost calls, by hand: the traceback module opens source files, which the sealed guard forbids."""
    places, trace = [], error.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(places[-_PLACES:]))
