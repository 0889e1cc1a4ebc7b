"""The expert ids of a forward, from the capture slots of vLLM's routers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .._capture import Capture
from .._core import Buffer
from . import _routers, _versions
from ._hooks import module

Take = Callable[[Any], None]

# Of a compiled model: what takes the ids of a layer, by the model's number of the layer, which is
# part of the compiled code.
_takes: dict[int, Take] = {}
_library: Any = None


def fill(slot: Any, take: Take) -> None:
    """A capture slot has one function: who else had it is called first."""
    ours, before = getattr(slot, "_waymark", (None, None))
    if slot.capture_fn is not ours:
        before = slot.capture_fn
    if before is not None:
        take = _both(before, take)
    slot._waymark = take, before
    slot.capture_fn = take


class Ids:
    """What the routers of one model chose. The thread of the worker."""

    def __init__(self, runner: Any) -> None:
        """Before the model is compiled."""
        config = runner.vllm_config
        self.layers = _routers.moe_layers(runner.get_model())
        # Two entries are enough to notice that a router chose twice in one forward.
        self._ids: list[deque[Any]] = [deque(maxlen=2) for _ in self.layers]
        self._own_rows = _versions.own_rows(config.parallel_config)
        self._compiled = _versions.compiles(config)
        self.attach(runner)

    def attach(self, runner: Any) -> None:
        """Again after others took the slots."""
        for ids, layer in zip(self._ids, _routers.moe_layers(runner.get_model())):
            take: Take = ids.append
            if self._own_rows is not None:
                take = _after(self._own_rows, take)
            if self._compiled:
                take = _compiled(layer.layer_id, take)
            fill(layer.slot, take)

    def clear(self) -> None:
        """Forgets a forward that was no step: profiling, warm-up, a dummy batch."""
        if any(self._ids):
            for ids in self._ids:
                ids.clear()

    def take(self) -> list[Any] | None:
        """The ids of the forward, [rows, K] for each layer. None: a router did not choose, or
        twice."""
        try:
            tensors = [ids.pop() for ids in self._ids]
            if not any(self._ids):
                return tensors
        except IndexError:
            pass
        self.clear()
        return None


class Buffers:
    """Memory for the ids of forwards, which the store reads in its own time: as many as there are
    steps that have not landed. The thread of the worker."""

    def __init__(self, store: Capture, max_rows: int) -> None:
        """store: reads them. max_rows: of a forward."""
        torch = module("torch")
        self._empty, self._stack = torch.empty, torch.stack
        self._store = store
        self._max_rows = max_rows
        self._memory: list[Any] = []
        self._views: list[Any] = []  # [L, rows, K] of the last forward in each
        self._buffers: list[Any] = []  # the same
        self.rows = 0
        """Of the forward whose ids were put last."""

    def put(self, tensors: list[Any]) -> Buffer:
        """Copies the ids of all layers into memory that no step reads, [L, rows, K]. Raises
        RuntimeError if the layers have different rows."""
        self.rows = rows = tensors[0].shape[0]
        at = next((i for i, buffer in enumerate(self._buffers) if buffer.free), -1)
        if at < 0 or self._views[at].shape[1] != rows:
            at = self._lay_out(at, len(tensors), rows, tensors[0])
        self._stack(tensors, out=self._views[at])
        buffer: Buffer = self._buffers[at]
        return buffer

    def _lay_out(self, at: int, layers: int, rows: int, like: Any) -> int:
        columns = like.shape[1]
        size = layers * rows * columns
        if at < 0 or self._memory[at].shape[0] < size:
            at = len(self._memory)
            most = layers * max(rows, self._max_rows) * columns
            self._memory.append(self._empty(most, dtype=like.dtype))
            self._views.append(None)
            self._buffers.append(None)
        self._views[at] = view = self._memory[at][:size].reshape(layers, rows, columns)
        self._buffers[at] = self._store.buffer(view.numpy())
        return at


def _both(before: Take, take: Take) -> Take:
    def call(topk_ids: Any) -> None:
        before(topk_ids)
        take(topk_ids)

    return call


def _after(own_rows: Callable[[Any], Any], take: Take) -> Take:
    def call(topk_ids: Any) -> None:
        take(own_rows(topk_ids))

    return call


def _compiled(layer_id: int, take: Take) -> Take:
    """A call that torch.compile keeps: an operator that says that it changes the ids. Compiled code
    uses their memory again, so that they are copied."""
    global _library
    torch = module("torch")
    if _library is None:
        _library = torch.library.Library("waymark", "FRAGMENT")
        _library.define("capture(Tensor(a!) ids, int layer) -> ()")
        _library.impl("capture", _take_copy, "CPU")
        torch.library.register_fake("waymark::capture", _take_nothing, lib=_library)
    _takes[layer_id] = take
    capture = torch.ops.waymark.capture.default

    def call(topk_ids: Any) -> None:
        capture(topk_ids, layer_id)

    return call


def _take_copy(ids: Any, layer: int) -> None:
    _takes[layer](ids.clone())


def _take_nothing(ids: Any, layer: int) -> None:
    pass
