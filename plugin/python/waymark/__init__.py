"""Exact MoE routing of every token, as long as its KV exists.

    import waymark

    cap = waymark.Capture(num_layers=58, top_k=8, num_experts=256, num_blocks=4096)

    cap.bind(blocks)                                     # KV blocks are allocated
    slots = waymark.slots_of(blocks, 16, 0, tokens)      # the slot of each row of this step
    with cap.step(1, 1, slots) as step:
        step.ids = forward()                             # integers [tokens, L, K]

    taken = cap.take(blocks, tokens)                     # before the blocks are released
    rows = taken.result(timeout=5)                       # rows.ids, rows.valid, rows.reasons

The terms (row, block, slot, page, step, key, version, reason) are defined in docs/architecture.md.
Needs only numpy; importing it starts nothing.
"""

from ._core import Buffer, ScheduleWriter, Step, StoreStats, version as _version
from ._capture import (
    Capture,
    Finding,
    LayerStats,
    LogLine,
    RecorderOptions,
    Result,
    Taken,
)
from ._documents import Document, ReadDamage, from_bytes, open
from ._errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
    WaymarkError,
)
from ._fetching import (
    Fetcher,
    FetchReport,
    FileSource,
    MemorySource,
    PageSource,
    Publisher,
    PublisherStats,
    RedisSource,
    Ticket,
)
from ._formats import read
from ._handle import Handle
from ._install import build_info, include_dir, library_path, tool_path
from ._rows import Collective, HasRows, Rows, join
from ._types import (
    ALL_ROWS,
    NOT_ASKED,
    PADDING_SLOT,
    CoverageRun,
    EventType,
    FormatWarning,
    Provenance,
    Reason,
    Shape,
    event_dtype,
    row_info_dtype,
    slots_of,
)
from ._versions import WeightVersions

__version__: str = _version()

__all__ = [
    "ALL_ROWS",
    "NOT_ASKED",
    "PADDING_SLOT",
    "AbortedError",
    "AlreadyExistsError",
    "Buffer",
    "CancelledError",
    "Capture",
    "Collective",
    "CoverageRun",
    "DataLossError",
    "DeadlineExceededError",
    "Document",
    "EventType",
    "FailedPreconditionError",
    "FetchReport",
    "Fetcher",
    "FileSource",
    "Finding",
    "FormatWarning",
    "Handle",
    "HasRows",
    "InternalError",
    "InvalidArgumentError",
    "LayerStats",
    "LogLine",
    "MemorySource",
    "NotFoundError",
    "OutOfRangeError",
    "PageSource",
    "PermissionDeniedError",
    "Provenance",
    "Publisher",
    "PublisherStats",
    "ReadDamage",
    "Reason",
    "RecorderOptions",
    "RedisSource",
    "ResourceExhaustedError",
    "Result",
    "Rows",
    "ScheduleWriter",
    "Shape",
    "Step",
    "StoreStats",
    "Taken",
    "Ticket",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "WaymarkError",
    "WeightVersions",
    "__version__",
    "build_info",
    "event_dtype",
    "from_bytes",
    "include_dir",
    "join",
    "library_path",
    "open",
    "read",
    "row_info_dtype",
    "slots_of",
    "tool_path",
]
