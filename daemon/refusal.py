"""Why a model was refused: one exception for every step on its way, with the step's own code and words.

The text is the same in the log, the audit trail, the control socket and the command line.
"""

from enum import Enum

from abi.graph import GraphError
from hal.error import HalError
from hal.refusal import AdmissionRefused
from signing.refusal import Refused


class Step(Enum):
    """Where on its way a model was refused."""

    TRUST = "trust"  # read and verified
    CONTRACT = "contract"  # what it asks of streams and of the other models
    ADMISSION = "admission"  # the graph's static proof
    LOAD = "load"  # the driver
    SELF_TEST = "self-test"  # golden vectors and warm-up
    TRIAL = "trial"  # it was tried before, and taken back


class ModelCode(Enum):
    """Codes that are the daemon's own, beside those of signing, graph, admission, device and trials."""

    MODEL_NAME = "model-name"  # no name that the ABI can carry
    MODEL_TWICE = "model-twice"  # the configuration names two bundles of one model
    STREAM_TAKEN = "stream-taken"  # another model takes the stream, or this one takes it twice
    DEVICE_LOAD = "device-load"  # the models would ask for more of the device than it may give
    MEMORY = "memory"  # it does not fit beside what is loaded
    SYSTEM = "system"  # the machine did not give what loading takes, or the audit log could not be written
    FAULT = "fault"  # a defect of the daemon
    GOLDENS = "self-test-goldens"  # the golden vectors are too few, or lie outside their blob
    GOLDEN = "self-test-golden"  # an output or a state differs from the signed one
    CONSTANT = "self-test-constant"  # different inputs give one result
    NAN = "self-test-nan"  # NaN or infinity where the contract refuses it
    CANARY = "self-test-canary"  # a run left output unwritten
    COVERAGE = "self-test-coverage"  # two runs over opposite poisons left output unwritten
    HANG = "self-test-hang"  # a run outlasted its budget
    DEVICE = "self-test-device"  # a run ended in an error
    SHADOW_MODEL = "shadow-model"  # nothing serves under the candidate's name
    SHADOW_STREAM = "shadow-stream"  # it takes a stream that what serves does not take
    SHADOW_FORMAT = "shadow-format"  # it takes a stream in another format
    SHADOW_AUX = "shadow-aux"  # it needs an aux input that what serves does not have
    SHADOW_OUTPUTS = "shadow-outputs"  # no output can be compared


class ModelRefused(Exception):
    """A bundle was not activated; whatever served before goes on serving. `code` is stable, for scripts."""

    model = ""
    # The model's name, where the refusal is one of a statement that was verified up to it.

    def __init__(self, step: Step, code: ModelCode | str, what: str, *, expected: str, found: str, todo: str) -> None:
        """`code`: as text where it is another package's."""
        code = code.value if isinstance(code, ModelCode) else code
        super().__init__(f"{code}: {what}: expected {expected}, found {found}. {todo}")
        self.step = step
        self.code = code
        self.what = what
        self.expected = expected
        self.found = found
        self.todo = todo

    def as_dict(self) -> dict[str, str]:
        """The refusal as plain strings."""
        return {
            "step": self.step.value,
            "code": self.code,
            "what": self.what,
            "expected": self.expected,
            "found": self.found,
            "todo": self.todo,
        }


Cause = Refused | GraphError | AdmissionRefused | HalError


def refused(cause: Cause) -> ModelRefused:
    """The refusal of a step, in the one form."""
    expected, found = "", ""
    if isinstance(cause, Refused):
        step, code, what, todo = Step.TRUST, cause.code.value, cause.what, cause.todo
        expected, found = cause.expected, cause.found
    elif isinstance(cause, GraphError):
        step, code, what = Step.ADMISSION, cause.code.name.lower().replace("_", "-"), f"graph: {cause.what}"
        todo = "compile the model again with a matching version of the lab tools"
    elif isinstance(cause, AdmissionRefused):
        step, code, what, todo = Step.ADMISSION, cause.code.value, f"{cause.where}: {cause.what}", cause.todo
        expected, found = cause.expected, cause.found
    else:
        step, code, what, todo = Step.LOAD, cause.code.value, cause.what, cause.todo
        expected, found = cause.expected, cause.found
    return ModelRefused(
        step,
        code,
        what,
        expected=expected or "a model that this machine can run",
        found=found or "one that it cannot",
        todo=todo or "look at the daemon's log",
    )
