"""Batches of steps as bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import serialize_batch
from ._types import event_dtype

__all__ = ["Batch", "parse_batch", "serialize_batch"]


class Batch(NamedTuple):
    """A parsed step batch. The arrays are read-only views of it and keep it."""

    step: int
    version: int
    events: npt.NDArray[np.void]
    """event_dtype [events]."""
    slots: npt.NDArray[np.int64]
    """int64 [rows]."""
    device_slots: bool
    derive_events: bool
    used: int
    """Bytes of the buffer that the batch occupied."""


def parse_batch(buffer: object) -> Batch:
    """Parses one batch at the front of ``buffer`` (bytes, or any array of bytes). Any bytes are
    safe: InvalidArgumentError for those that serialize_batch does not write. Any thread."""
    parsed = _core.parse_batch(buffer)
    events = parsed.events.reshape(-1).view(event_dtype)
    return Batch(
        parsed.step,
        parsed.version,
        events,
        parsed.slots,
        parsed.device_slots,
        parsed.derive_events,
        parsed.used,
    )
