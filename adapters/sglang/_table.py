"""What is in the place of SGLang's host table and of the outputs that fill it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import Taken
from .. import __version__ as waymark_version
from .._hooks import ends, guarded, module
from .._slots import HostKeys, Launch, Slots


class Forward:
    """What a forward captured, made when it is launched: SGLang's TopkCaptureOutput."""

    own: Any = None  # SGLang's class

    def __new__(cls, out_cache_loc: Any, topk: Any, host_cache: Any) -> Any:
        if isinstance(host_cache, Table):
            return super().__new__(cls)
        return cls.own(out_cache_loc=out_cache_loc, topk=topk, host_cache=host_cache)

    def __init__(self, out_cache_loc: Any, topk: Any, host_cache: Table) -> None:
        self.slots, self.ids, self.table = out_cache_loc, topk, host_cache
        self.launch: Launch | None = host_cache.launched()

    def map_device_tensors(self, copy: Callable[[Any], Any]) -> None:
        """SGLang's copy to the host, which takes the slots of the events along."""
        self.slots, self.ids = copy(self.slots), copy(self.ids)
        self.launch = self.launch and self.launch.copied(copy)

    def finalize(self) -> None:
        """The copies are there. Called in the order of launches."""
        self.table.finalized(self)


class Table(Slots):
    """SGLang's BaseHostCache; one in a process, on the scheduler's thread."""

    log = logging.getLogger("sglang.waymark")
    own: Any = None  # SGLang's class
    current: Table | None = None
    model: tuple[int, list[int]] = 0, []  # how many experts, and the layers that have a router

    def __new__(cls, tokens: int, layers: int, topk: int, name: str, device: str) -> Any:
        if name == "routed_experts":
            return super().__new__(cls)
        return cls.own(tokens, layers, topk, name=name, device=device)

    def __init__(self, tokens: int, layers: int, topk: int, name: str, device: str) -> None:
        super().__init__()
        self.num_tokens, self.num_layers, self.topk_size, self.name = tokens, layers, topk, name
        self.buffer = Table.current = self
        self.host_pool: Any = None  # HiCache's
        self.hosts: HostKeys | None = None
        self._columns: Any = slice(0)

    def opened(self, page: int, rows: int, host_pool: Any, options: Mapping[str, Any]) -> None:
        """The scheduler is complete. page: slots of a block. rows: of the largest forward."""
        num_experts, layers = self.model
        blocks, page_tokens = (self.num_tokens - 1) // page + 1, int(np.gcd(page, 16))
        held = blocks
        if host_pool is not None:
            self.host_pool, self.hosts = host_pool, HostKeys(host_pool.size, page)
            held += host_pool.size // page
        pages = held * (page // page_tokens)
        # Rows are read before the next forward lands: spare pages are for a reader that is late.
        given = {"max_steps_in_flight": 64, "num_pages": pages, "spare_pages": pages // 8}
        self.open(
            page, num_layers=len(layers), top_k=self.topk_size, num_experts=num_experts,
            layer_ids=layers, num_blocks=blocks, page_tokens=page_tokens, max_step_rows=rows,
            engine="SGLang", **{**given, **options},
        )  # fmt: skip
        whole = layers[-1] + 1 - layers[0] == len(layers)
        self._columns = slice(layers[0], layers[-1] + 1) if whole else layers

    def destroy(self) -> None:
        """With SGLang's own."""
        self.close()

    @ends
    def launched(self) -> Launch | None:
        """A forward is launched."""
        serving = module("sglang.srt.runtime_context").get_serving()
        return self.launch(str(serving.weight_version))

    @ends
    def finalized(self, forward: Forward) -> None:
        """A forward's copies are on the host."""
        if forward.launch is not None:
            ids = forward.ids.cpu().numpy()[:, self._columns]
            self.land(forward.launch, forward.slots.cpu().numpy(), ids)

    def __setitem__(self, slots: Any, ids: Any) -> None:
        """Without overlap SGLang has copied already."""
        Forward(slots, ids, self).finalize()

    @guarded
    def taken(self, slots: Any) -> Taken | None:
        """The rows of a sequence in these slots, which may be on the device."""
        return self.take(slots.cpu().numpy().astype(np.int64))

    def answer(self, begin: int, count: int, taken: Taken | None) -> tuple[Any, dict[str, Any]]:
        """Rows [begin, begin + count) of a sequence as SGLang returns them, int32 [count, layers of
        the model, K], missing ones -1, and what `meta_info["waymark"]` says of them."""
        ids = np.full((count, self.num_layers, self.topk_size), -1, np.int32)
        missing, weights = self.read(begin, ids, self._columns, taken)
        by = f"waymark {waymark_version}"
        return ids, {"by": by, "rows": count, "missing": missing, "weights": weights}
