"""What a context tells a store: its blocks' events and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._session import CaptureSession
from .._snapshot import Snapshot
from .._store import Store


class Events:
    """Of one context. The engine's thread. Blocks: an integer tensor on the host."""

    def __init__(self, context: Any, store: Store, session: CaptureSession) -> None:
        self._context = context
        self._block_tokens = context.block_size_tokens
        self._store = store
        self._session = session
        self.bind = store.bind
        self.retain = store.retain
        self.release = store.release
        self.reset = store.reset

    def seal(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """The next step fills the blocks, or a later chunk of the prompt did."""
        self._store.seal(blocks, np.asarray(hashes, np.int64))

    def step(self, step: int, version: int, ids: Any) -> bool:
        """The context's active tokens were forwarded, with `ids`, [rows, L, K]; None: without. False:
        the rows of this step are missing."""
        context, rows = self._context, self._context.active_token_count
        pairs = (
            context.token_to_block_idx[:rows].numpy(),
            context.token_to_local_position_within_kv_block[:rows].numpy(),
        )
        begun = self._session.begin_ids_step(
            step, version, pairs=pairs, block_tokens=self._block_tokens
        )
        if not begun:
            return False
        if ids is None:
            self._session.drop(step)
            return False
        return self._session.submit_ids(step, ids)

    def snapshot(self, blocks: Any, first: int, last: int) -> Snapshot:
        """Rows [first, last) of a request with these blocks."""
        return self._store.snapshot(blocks, first, last)
