"""The aux inputs of one model: small named tensors that peers set, each with the time at which it was true.

At every run each is fresh, or is replaced by its signed default, or refuses the run, as the contract says. Values are
given to the device's memory only between runs. The primary entrypoint has all of them, the others some (admission).
"""

from __future__ import annotations

from dataclasses import dataclass

from abi.graph import AuxInput, Entrypoint, Graph
from abi.messages import Refusal, SetAux
from abi.packet import Kind, RefusalCode
from hal.accelerator import Accelerator, DeviceBuffer
from hal.bindings import Bindings

NO_AGE_NS = -1


@dataclass
class _Value:
    """One aux input: its contract, its device memory, and what was last set (`time_ns` None: nothing yet)."""

    contract: AuxInput
    buffer: DeviceBuffer
    data: bytes = b""
    time_ns: int | None = None


class StaleAux(Exception):
    """A run cannot have this aux input: it was never set, or is older than its limit, and has no default."""


class AuxPart:
    """The aux inputs that one entrypoint takes, in its order."""

    def __init__(self, values: tuple[_Value, ...], bindings: Bindings) -> None:
        self._values = values
        self._bindings = bindings
        self.bind()

    def bind(self) -> None:
        """Binds every input's memory."""
        for position, value in enumerate(self._values):
            self._bindings.bind_aux(position, value.buffer)

    def give(self, now_ns: int) -> tuple[int, ...]:
        """Puts the values of the next run into device memory; returns their ages. Only between runs.

        The age of a default is NO_AGE_NS. Raises StaleAux.
        """
        return tuple(_give(value, now_ns) for value in self._values) if self._values else ()


class AuxInputs:
    """Values by name, in device memory of their own. `entry`: the entrypoint that has all of them."""

    def __init__(self, graph: Graph, entry: Entrypoint, accelerator: Accelerator) -> None:
        self._graph = graph
        self._values: dict[str, _Value] = {}
        for index in entry.aux:
            contract = graph.aux[index]
            buffer = accelerator.allocate(f"aux {contract.name}", graph.buffers[contract.buffer].size_bytes)
            self._values[contract.name] = _Value(contract, buffer)

    def part(self, entry: Entrypoint, bindings: Bindings) -> AuxPart:
        """What `entry` takes of them, bound to its bindings."""
        return AuxPart(tuple(self._values[self._graph.aux[index].name] for index in entry.aux), bindings)

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs' names, in the contract's order."""
        return tuple(self._values)

    def take_over(self, before: AuxInputs) -> None:
        """Takes the values of the same name and size from the model that served before."""
        for name, value in self._values.items():
            old = before._values.get(name)
            if old is not None and len(old.data) == value.buffer.size_bytes:
                value.data, value.time_ns = old.data, old.time_ns

    def copy_given(self, other: AuxInputs) -> None:
        """Gives the device what the last run of `other` had; what `other` has not, by its default. Between runs."""
        for name, value in self._values.items():
            given = other._values.get(name)
            value.buffer.view[:] = value.contract.default_value if given is None else given.buffer.view

    def lacking(self, other: AuxInputs) -> str | None:
        """The first input that neither `other` has, in the same size, nor a default stands for."""
        for name, value in self._values.items():
            given = other._values.get(name)
            if given is None and not value.contract.has_default:
                return name
            if given is not None and given.buffer.size_bytes != value.buffer.size_bytes:
                return name
        return None

    def set(self, message: SetAux, now_ns: int) -> Refusal | None:
        """Takes a value for the runs that follow, or says why not. An older value never replaces a newer one."""
        value = self._values.get(message.name)
        if value is None:
            expected, action = f"one of {list(self._values)}", "name an aux input of the model's contract"
            return _refusal(RefusalCode.UNKNOWN_AUX, "name", expected, message.name, action)
        if len(message.value) != value.buffer.size_bytes:
            found = f"{len(message.value)} bytes"
            kind = f"{value.contract.dtype.name.lower()} {list(value.contract.shape)}"
            expected, action = f"{value.buffer.size_bytes} bytes: {kind}", "send the value in the contract's form"
            return _refusal(RefusalCode.BAD_AUX, "value", expected, found, action)
        if message.time_ns > now_ns:
            found = f"{message.time_ns - now_ns} ns in the future"
            expected, action = (
                "a time at or before now (CLOCK_MONOTONIC)",
                "send when the value was true, in that clock",
            )
            return _refusal(RefusalCode.BAD_AUX, "timeNs", expected, found, action)
        if value.time_ns is not None and message.time_ns < value.time_ns:
            found = f"one {value.time_ns - message.time_ns} ns older"
            action = "send values in the order of their times, from one peer"
            return _refusal(RefusalCode.BAD_AUX, "timeNs", "a time not before the last value's", found, action)
        value.data, value.time_ns = message.value, message.time_ns
        return None


def _give(value: _Value, now_ns: int) -> int:
    contract = value.contract
    if value.time_ns is not None:
        age_ns = now_ns - value.time_ns
        if not contract.max_age_ns or age_ns <= contract.max_age_ns:
            value.buffer.view[:] = value.data
            return age_ns
    if not contract.has_default:
        raise StaleAux(contract.name)
    value.buffer.view[:] = contract.default_value
    return NO_AGE_NS


def _refusal(code: RefusalCode, what: str, expected: str, found: str, action: str) -> Refusal:
    return Refusal(code, Kind.SET_AUX, what, expected, found, action)
