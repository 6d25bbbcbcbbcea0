"""One table of a configuration file, read key by key: what is missing, of a wrong type or left over is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

_Choice = TypeVar("_Choice", bound=Enum)


class ConfigError(ValueError):
    """The configuration is wrong at `key`."""

    def __init__(self, key: str, expected: str, found: object) -> None:
        super().__init__(f"configuration: {key}: expected {expected}, found {found!r}")
        self.key = key
        self.expected = expected
        self.found = found


class Table:
    """One TOML table, read key by key; `done()` refuses what nobody asked for."""

    def __init__(self, data: Mapping[str, object], where: str) -> None:
        self._data = dict(data)
        self._where = where

    def names(self) -> tuple[str, ...]:
        return tuple(self._data)

    def _take(self, key: str) -> object:
        return self._data.pop(key, None)

    def _error(self, key: str, expected: str, found: object) -> ConfigError:
        return ConfigError(self._where + key, expected, "nothing" if found is None else found)

    def table(self, key: str) -> Table:
        found = self._take(key)
        if found is None:
            found = {}
        if not isinstance(found, dict):
            raise self._error(key, "a table", found)
        return Table(found, f"{self._where}{key}.")

    def tables(self, key: str) -> list[Table]:
        found = self._take(key)
        items = [] if found is None else found
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._error(key, f"tables, each under [[{self._where}{key}]]", found)
        return [Table(item, f"{self._where}{key}[{index}].") for index, item in enumerate(items)]

    def text(self, key: str, default: str | None = None) -> str:
        found = self._take(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, str) or not found:
            raise self._error(key, "a string", found)
        return found

    def one_of(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        found = self.text(key, default)
        if found not in allowed:
            raise self._error(key, f"one of {', '.join(allowed)}", found)
        return found

    def choice(self, key: str, choices: type[_Choice], default: _Choice) -> _Choice:
        found = self.text(key, str(default.value))
        for choice in choices:
            if choice.value == found:
                return choice
        raise self._error(key, f"one of {', '.join(str(choice.value) for choice in choices)}", found)

    def number(self, key: str, default: int, least: int, most: int) -> int:
        found = self._take(key)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self._error(key, f"an integer from {least} to {most}", found)
        return found

    def flag(self, key: str, default: bool) -> bool:
        found = self._take(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._error(key, "true or false", found)
        return found

    def texts(self, key: str, *, least: int) -> tuple[str, ...]:
        found = self._take(key)
        items = [] if found is None else found
        if not isinstance(items, list) or len(items) < least or not all(isinstance(item, str) for item in items):
            raise self._error(key, f"a list of at least {least} strings", found)
        return tuple(items)

    def numbers(self, key: str) -> tuple[int, ...]:
        found = self._take(key)
        items = [] if found is None else found
        if not isinstance(items, list) or not all(type(item) is int and 0 <= item < 2**32 - 1 for item in items):
            raise self._error(key, "a list of whole numbers that are not negative", found)
        return tuple(items)

    def done(self) -> None:
        """Raises ConfigError for the first key that was not taken."""
        for key, found in self._data.items():
            raise ConfigError(self._where + key, "no such key (is the unit in its name?)", found)
