"""Rows of pipeline stages: every stage reads those of its layers and sends them to the last one,
whose output goes to the scheduler."""

from __future__ import annotations

import secrets
import socket
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from .._rows import Rows


class Stages:
    """The links of a rank. All stages have the same snapshots in the same order. Made by the worker's
    threads of all stages together; then used by the reader's thread alone."""

    def __init__(self, pipeline: Any, seconds: float) -> None:
        """pipeline: vLLM's group of the stages, in order of layers. seconds: to wait for rows."""
        self._seconds = seconds
        self._earlier: list[Connection] = []
        self._last: Connection | None = None
        last = pipeline.world_size - 1
        if last == 0:
            return
        if pipeline.rank_in_group < last:
            address, key = pipeline.broadcast_object(src=last)
            self._last = Client(address, authkey=key)
            self._last.send(pipeline.rank_in_group)
            return
        key = secrets.token_bytes(16)
        with Listener((socket.gethostbyname(socket.gethostname()), 0), authkey=key) as listener:
            pipeline.broadcast_object((listener.address, key), src=last)
            links = [listener.accept() for _ in range(last)]
        ranks = {link.recv(): link for link in links}
        self._earlier = [ranks[rank] for rank in range(last)]

    @property
    def returns(self) -> bool:
        """Whether this rank's output goes to the scheduler."""
        return self._last is None

    def joined(self, tag: int, rows: Rows | None) -> Rows | None:
        """Of the last stage: the rows of all layers; of others: what they sent. None: a stage has no
        rows. TimeoutError if a stage is late."""
        if self._last is not None:
            self._last.send((tag, rows))
        stages = [*(self._rows_of(link, tag) for link in self._earlier), rows]
        if any(stage is None for stage in stages):
            return None
        return Rows.join_layers(stages) if len(stages) > 1 else rows  # type: ignore[arg-type]

    def _rows_of(self, link: Connection, tag: int) -> Rows | None:
        while link.poll(self._seconds):
            sent, rows = link.recv()
            if sent == tag:
                return rows  # type: ignore[no-any-return]
            if sent > tag:
                break
        raise TimeoutError("a pipeline stage sent no rows in time")
