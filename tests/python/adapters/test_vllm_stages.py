"""Links of the pipeline stages of vLLM's workers: whole rows, nothing unpickled, no wait without an end."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waymark
from waymark.vllm._stages import Stages


class Pipeline:
    """vLLM's group of the stages, on threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: Any = None
        self.ready = threading.Event()

    def rank(self, rank: int, before: Callable[[Any], Any] = lambda given: given) -> Any:
        pipeline = self

        class Rank:
            world_size, rank_in_group = pipeline.size, rank

            def broadcast_object(self, given: Any = None, src: int = 0) -> Any:
                assert src == pipeline.size - 1
                if given is None:
                    assert pipeline.ready.wait(10)
                    return before(pipeline.given)
                pipeline.given = given
                pipeline.ready.set()
                return given

        return Rank()


def rows(layer: int, first: int = 0) -> waymark.Rows:
    shape = waymark.Shape(1, 1, 128, 4, 0, 0, (layer,))
    infos = np.zeros(2, waymark.row_info_dtype)
    infos["step"], infos["version"] = 1, 3
    infos["provenance"][1] = waymark.Provenance.KEPT
    return waymark.Rows(shape, first, np.full((2, 1, 1), layer, np.uint8), infos)


def start(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_rows_of_all_stages_are_joined() -> None:
    pipeline = Pipeline(3)

    def stage(rank: int, *parts: waymark.Rows | None) -> None:
        link = Stages(pipeline.rank(rank), 10)
        assert not link.returns
        for tag, part in enumerate(parts, 1):
            link.joined(tag, part)

    threads = [
        start(lambda: stage(0, rows(0), None, rows(0), rows(0))),
        start(lambda: stage(1, rows(1), rows(1), rows(1), rows(1))),
    ]
    link = Stages(pipeline.rank(2), 10)
    assert link.returns
    one = link.joined(1, rows(2))
    assert one is not None and one.layer_ids == (0, 1, 2) and (one.ids[:, :, 0] == [0, 1, 2]).all()
    assert one.coverage() == rows(0).coverage()
    assert link.joined(2, rows(2)) is None  # the first stage has none
    assert link.joined(3, None) is None
    four = link.joined(4, rows(2))
    assert four is not None and len(four) == 2
    for thread in threads:
        thread.join()


def test_a_stage_alone_needs_no_links() -> None:
    link = Stages(Pipeline(1).rank(0), 10)
    assert link.returns and link.joined(1, None) is None
    one = rows(0)
    assert link.joined(2, one) is one


def test_a_stage_that_never_starts_is_named() -> None:
    pipeline = Pipeline(4)
    thread = start(lambda: Stages(pipeline.rank(1), 10))
    with pytest.raises(TimeoutError, match=r"did not connect to the last one in 0\.5 s: 0, 2$"):
        Stages(pipeline.rank(3), 10, start_seconds=0.5)
    thread.join()


def test_a_last_stage_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    pipeline = Pipeline(2)
    pipeline.given = address, bytes(16)
    pipeline.ready.set()
    with pytest.raises(TimeoutError, match=f"stage 0 cannot reach .* 127.0.0.1:{address[1]}"):
        Stages(pipeline.rank(0), 10, start_seconds=0.5)


def test_who_does_not_know_the_key_is_no_stage() -> None:
    pipeline = Pipeline(2)
    bomb = pickle.dumps(rows(0))

    def strangers(given: Any) -> Any:
        address, key = given
        for hello in (b"", bytes(16) + struct.pack("<I", 0), key + struct.pack("<I", 7), bomb):
            with socket.create_connection(address, 10) as stranger:
                with contextlib.suppress(OSError):  # the last stage closes it as soon as it knows
                    stranger.sendall(hello)
                    stranger.shutdown(socket.SHUT_WR)
                    assert stranger.recv(1) == b""
        return given

    thread = start(lambda: Stages(pipeline.rank(0, strangers), 10).joined(1, rows(0)))
    link = Stages(pipeline.rank(1), 10, start_seconds=10)
    thread.join()
    one = link.joined(1, rows(1))
    assert one is not None and one.layer_ids == (0, 1)


def test_bytes_that_are_no_rows_are_refused() -> None:
    pipeline = Pipeline(2)
    good = rows(0).to_bytes()
    damaged = good[:40] + bytes([good[40] ^ 255]) + good[41:]
    sent = (pickle.dumps(rows(0)), damaged, good)

    def first() -> None:
        link = Stages(pipeline.rank(0), 10)
        assert link._last is not None
        for tag, document in enumerate(sent, 1):
            link._last.send_bytes(struct.pack("<Q", tag) + document)
        link.joined(5, rows(0))

    thread = start(first)
    link = Stages(pipeline.rank(1), 0.5)
    for tag in (1, 2):
        with pytest.raises(waymark.WaymarkError):
            link.joined(tag, rows(1))
    assert link.joined(3, rows(1)) is not None  # the next is right
    with pytest.raises(TimeoutError, match="no rows in time"):
        link.joined(4, rows(1))  # the stage sent a later one,
    assert link.joined(5, rows(1)) is not None  # which is not lost
    thread.join()


def test_a_stage_that_is_gone_is_waited_for_once() -> None:
    pipeline = Pipeline(2)
    stages: list[Stages] = []
    thread = start(lambda: stages.append(Stages(pipeline.rank(0), 10)))
    last = Stages(pipeline.rank(1), 1.0)
    thread.join()
    began = time.monotonic()
    for tag in range(1, 21):
        with pytest.raises(TimeoutError, match="no rows in time"):
            last.joined(tag, rows(1))
    assert 1.0 <= time.monotonic() - began < 10  # 20, if every tag waited
    for tag in (20, 21, 22):  # it was slow: its rows are taken again
        stages[0].joined(tag, rows(0))
    assert last.joined(21, rows(1)) is not None
    assert last.joined(22, rows(1)) is not None
