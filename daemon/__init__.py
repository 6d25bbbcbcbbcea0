"""The daemon: composes abi, hal and signing into one process. `daemon.guard` is imported before anything else here."""

__version__ = "0.1.0"
