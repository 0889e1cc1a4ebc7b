"""The expert ids of a forward, from the RouterReplay of the decoder's routers."""

from __future__ import annotations

from typing import Any

from . import _versions
from ._hooks import module


class Ids:
    """Of one model. The engine's thread."""

    def __init__(self, context: Any, layers: list[_versions.MoELayer]) -> None:
        self._metadata = context.moe_routing_metadata
        self.layers = layers
        self._replays = [layer.replay for layer in layers]
        self._blank = False  # the static buffer had no ids when the forward began

    def begin(self) -> None:
        """A forward that records into the static buffer begins. What a router does not record is
        then -1, and not an older forward's, nor what was in memory that Megatron does not
        initialise. Steps run in inference mode, and a buffer made there is written in it only:
        Megatron captures CUDA graphs outside."""
        buffer = self._metadata.routing_indices_buffer
        if buffer is not None:
            with module("torch").inference_mode():
                buffer[: self._metadata.context.padded_active_token_count].fill_(-1)
            self._blank = True

    def get_routing_indices(self) -> Any:
        """In place of RoutingMetadata's, which takes all routers of the process, in the order in
        which they were made: the tensor [rows, layers, K] of the last forward, of the layers that
        are captured, in their order. None: a router recorded nothing, or into a buffer with older
        ids."""
        context = self._metadata.context
        if context.using_cuda_graph_this_step():
            if not self._blank:
                return None
            buffer = self._metadata.routing_indices_buffer
            rows = buffer[: context.active_token_count]
            places = {id(replay): place for place, replay in enumerate(_versions.all_replays())}
            columns = [places[id(replay)] for replay in self._replays]
            return rows if columns == list(range(buffer.shape[1])) else rows[:, columns]
        recorded = [replay.get_recorded_indices() for replay in self._replays]
        if any(ids is None for ids in recorded):
            return None
        return module("torch").stack(recorded, dim=1)

    def forget(self) -> None:
        """What was recorded has been read, or is no step's: a router that records nothing in the
        next forward is then noticed."""
        self._blank = False
        for replay in self._replays:
            replay.recorded_topk_idx = None
