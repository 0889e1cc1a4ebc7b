"""The rows of requests that finished, of the lives that requests had before, and of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._capture import Taken
from .._coverage import Coverage
from .._rows import Rows, join

_LANDING_SECONDS = 70.0  # longer than rows are waited for, so that a lost step is an answer


@dataclass(slots=True)
class Part:
    """Rows of one life of a request: between an admission and an eviction, a suspend, new weights
    or the end. Any thread."""

    taken: Taken | None
    """None: released, or failure."""
    last: int
    """One past its last row; what was read behind it is no row of the request."""
    failure: str = ""
    """Why there is nothing; else empty."""
    first: int = 0
    """Rows before it were an earlier life's, under other weights: here they are no row of the
    request, also where that life's are missing."""

    def read(self, timeout: float) -> Rows | None:
        """The rows, if they are taken."""
        if self.taken is None:
            return None
        rows = self.taken.result(timeout)
        return rows.resized(min(self.last, len(rows)))

    def release(self) -> None:
        """Forgets the rows."""
        self.taken = None


@dataclass(eq=False, slots=True)
class Finished:
    """The rows of a request that has finished. Any thread, one at a time."""

    request_id: int
    _parts: Sequence[Part]
    count: int
    """The request's rows: tokens - 1, since the last token was never an input."""
    _on_read: Callable[[Rows], None] | None = None
    _blocks: tuple[int, ...] = ()
    failure: str = ""
    """Why there are no rows; else empty."""
    asked: bool = False
    """Whether Megatron has asked for them by the request's blocks."""
    _rows: Rows | None = None

    def __post_init__(self) -> None:
        self.failure = next((part.failure for part in self._parts if part.failure), "")

    def rows(self, timeout: float = _LANDING_SECONDS) -> Rows | None:
        """The rows, `count` of them: first the first life's, which its tokens were sampled
        with. None: `failure` says why. DeadlineExceededError if they have not landed after
        `timeout` seconds; it may be called again."""
        if self._parts:
            read = [(part.read(timeout), part.first) for part in self._parts]
            self._parts = ()
            every: list[Rows] = []
            for rows, first in read:
                if rows is not None:
                    every.append(rows[first:] if every else rows)
            if every:
                self._rows = every[0] if len(every) == 1 else join(*every)
        if self._rows is None:
            self.failure = self.failure or "released before they were read"
        elif len(self._rows) != self.count:
            self._rows = self._rows.resized(self.count)
        on_read, self._on_read = self._on_read, None
        if on_read is not None and self._rows is not None:
            on_read(self._rows)
        return self._rows

    def array(self, timeout: float = _LANDING_SECONDS) -> npt.NDArray[np.int16] | None:
        """int16 [count, L, K]; missing rows are -1. None: `failure` says why."""
        rows = self.rows(timeout)
        return None if rows is None else rows.astype(np.int16, fill="minus_one")

    def coverage(self, timeout: float = _LANDING_SECONDS) -> Coverage:
        """Reasons of missing rows, versions of the weights, and where the rows come from."""
        rows = self.rows(timeout)
        if rows is None:
            return Coverage((), (), self.failure)
        return Coverage(tuple(rows.coverage()), rows.layer_ids, "")

    def release(self) -> None:
        """Releases the rows without reading them."""
        for part in self._parts:
            part.release()
        self._parts = ()


class Requests:
    """The requests whose rows are kept. The engine's thread."""

    def __init__(self) -> None:
        # The prompt of each request when it was admitted, and the request, to which Megatron adds
        # the tokens that it generates.
        self._admitted: dict[int, tuple[Any, Any]] = {}
        self._earlier: dict[int, list[Part]] = {}  # of requests that go on
        self._finished: dict[int, Finished] = {}  # since the last step
        self.dropped = 0
        """Requests whose rows were not asked for."""

    def rows_kept(self, request_id: int) -> int:
        """How many rows earlier lives of a request have."""
        return max((part.last for part in self._earlier.get(request_id, ())), default=0)

    def keep(self, request_id: int, part: Part) -> None:
        """The rows so far of a request that is computed again, or whose rows may be overwritten."""
        self._earlier.setdefault(request_id, []).append(part)

    def admit(self, request: Any) -> None:
        """A request begins. The rows that are kept under its number are its own only if its prompt
        is the prompt and the generated tokens of the request that had them."""
        request_id = request.request_id
        parts = self._earlier.get(request_id)
        if parts:
            prompt, before = self._admitted.get(request_id, ((), None))
            tokens = _tokens(prompt) + _tokens(getattr(before, "generated_tokens", None))
            if tokens != _tokens(request.prompt_tokens):
                self.forget(request_id)
            for part in parts:
                part.last = min(part.last, len(tokens) - 1)  # the last was never an input
        self._admitted[request_id] = request.prompt_tokens, request

    def forget(self, request_id: int) -> None:
        """Earlier lives of a request are not its own, or it does not go on."""
        self._admitted.pop(request_id, None)
        for part in self._earlier.pop(request_id, ()):
            part.release()

    def finish(
        self, request_id: int, part: Part, blocks: tuple[int, ...], on_read: Callable[[Rows], None]
    ) -> None:
        """A request has finished, and its blocks are about to be released."""
        parts = [*self._earlier.pop(request_id, ()), part]
        self._admitted.pop(request_id, None)
        self._finished[request_id] = Finished(request_id, parts, part.last, on_read, blocks)

    def with_blocks(self, blocks: tuple[int, ...]) -> Finished | None:
        """The request that has finished with these blocks since the last step. Two that have all
        their blocks in common have the same rows; of others the last one differs."""
        for finished in self._finished.values():
            if finished._blocks[-1:] == blocks[-1:] and finished._blocks == blocks:
                return finished
        return None

    def take(self, request_id: int) -> Finished | None:
        """The rows of a finished request, once."""
        return self._finished.pop(request_id, None)

    def next_step(self) -> None:
        """A step has run: rows that were not asked for are dropped. The blocks of a request that
        had finished may be another one's."""
        self.dropped += len(self._finished)
        self._drop_finished()

    def clear(self) -> None:
        """The engine has no requests any more."""
        for request_id in list(self._earlier):
            self.forget(request_id)
        self._admitted.clear()
        self._drop_finished()

    def _drop_finished(self) -> None:
        for finished in self._finished.values():
            finished.release()
        self._finished.clear()


class BlockRouting(Mapping[int, "npt.NDArray[np.int16]"]):
    """In place of the allocator's ``block_routing``: rows of the blocks as they are now, int16
    [block tokens, L, K], missing rows -1. The engine's thread."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached

    def __getitem__(self, block: int) -> npt.NDArray[np.int16]:
        attached = self._attached
        rows: npt.NDArray[np.int16] | None = attached._guarded(attached._rows_of_block, int(block))
        if rows is None:
            raise KeyError(block)
        return rows

    def __iter__(self) -> Iterator[int]:
        return (block for block in range(self._attached.num_blocks) if block in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        # Megatron remembers the blocks of finished requests only if its store is not empty.
        return True

    def pop(self, block: int, default: Any = None) -> Any:
        """Megatron forgets a block that is allocated again; so does the store, by its bind."""
        return default

    def clear(self) -> None:
        """Megatron forgets all blocks in a reset; so does the store, by its reset."""


def _tokens(tokens: Any) -> list[int]:
    """Of a tensor, a list, or None."""
    if tokens is None:
        return []
    found: list[int] = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    return found
