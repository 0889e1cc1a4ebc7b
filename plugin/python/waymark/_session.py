"""The capture session: captures an engine's forwards into a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, NamedTuple, Union

from . import _core
from ._core import View
from ._route import Routing, route
from ._rows import Collective
from ._store import Store
from ._types import LAYOUTS, Fault, LayerCapture, integer, number_of

_TRANSPORTS = {"host": 0, "cuda": 1}

Capture = Union[LayerCapture, Literal["kernel_writes_view", "hands_over", "routing_kernel"]]


def _capture(capture: Capture) -> int:
    if isinstance(capture, str):
        return number_of("capture", capture, {s.name.lower(): s.value for s in LayerCapture})
    return int(LayerCapture(capture))


@dataclasses.dataclass(frozen=True)
class SessionStats:
    """Counters over the life of a session."""

    steps_begun: int
    steps_submitted: int
    steps_dropped: int
    steps_cancelled: int
    ring_overflows: int
    """Steps that were dropped when they began because no buffer was free."""
    discards: int
    rows_handed_over: int
    """Rows x layers."""
    gathers: int
    """Steps whose rows the ranks of row_gather exchanged."""
    gathers_failed: int
    """Steps whose all_gather failed."""
    parts_missing: int
    """Parts of other ranks that had no rows, in the steps that were exchanged."""

    def as_dict(self) -> dict[str, int]:
        """The counters by name."""
        return dataclasses.asdict(self)


class LayerStats(NamedTuple):
    """Counters of one layer."""

    layer_id: int
    """The model's number of the layer."""
    module: str
    """Empty if the layer is not bound."""
    capture: LayerCapture
    rows_silent: int
    """Landed rows in which the layer had an id of -1."""
    rows_invalid: int
    """Landed rows in which it had an id out of range, or one twice."""


class LayerFinding(NamedTuple):
    """A layer that is not captured correctly."""

    layer: int
    """Captured layer, in [0, L)."""
    layer_id: int
    """The model's number of the layer."""
    fault: Fault
    rows: int
    """Rows that have the fault."""
    first_row: int
    """The first of them."""


@dataclasses.dataclass(frozen=True)
class SelfTestReport:
    """The result of a self-test."""

    rows: int
    """Rows of the forward."""
    findings: list[LayerFinding]
    text: str
    """One line per finding."""

    @property
    def ok(self) -> bool:
        """Whether every layer is captured correctly."""
        return not self.findings

    def __str__(self) -> str:
        return self.text


class CaptureSession(_core.CaptureSession):
    """Captures an engine's forwards into a store. One per model and rank that stores.

    ::

        session = CaptureSession(store, max_rows=512)
        if session.begin_step(step, version, slots):  # at schedule time
            forward(session.view(step).array)         # writes [layer, row, k]
            session.submit(step)                      # or drop(step), or cancel(step)

    Methods that are not marked "any thread" are called by the engine's thread, which is that of the
    store. The session keeps its store.
    """

    def __init__(
        self,
        store: Store,
        max_rows: int,
        *,
        num_buffers: int = 4,
        num_ids_steps: int = 0,
        transport: Literal["host", "cuda"] = "host",
        device: int = 0,
        one_view: bool = False,
        row_gather: Collective | None = None,
        layers: Iterable[tuple[int, str, Capture]] = (),
    ) -> None:
        """Commits the buffers.

        store: with E <= 32768. max_rows: of the longest forward, padding included (N), 1 ... 2^20.
        num_buffers: capture buffers, one per step begun and not yet read; a step beyond that is
        dropped. num_ids_steps: steps of submit_ids not yet read; 0: the store's
        max_steps_in_flight.
        transport, device: where the views are: host memory, or the CUDA device of that number.
        one_view: one view at one address for every step, as a CUDA graph needs it. layers: (layer,
        module, capture) each, as bind_layer takes them.

        row_gather: sequence parallelism: the ranks that share the rows of each forward. Every rank
        begins the same steps, of the same rows, in the same order; a batch has the rows of all
        ranks, padding included (slots of -1), a multiple of the ranks; the view and the ids of rank
        r have its part of them, which max_rows and written_rows count. The ranks exchange packed
        rows on a thread of the session, one all_gather for each step that was begun, and the store
        of every rank gets all rows. What a rank drops is missing on all of them (capacity); if
        all_gather raises, which it should do at a deadline of its own, the rows of the step are
        missing here (not captured), and the exception is logged.

        UnimplementedError in a build without CUDA; UnavailableError if the device does not exist.
        """
        integer("num_buffers", num_buffers, 1, 2**31 - 1)
        number = number_of("transport", transport, _TRANSPORTS)
        gather: tuple[Any, int, int] = (None, 0, 1)
        if row_gather is not None:
            gather = (row_gather.all_gather, row_gather.rank, row_gather.size)
        super().__init__(
            store, max_rows, num_buffers, num_ids_steps, number, device, one_view, *gather
        )
        for layer, module, capture in layers:
            self.bind_layer(layer, module, capture)

    def bind_layer(
        self, layer: int, module: str, capture: Capture = LayerCapture.KERNEL_WRITES_VIEW
    ) -> None:
        """Names the module of the model that routes captured layer ``layer``, and how its ids get
        into the view. Before the first step. AlreadyExistsError, FailedPreconditionError,
        InvalidArgumentError."""
        self._bind_layer(layer, module, _capture(capture))

    def route(self, view: View | int, layer: int, logits: object, **options: Any) -> Routing:
        """Routes the tokens of a layer and records the ids in its view: waymark.route, which names
        the options, with this view and layer.

        view: a View of this session, or the step. layer: bound as "routing_kernel"."""
        of = view if isinstance(view, View) else self.view(view)
        return route(logits, view=of, layer=layer, **options)

    def submit_ids(
        self, step: int, ids: object, *, layout: Literal["TLK", "LTK"] = "TLK"
    ) -> bool:
        """Submits the ids of all layers of a step in one array, without a copy.

        ids: uint8, uint16, int16, int32 or int64 [rows, L, >= K], or [L, rows, >= K] with
        layout="LTK", of as many rows as the step has (with row_gather, as this rank has of them);
        any strides; host memory, whatever the transport. It is kept, and must not change, until
        landed(step). -1 (65535 in uint16) means that no id was written.

        False: the ids of num_ids_steps steps have not been read yet, so this step was dropped
        (capacity) and has ended; the engine goes on. An exception: the step is still open, so end
        it by drop(). Engine's thread."""
        return self._submit_ids(step, ids, number_of("layout", layout, LAYOUTS) == 1)

    def self_test(self, rows: int, forward: Callable[[View, int], Any]) -> SelfTestReport:
        """Runs ``forward(view, rows)`` on the scratch view and checks every layer. Call it at every
        batch size that has its own kernel. Exceptions of forward are passed on."""
        findings, text = self._self_test(rows, forward)
        return SelfTestReport(
            rows, [LayerFinding(a, b, Fault(c), d, e) for a, b, c, d, e in findings], text
        )

    def stats(self) -> SessionStats:
        """The counters. Any thread."""
        return SessionStats(**self._stats())

    def layer_stats(self, layer: int) -> LayerStats:
        """The counters of a captured layer, in [0, L). Any thread."""
        layer_id, module, capture, silent, invalid = self._layer_stats(layer)
        return LayerStats(layer_id, module, LayerCapture(capture), silent, invalid)

    def __enter__(self) -> CaptureSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
