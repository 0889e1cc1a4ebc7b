"""MegatronAdapter: the hooks and the steps of an engine like Megatron."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import waymark
from test_arrays import Tensor
from waymark import (
    CaptureSession,
    FailedPreconditionError,
    InvalidArgumentError,
    Reason,
    Store,
)
from waymark._core import MegatronAdapter

BLOCK, LAYERS, K, DUMMY = 4, 2, 2, 15


class Engine:
    """The ids of layer l of token t are t + 50 l and the next one."""

    def __init__(self, **options: Any) -> None:
        self.store = Store(
            num_layers=LAYERS, top_k=K, num_experts=256, num_blocks=16, block_tokens=BLOCK,
            page_tokens=BLOCK, null_blocks=[DUMMY], audit=False, **options,
        )  # fmt: skip
        self.session = CaptureSession(self.store, max_rows=32)
        self.adapter = MegatronAdapter(self.session, DUMMY)
        self.blocks = np.full(32, -1, np.int64)
        self.positions = np.zeros(32, np.int32)
        self.adapter.lend_tokens(self.blocks, self.positions)
        self.number = 0

    def set_tokens(self, blocks: list[int], first: int, last: int) -> int:
        at = np.arange(first, last)
        self.blocks[: len(at)] = np.array(blocks)[at // BLOCK]
        self.positions[: len(at)] = at % BLOCK
        return len(at)

    def step(self, blocks: list[int], first: int, last: int, tokens: int, version: int = 1) -> bool:
        """Tokens `tokens`, ... at positions [first, last) of a sequence in `blocks`."""
        rows = self.set_tokens(blocks, first, last)
        self.number += 1
        return self.adapter.step(self.number, version, rows, ids_of(tokens, rows))

    def routing(self, request: int) -> Any:
        rows = []
        for snapshot in self.adapter.take(request):
            assert type(snapshot) is waymark.Snapshot
            with snapshot:
                snapshot.wait(10)
                rows.append(snapshot.rows())
        return waymark.join(*rows)

    def read(self, blocks: list[int], rows: int) -> Any:
        with self.store.snapshot(blocks, 0, rows) as snapshot:
            snapshot.wait(10)
            return snapshot.rows()


def ids_of(tokens: int, rows: int) -> Any:
    token = tokens + np.arange(rows)[:, None, None]
    return (token + 50 * np.arange(LAYERS)[:, None] + np.arange(K)).astype(np.int16)


def test_a_block_that_is_taken_again_in_the_same_step() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    assert engine.step([5], 0, 3, 10)
    engine.adapter.checkpoint(7, np.array([5, -1, -1], np.int32), 3)
    engine.adapter.release([5])
    engine.adapter.allocate([5])
    engine.step([5], 0, 3, 90)
    rows = engine.routing(7)
    assert rows.valid.all()
    assert (rows.ids == ids_of(10, 3)).all()
    assert (engine.read([5], 3).ids == ids_of(90, 3)).all()
    assert engine.adapter.take(7) == []


def test_rows_before_an_eviction_stay_what_they_were() -> None:
    engine = Engine()
    engine.adapter.allocate([5, 6])
    engine.step([5, 6], 0, 6, 10)
    engine.adapter.checkpoint(7, [5, 6], 6)
    engine.adapter.release([5, 6])
    engine.adapter.allocate([8, 9])
    engine.step([8, 9], 0, 8, 90)
    engine.adapter.checkpoint(7, [8, 9], 8)
    engine.adapter.release([8, 9])
    rows = engine.routing(7)
    assert rows.valid.all()
    assert (rows.ids == np.concatenate([ids_of(10, 6), ids_of(96, 2)])).all()


def test_a_prefix_hit_shares_rows_and_a_recompute_does_not_change_them() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.adapter.register([5], [-(1 << 62)])
    engine.step([5], 0, 4, 10)
    engine.adapter.match([5])
    engine.adapter.allocate([6])
    engine.step([5, 6], 2, 6, 90)  # a fully cached block is computed again
    rows = engine.read([5, 6], 6)
    assert (rows.ids == np.concatenate([ids_of(10, 4), ids_of(92, 2)])).all()
    engine.adapter.release([5, 5, 6])
    engine.store.wait_idle(10)
    assert engine.store.stats().releases_below_zero == 0
    engine.adapter.release(5)
    engine.store.wait_idle(10)
    assert engine.store.stats().releases_below_zero == 1


def test_rows_of_the_dummy_block_are_padding() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.blocks[:4] = [5, DUMMY, 5, -1]
    engine.positions[:4] = [0, 1, 1, 99]
    assert engine.adapter.step(1, 1, 4, ids_of(10, 4))
    rows = engine.read([5], 2)
    assert (rows.ids == ids_of(10, 4)[[0, 2]]).all()
    assert engine.read([DUMMY], 2).valid.sum() == 0


def test_lost_ids_are_missing_for_capacity() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.set_tokens([5], 0, 2)
    assert not engine.adapter.step(1, 1, 2, None)
    engine.number = 1
    engine.step([5], 2, 3, 10)
    assert list(engine.read([5], 3).reasons) == [Reason.CAPACITY, Reason.CAPACITY, 0]


def test_the_view_of_the_session() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.set_tokens([5], 0, 3)
    assert engine.adapter.begin_step(1, 1, 3, padded_tokens=8)
    view = np.asarray(engine.session.view(1))
    view[:, :8] = -7  # rows of the padding of a graph
    view[:, :3] = ids_of(10, 3).transpose(1, 0, 2)
    engine.session.submit(1)
    assert (engine.read([5], 3).ids == ids_of(10, 3)).all()


def test_reset_and_forget() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.step([5], 0, 3, 10)
    engine.adapter.checkpoint(7, [5], 3)
    engine.adapter.checkpoint(8, [5], 3)
    engine.adapter.reset()
    assert not engine.read([5], 3).valid.any()
    engine.adapter.forget(7)
    assert engine.adapter.take(7) == []
    assert engine.routing(8).valid.all()


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_tensors_without_torch(kind: Any) -> None:
    engine = Engine()
    tensor = Tensor(np.array([5, 6], kind))
    engine.adapter.allocate(tensor)
    engine.adapter.register(tensor, Tensor(np.array([1, 2], np.int64)))
    engine.adapter.lend_tokens(Tensor(engine.blocks), Tensor(engine.positions))
    rows = engine.set_tokens([5, 6], 0, 6)
    engine.adapter.step(1, 1, rows, Tensor(ids_of(10, rows)))
    engine.adapter.checkpoint(7, tensor, 6)
    engine.adapter.release(tensor)
    assert (engine.routing(7).ids == ids_of(10, 6)).all()


def test_arrays_that_are_lent_again() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    blocks, positions = np.full(3, 5), np.array([0, 1, 2], np.int32)
    engine.adapter.lend_tokens(blocks, positions)
    assert engine.adapter.step(1, 1, 3, ids_of(10, 3))
    with pytest.raises(InvalidArgumentError, match=r"active_tokens: in \[0, 3\].* got 4"):
        engine.adapter.step(2, 1, 4, ids_of(10, 4))
    assert (engine.read([5], 3).ids == ids_of(10, 3)).all()


def test_what_is_refused_changes_nothing() -> None:
    engine = Engine()
    a = engine.adapter
    a.allocate([5])
    with pytest.raises(InvalidArgumentError, match="null_blocks; it is 3"):
        MegatronAdapter(engine.session, 3)
    for call in (a.allocate, a.match, a.release):
        with pytest.raises(InvalidArgumentError, match=r"blocks\[1\].*16"):
            call([5, 16])
        with pytest.raises(TypeError, match="blocks"):
            call("5")
    with pytest.raises(InvalidArgumentError, match="hashes: as many as blocks, got 1 of 2"):
        a.register([5, 6], [1])
    with pytest.raises(InvalidArgumentError, match="token_to_block_idx: int64"):
        a.lend_tokens(engine.blocks.astype(np.int32), engine.positions)
    with pytest.raises(InvalidArgumentError, match="kv_block: int32"):
        a.lend_tokens(engine.blocks, engine.positions[::2])
    with pytest.raises(InvalidArgumentError, match="kv_block: as long as .* got 31 of 32"):
        a.lend_tokens(engine.blocks, engine.positions[1:])
    engine.set_tokens([5], 0, 2)
    for ids in (ids_of(0, 2)[0], ids_of(0, 2).astype(np.float32), "ids"):
        with pytest.raises((InvalidArgumentError, TypeError), match="ids"):
            a.step(1, 1, 2, ids)
    with pytest.raises(InvalidArgumentError, match="rows|blocks|last"):
        a.checkpoint(7, [5], 5)
    assert a.take(7) == []
    engine.store.wait_idle(10)
    stats = engine.store.stats()
    assert (stats.events, stats.steps_begun) == (1, 0)


def test_ids_that_cannot_be_submitted_drop_their_step() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.set_tokens([5], 0, 2)
    with pytest.raises(InvalidArgumentError, match="layers"):
        engine.adapter.step(1, 1, 2, np.zeros((2, LAYERS + 1, K), np.int16))
    engine.number = 1
    assert engine.step([5], 0, 2, 10)
    assert (engine.read([5], 2).ids == ids_of(10, 2)).all()
    assert engine.store.stats().steps_dropped == 1


def test_snapshots_are_read_on_any_thread() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.step([5], 0, 3, 10)
    engine.adapter.checkpoint(7, [5], 3)
    snapshots = engine.adapter.take(7)
    del engine.adapter
    read: list[Any] = []

    def reader() -> None:
        with snapshots[0] as snapshot:
            snapshot.wait(10)
            read.append(snapshot.rows())

    thread = threading.Thread(target=reader)
    thread.start()
    thread.join()
    assert (read[0].ids == ids_of(10, 3)).all()


def test_kept_snapshots_outlive_session_and_store() -> None:
    engine = Engine()
    engine.adapter.allocate([5])
    engine.step([5], 0, 3, 10)
    engine.adapter.checkpoint(7, [5], 3)
    adapter = engine.adapter
    engine.session.close()
    engine.store.close()
    del engine
    (snapshot,) = adapter.take(7)
    del adapter
    with snapshot:
        snapshot.wait(10)
        assert (snapshot.rows().ids == ids_of(10, 3)).all()


def test_a_closed_session_takes_no_adapter() -> None:
    engine = Engine()
    engine.session.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        MegatronAdapter(engine.session, DUMMY)
