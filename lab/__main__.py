"""`python -m lab`: as `fenced-lab`."""

from lab.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
