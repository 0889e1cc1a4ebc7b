"""The rows of KV slots, in the place of SGLang's host table.

What happens to slots (allocations, HiCache's copies, a flush) waits for the next forward that is
launched, and travels with its output. So under overlap scheduling, where slots are allocated for
forward N + 1 before the rows of forward N have come, the store is told everything in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import Capture, Taken, WeightVersions
from .. import __version__ as waymark_version
from .._hooks import module
from ._host_keys import HostKeys

Array = npt.NDArray[Any]
logger = logging.getLogger("sglang.waymark")
_READ_SECONDS = 5.0


Event = tuple[str, Any, Any]  # bind, seal or reset; slots, on the device; keys, or None


class Forward:
    """What a forward captured, made when it is launched: SGLang's TopkCaptureOutput."""

    own: Any = None  # SGLang's class

    def __new__(cls, out_cache_loc: Any, topk: Any, host_cache: Any) -> Any:
        if isinstance(host_cache, Table):
            return super().__new__(cls)
        return cls.own(out_cache_loc=out_cache_loc, topk=topk, host_cache=host_cache)

    def __init__(self, out_cache_loc: Any, topk: Any, host_cache: Table) -> None:
        self.slots, self.ids, self.table = out_cache_loc, topk, host_cache
        self.events, self.number, self.version = host_cache.launch()

    def map_device_tensors(self, copy: Callable[[Any], Any]) -> None:
        """SGLang's copy to the host, which takes the slots of the events along."""
        self.slots, self.ids = copy(self.slots), copy(self.ids)
        self.events = [(what, copy(slots), keys) for what, slots, keys in self.events]

    def finalize(self) -> None:
        """The copies are there. Called in the order of launches."""
        self.table.land(self)


class Table:
    """SGLang's BaseHostCache; one in a process, on the scheduler's thread."""

    own: Any = None  # SGLang's class
    current: Table | None = None
    model: tuple[int, list[int]] = 0, []  # how many experts, and the layers that have a router

    def __new__(cls, tokens: int, layers: int, topk: int, name: str, device: str) -> Any:
        if name == "routed_experts":
            return super().__new__(cls)
        return cls.own(tokens, layers, topk, name=name, device=device)

    def __init__(self, tokens: int, layers: int, topk: int, name: str, device: str) -> None:
        self.num_tokens, self.num_layers, self.topk_size, self.name = tokens, layers, topk, name
        self.buffer = Table.current = self
        self.store: Capture | None = None
        self.failure = ""
        self.answers = True  # whether this rank returns what requests get
        self.page = 1
        self.hosts: HostKeys | None = None
        self.weights, self._weights, self._version = WeightVersions(), (0, ""), 0
        self._updates = self._launched = self._landed = 0
        self._pending: list[Event] = []

    def open(self, page: int, max_rows: int, host_pool: Any, options: Mapping[str, Any]) -> None:
        """The scheduler is complete. page: slots of a block. host_pool: HiCache's, or None."""
        num_experts, layers = self.model
        blocks, rows = (self.num_tokens - 1) // page + 1, int(np.gcd(page, 16))
        self.page, self.hosts = page, HostKeys(host_pool, page) if host_pool is not None else None
        held = blocks + (host_pool.size // page if host_pool is not None else 0)
        given = {"max_steps_in_flight": 64, "max_step_rows": max_rows}
        given["num_pages"] = held * (page // rows)
        self.store = Capture(
            num_layers=len(layers), top_k=self.topk_size, num_experts=num_experts, layer_ids=layers,
            num_blocks=blocks, block_tokens=page, page_tokens=rows, null_blocks=[0],
            engine="SGLang", **{**given, **options},
        )  # fmt: skip
        whole = layers[-1] + 1 - layers[0] == len(layers)
        self._columns: Any = slice(layers[0], layers[-1] + 1) if whole else layers

    def destroy(self) -> None:
        """With SGLang's own."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def fail(self, error: BaseException) -> None:
        """Ends the capture until the cache is flushed: slots have no past then."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)

    def happened(self, what: str, slots: Any, keys: Array | None = None) -> None:
        """An event, behind those before it. slots: None if the call that gives them has failed."""
        if slots is not None and (len(slots) or what == "reset"):
            self._pending.append((what, slots, keys))

    def updated(self) -> None:
        """Weights are about to change."""
        self._updates += 1

    def launch(self) -> tuple[list[Event], int, int]:
        """Of a forward: the events before it, its number, the version of its weights."""
        name = str(module("sglang.srt.runtime_context").get_serving().weight_version)
        if self._weights != (self._updates, name):
            self._weights, new = (self._updates, name), name not in self.weights.names
            self._version = self.weights.number(name) if new else self.weights.unnamed()
        events, self._pending = self._pending, []
        self._launched += 1
        return events, self._launched, self._version

    def __setitem__(self, slots: Any, ids: Any) -> None:
        """Without overlap SGLang has copied already."""
        Forward(slots, ids, self).finalize()

    def land(self, forward: Forward) -> None:
        """The events before a forward, then its rows."""
        expected, self._landed = self._landed + 1, forward.number
        try:
            if forward.number != expected and not self.failure:
                raise RuntimeError("a forward has no output: nobody knows which KV it wrote")
            if self.store is not None:
                for event in forward.events:
                    self._tell(self.store, *event)
                if not self.failure:
                    self._step(self.store, forward)
        except Exception as error:
            self.fail(error)

    def _tell(self, store: Capture, what: str, slots: Any, keys: Array | None) -> None:
        if what == "reset":
            if self.failure:
                logger.warning("waymark: capture begins again: the cache was flushed")
            self.failure = ""
            store.reset()
        elif not self.failure:
            slots = slots.cpu().numpy()
            blocks = slots[slots % self.page == 0] // self.page
            if what == "bind":
                store.bind(blocks, keys)
            else:
                store.seal(blocks, keys, store.last_step)

    def _step(self, store: Capture, forward: Forward) -> None:
        slots, ids = forward.slots.cpu().numpy(), forward.ids.cpu().numpy()
        slots = np.where(slots < self.page, -1, slots)  # block 0 is padding
        store.step(None, forward.version, slots, ids[:, self._columns])

    def take(self, slots: Any) -> Taken | None:
        """The rows of a sequence in these slots, which may begin within a block."""
        try:
            if self.failure or self.store is None or not len(slots):
                return None
            slots = slots.cpu().numpy().astype(np.int64)
            first, count = int(slots[0]) % self.page, len(slots)
            starts = np.concatenate([[0], np.arange(self.page - first, count, self.page)])
            blocks, at = slots[starts] // self.page, np.arange(first, first + count)
            if (blocks[at // self.page] * self.page + at % self.page != slots).any():
                raise RuntimeError("slots of a request are not in blocks")
            return self.store.take(blocks, first + count, first)
        except Exception as error:
            self.fail(error)
            return None

    def answer(self, begin: int, count: int, taken: Taken | None) -> tuple[Array, dict[str, Any]]:
        """Rows [begin, begin + count) of a sequence as SGLang returns them, int32 [count, layers of
        the model, K], missing ones -1, and what `meta_info["waymark"]` says of them."""
        ids = np.full((count, self.num_layers, self.topk_size), -1, np.int32)
        missing, weights, why = [], [], self.failure or "nothing was captured"
        try:
            rows = taken.result(_READ_SECONDS) if taken is not None else None
        except Exception as error:
            rows, why = None, str(error)
        if rows is not None:
            ids[rows.valid] = 0  # layers without a router, as SGLang has them
            ids[:, self._columns] = rows.astype(np.int32, fill="minus_one")
            for run in rows.coverage(self.weights):
                place = run.begin + begin - rows.first, run.end + begin - rows.first
                weights += [[*place, run.version_name]] if run.valid else []
                missing += [[*place, run.why]] if not run.valid else []
        elif count:
            missing = [[begin, begin + count, why]]
        by = f"waymark {waymark_version}"
        return ids, {"by": by, "rows": count, "missing": missing, "weights": weights}
