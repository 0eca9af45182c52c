"""The errors a user may meet, each one line (fact, values, way out) with a documented exit code.

AutotuneError
├── ConfigError          3  a config file or flag is wrong
├── DataError            4  the training data is missing or broken
├── ModelError           5  the base model is missing, broken or of another family
├── DeviceError          6  no such device, or it can't be read
├── NothingFitsError     7  the whole ladder was walked and no plan fits
├── OutOfDeviceMemory    8  training as written ran out of device memory (no --fit-vram)
├── WorkerError          9  a worker process died, hung or spoke nonsense
├── ProfileError        10  a profile is broken, of another schema, or can't be stored
├── DiskError           11  the disk is full or a path can't be written
└── TrainingError       12  training itself failed, for another reason than memory
"""


class AutotuneError(Exception):
    """One line for stderr: the fact with its values, then the way out. `exit_code` ends the process; 1 is kept
    for faults that are none of these: ours."""

    exit_code = 1

    def __init__(self, fact: str, way_out: str = "") -> None:
        """`fact` names what happened with its values; `way_out` says what the reader can do."""
        self.fact = " ".join(fact.split())
        self.way_out = " ".join(way_out.split())
        super().__init__(f"{self.fact} {self.way_out}".strip())


class ConfigError(AutotuneError):
    """A config file, key or flag can't be used as written."""

    exit_code = 3


class DataError(AutotuneError):
    """Training images or captions are missing or broken."""

    exit_code = 4


class ModelError(AutotuneError):
    """The base model is missing, incomplete, unsafe or of a family that can't be trained."""

    exit_code = 5


class DeviceError(AutotuneError):
    """The device does not exist here or can't be read or used."""

    exit_code = 6


class NothingFitsError(AutotuneError):
    """Every rung of the ladder was tried and none fits the budget."""

    exit_code = 7


class OutOfDeviceMemory(AutotuneError):  # noqa: N818 - named after what PyTorch calls it
    """Training a fixed plan passed the device memory."""

    exit_code = 8


class WorkerError(AutotuneError):
    """A worker process died, hung or broke its protocol."""

    exit_code = 9


class ProfileError(AutotuneError):
    """A profile can't be read, trusted or stored."""

    exit_code = 10


class DiskError(AutotuneError):
    """A file can't be written: no room, no permission, or a read-only place."""

    exit_code = 11


class TrainingError(AutotuneError):
    """Training failed for another reason than memory: the loss is not a number, say."""

    exit_code = 12
