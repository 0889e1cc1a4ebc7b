"""The front object: what an engine calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from . import _core
from ._errors import DeadlineExceededError
from ._rows import Rows
from ._store import Store
from ._types import integer, number_of

IDS_LAYOUTS = {"NLK": 0, "LNK": 1}


class Taken:
    """Rows that Capture.take has taken, which a thread of the library reads: a future, of which
    result(), exception(), done() and add_done_callback() mean what those of
    ``concurrent.futures.Future`` mean. Any thread."""

    __slots__ = ("_native", "_rows")

    def __init__(self, native: _core.TakenRows) -> None:
        self._native = native
        self._rows: Rows | None = None

    def done(self) -> bool:
        """Whether the rows have been read, or it is known why they cannot be."""
        return self._native.done()

    def result(self, timeout: float | None = None) -> Rows:
        """The rows. DeadlineExceededError, a TimeoutError, if they are not there after `timeout`
        seconds, or if the steps before them did not end in time (ids_timeout)."""
        if self._rows is None:
            self._rows = Rows._of(self._native._result(timeout))
        return self._rows

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why there are no rows; None: there are. DeadlineExceededError after `timeout`."""
        try:
            self.result(timeout)
        except DeadlineExceededError as error:
            if not self.done():
                raise
            return error
        except Exception as error:
            return error
        return None

    def add_done_callback(self, function: Callable[[Taken], Any]) -> None:
        """Calls ``function(self)`` once the rows are there: on a thread of the library, or at once.
        What it raises is logged."""

        def call() -> None:
            try:
                function(self)
            except Exception:
                logging.getLogger("waymark").exception("waymark: a callback of rows failed")

        self._native._when_done(call)


class Result(NamedTuple):
    """Rows that a message took."""

    tag: int
    rows: Rows | None
    failure: str
    """Why there are no rows; else empty."""


class Capture(Store):
    """The rows of every KV block of an engine; one per model and rank that stores. What an engine calls:

    ::

        cap = waymark.Capture(num_layers=58, top_k=8, num_experts=256, num_blocks=4096)
        cap.bind(blocks)                                     # events of KV blocks, in the engine's order
        with cap.step(None, None, slots) as step:            # a forward, and the rows that it writes
            step.ids = forward()                             # integers [N, L, K]
        taken = cap.take(blocks, tokens)                     # before the blocks are released
        cap.release(blocks)
        rows = taken.result(timeout=5)                       # rows.ids, rows.valid, rows.reasons

    """

    def __init__(
        self,
        *,
        ids_layout: Literal["NLK", "LNK"] = "NLK",
        layer_names: Sequence[str] = (),
        max_results: int = 4096,
        **options: Any,
    ) -> None:
        """ids_layout: of the ids of a step: [rows, layers, K], or [layers, rows, K]. layer_names: of
        the layers' modules, for reports. max_results: rows that messages took and that nobody fetches
        by results(); for one more the oldest is given up. Further options: those of Store."""
        layout = number_of("ids_layout", ids_layout, IDS_LAYOUTS)
        integer("max_results", max_results, 1, 1 << 20)
        super().__init__(**options)
        self._configure(layout == 1, max_results)
        for layer, name in enumerate(layer_names):
            self._name_layer(layer, name)

    def report_message(  # type: ignore[override]
        self, message: object
    ) -> tuple[int, ...]:
        """Reports a message of a ScheduleWriter, as Store.report_message does, whose errors it has.
        The rows that it takes are read, and results() has them; returns their tags. A refused message
        takes none. Engine's thread."""
        return self._report_message(message)

    def take(self, blocks: object, tokens: int, first: int = 0) -> Taken:
        """Takes rows [first, tokens) of the sequence whose block i has tokens [i, i + 1) *
        block_tokens, before the blocks are released; blocks behind those rows are not looked at.
        Returns at once: the rows are read on a thread of the library, so that nothing is pinned
        longer than that takes. OutOfRangeError and InvalidArgumentError name the range or the block.
        Engine's thread."""
        return Taken(self._take(blocks, tokens, first))

    def results(self, timeout: float | None = None) -> list[Result]:
        """The rows that messages took, as far as they have been read, in order; each once. timeout:
        first waits so many seconds for all that have been taken. Any thread."""
        return [
            Result(tag, None if native is None else Rows._of(native), failure)
            for tag, native, failure in self._results(timeout)
        ]
