"""`python -P -m daemon CONFIG`: serves by the configuration file, as `fenced serve --config CONFIG` does."""

import sys

from daemon.serve import serve

if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python -P -m daemon CONFIG", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(serve(sys.argv[1]))
