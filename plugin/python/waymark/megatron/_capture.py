"""The expert ids of a forward, from the RouterReplay of the decoder's routers."""

from __future__ import annotations

from typing import Any

from . import _versions
from ._hooks import module


class Capture:
    """Of one model. The engine's thread."""

    def __init__(self, context: Any, layers: list[_versions.MoELayer]) -> None:
        self._metadata = context.moe_routing_metadata
        self.layers = layers
        self._replays = [layer.replay for layer in layers]

    def get_routing_indices(self) -> Any:
        """In place of RoutingMetadata's, which takes all routers of the process, in the order in which
        they were made: the tensor [rows, layers, K] of the last forward, of the layers that are
        captured, in their order. None: a router recorded nothing."""
        context = self._metadata.context
        if context.using_cuda_graph_this_step():
            buffer = self._metadata.routing_indices_buffer
            if buffer is None:
                return None
            rows = buffer[: context.active_token_count]
            columns = self._columns()
            return rows if columns == list(range(buffer.shape[1])) else rows[:, columns]
        recorded = [replay.get_recorded_indices() for replay in self._replays]
        if any(ids is None for ids in recorded):
            return None
        return module("torch").stack(recorded, dim=1)

    def _columns(self) -> list[int]:
        places = {id(replay): place for place, replay in enumerate(_versions.all_replays())}
        return [places[id(replay)] for replay in self._replays]

    def forget(self) -> None:
        """What was recorded has been read: a router that records nothing in the next forward is then
        noticed."""
        context = self._metadata.context
        if context.using_cuda_graph_this_step():
            self._metadata.routing_indices_buffer[: context.padded_active_token_count].fill_(-1)
        for replay in self._replays:
            replay.recorded_topk_idx = None
