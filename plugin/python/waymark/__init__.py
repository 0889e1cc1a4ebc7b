"""Exact MoE routing of every token, as long as its KV exists.

    import waymark

    store = waymark.Store(num_layers=58, top_k=8, num_experts=256, num_blocks=4096)
    session = waymark.CaptureSession(store, max_rows=512)

    store.bind(blocks)                                   # KV blocks are allocated
    slots = waymark.slots_of(blocks, 16, 0, tokens)      # the slot of each row of this step
    session.begin_step(1, version=1, slots=slots)
    forward(session.view(1).array)                       # int16 [L, max_rows, K]
    session.submit(1)

    with store.snapshot(blocks, 0, tokens) as snapshot:
        snapshot.wait(timeout=1.0)
        ids = snapshot.read()                            # int16 [tokens, L, K]

The terms (row, block, slot, page, step, snapshot, key, version, reason) are defined in
docs/architecture.md. Needs only numpy; importing it starts nothing.
"""

from ._core import Buffer, ScheduleWriter, Step, View, version as _version
from ._capture import Capture, Result, Taken
from ._documents import Chunk, Document, ReadDamage, from_bytes, open
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
from ._install import build_info, demo, include_dir, library_path, tool_path
from ._route import Routing, route
from ._rows import Collective, HasRows, Rows, join
from ._session import (
    CaptureSession,
    LayerFinding,
    LayerStats,
    SelfTestReport,
    SessionStats,
)
from ._snapshot import Snapshot
from ._store import Cursor, Finding, LogLine, Recorder, RecorderOptions, Store, StoreStats
from ._types import (
    ALL_ROWS,
    NOT_ASKED,
    PADDING_SLOT,
    CoverageRun,
    EventType,
    Fault,
    FormatWarning,
    LayerCapture,
    Provenance,
    Reason,
    RoutingMethod,
    RowSplit,
    Shape,
    event_dtype,
    row_info_dtype,
    slots_of,
    split_rows,
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
    "CaptureSession",
    "Chunk",
    "Collective",
    "CoverageRun",
    "Cursor",
    "DataLossError",
    "DeadlineExceededError",
    "Document",
    "EventType",
    "FailedPreconditionError",
    "Fault",
    "FetchReport",
    "Fetcher",
    "FileSource",
    "Finding",
    "FormatWarning",
    "Handle",
    "HasRows",
    "InternalError",
    "InvalidArgumentError",
    "LayerFinding",
    "LayerCapture",
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
    "Recorder",
    "RecorderOptions",
    "RedisSource",
    "ResourceExhaustedError",
    "Result",
    "Routing",
    "RoutingMethod",
    "RowSplit",
    "Rows",
    "ScheduleWriter",
    "SelfTestReport",
    "SessionStats",
    "Shape",
    "Snapshot",
    "Step",
    "Store",
    "StoreStats",
    "Taken",
    "Ticket",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "View",
    "WaymarkError",
    "WeightVersions",
    "__version__",
    "build_info",
    "demo",
    "event_dtype",
    "from_bytes",
    "include_dir",
    "join",
    "library_path",
    "open",
    "read",
    "route",
    "row_info_dtype",
    "slots_of",
    "split_rows",
    "tool_path",
]
