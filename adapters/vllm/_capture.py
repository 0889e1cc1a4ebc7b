"""The expert ids of a forward, from the capture slots of vLLM's routers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .._core import Step
from . import _versions
from ._hooks import module

Take = Callable[[Any], None]

# Of a compiled model: what takes the ids of a layer, by the model's number of the layer, which is
# part of the compiled code.
_takes: dict[int, Take] = {}
_library: Any = None


class Ids:
    """What the routers of one model chose. The thread of the worker."""

    def __init__(self, runner: Any) -> None:
        """Before the model is compiled."""
        config = runner.vllm_config
        self.layers = _versions.moe_layers(runner.get_model())
        # Two entries are enough to notice that a router chose twice in one forward.
        self._ids: list[deque[Any]] = [deque(maxlen=2) for _ in self.layers]
        self._own_rows = _versions.own_rows(config.parallel_config)
        self._compiled = _versions.compiles(config)
        self.attach()

    def attach(self) -> None:
        """A router has one capture slot: who else had it is called first."""
        for ids, layer in zip(self._ids, self.layers):
            router = layer.router
            take, before = getattr(router, "_waymark", (None, None))
            if router.capture_fn is not take:
                before = router.capture_fn
            take = ids.append
            if self._own_rows is not None:
                take = _after(self._own_rows, take)
            if self._compiled:
                take = _compiled(layer.layer_id, take)
            if before is not None:
                take = _both(before, take)
            router._waymark = take, before
            router.set_capture_fn(take)

    def clear(self) -> None:
        """Forgets a forward that was no step: profiling, warm-up, a dummy batch."""
        if any(self._ids):
            for ids in self._ids:
                ids.clear()

    def take(self) -> list[Any] | None:
        """The ids of the forward, [rows, K] for each layer. None: a router did not choose, or twice."""
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

    def __init__(self, max_rows: int) -> None:
        """max_rows: of a forward."""
        torch = module("torch")
        self._empty, self._stack = torch.empty, torch.stack
        self._max_rows = max_rows
        self._at = -1  # of the last put
        self._memory: list[Any] = []
        self._views: list[Any] = []  # [L, rows, K] of the last forward in each
        self._arrays: list[Any] = []  # the same for numpy
        self._steps: list[Any] = []  # that read them

    def put(self, tensors: list[Any]) -> Any:
        """Copies the ids of all layers into memory that no step reads: numpy [L, rows, K]. Raises
        RuntimeError if the layers have different rows."""
        rows = tensors[0].shape[0]
        self._at = next((i for i, step in enumerate(self._steps) if step is None or step.done), -1)
        if self._at < 0 or self._arrays[self._at].shape[1] != rows:
            columns = tensors[0].shape[1]
            self._lay_out(len(tensors), rows, columns, tensors[0].dtype)
        self._stack(tensors, out=self._views[self._at])
        return self._arrays[self._at]

    def lend(self, step: Step) -> None:
        """`step` reads what was put."""
        self._steps[self._at] = step

    def _lay_out(self, layers: int, rows: int, columns: int, dtype: Any) -> None:
        size = layers * rows * columns
        if self._at < 0 or self._memory[self._at].shape[0] < size:
            self._at = len(self._memory)
            memory = self._empty(layers * max(rows, self._max_rows) * columns, dtype=dtype)
            self._memory.append(memory)
            for parts in (self._views, self._arrays, self._steps):
                parts.append(None)
        view = self._memory[self._at][:size].reshape(layers, rows, columns)
        self._views[self._at], self._arrays[self._at] = view, view.numpy()


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
