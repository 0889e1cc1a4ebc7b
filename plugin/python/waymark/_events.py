"""Events of a step, and batches as bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import serialize_batch
from ._types import EVENT_DTYPE

__all__ = ["Batch", "Events", "parse_batch", "serialize_batch"]


class Events(_core.Events):
    __slots__ = ()
    __doc__ = _core.Events.__doc__

    @property
    def array(self) -> npt.NDArray[np.void]:
        """The events as numpy: EVENT_DTYPE [len], writable, no copy.

        It is a view of the builder's current memory: later calls overwrite it, and a builder that
        grows moves to other memory.
        """
        return self._bytes.reshape(-1).view(EVENT_DTYPE)


class Batch(NamedTuple):
    """A parsed step batch. The arrays are read-only views of it and keep it."""

    step: int
    version: int
    events: npt.NDArray[np.void]
    """EVENT_DTYPE [events]."""
    slots: npt.NDArray[np.int64]
    """int64 [rows]."""
    device_slots: bool
    used: int
    """Bytes of the buffer that the batch occupied."""


def parse_batch(buffer: object) -> Batch:
    """Parses one batch at the front of ``buffer`` (bytes, or any array of bytes). Any bytes are
    safe: InvalidArgumentError for those that serialize_batch does not write. Any thread."""
    parsed = _core.parse_batch(buffer)
    events = parsed.events.reshape(-1).view(EVENT_DTYPE)
    return Batch(
        parsed.step, parsed.version, events, parsed.slots, parsed.device_slots, parsed.used
    )
