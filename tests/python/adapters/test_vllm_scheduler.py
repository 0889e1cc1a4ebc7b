"""The scheduler of vLLM: what its calls become, read from the messages by a capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import waymark
from waymark.vllm import VllmScheduler

TOKENS = 4


def keys(count: int) -> list[bytes]:
    return [bytes([1 + i] * 32) for i in range(count)]


class Engine:
    """A scheduler, a capture of one layer, and a forward for each message."""

    def __init__(self, hash_block_tokens: int = 0) -> None:
        self.scheduler = VllmScheduler(16, TOKENS, hash_block_tokens)
        self.store = waymark.Capture(
            num_layers=1, top_k=1, num_experts=128, num_blocks=16, page_tokens=TOKENS,
            block_tokens=TOKENS, null_blocks=[0],
        )  # fmt: skip
        self.step = 0
        self.read: dict[int, waymark.Rows] = {}

    def begin(self) -> None:
        self.step += 1
        self.scheduler.begin(self.step, 1)

    def run(self, blocks: list[int], first: int, last: int) -> None:
        """Sends the message, and runs rows [first, last): the id of a row is its position."""
        slots = [blocks[p // TOKENS] * TOKENS + p % TOKENS for p in range(first, last)]
        ids = np.arange(first, last).reshape(-1, 1, 1)
        self.store.step(self.step, 1, slots, ids, message=self.scheduler.finish_message())

    def rows(self, tag: int) -> list[int]:
        """The ids of what a message took; -1 where the row is missing."""
        for result in self.store.results(timeout=10):
            assert result.rows is not None
            self.read[result.tag] = result.rows
        return [int(i) for i in self.read.pop(tag).astype()[:, 0, 0]]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.store.close()


def test_a_hit_of_a_finished_request_is_read_by_the_next(engine: Engine) -> None:
    a = engine.scheduler
    engine.begin()
    a.new(7, [3, 5], 0, 0, keys(2))
    a.append(7, [], 6, keys(2))
    engine.run([3, 5], 0, 6)
    a.finish(7, 6, 100)
    engine.begin()
    a.new(8, [3, 6], TOKENS, 0, keys(2))
    a.append(8, [], 7, keys(2))
    engine.run([3, 6], 4, 7)
    a.finish(8, 7, 101)
    a.begin(0, 0)
    engine.store.report_message(a.finish_message())
    assert engine.rows(100) == [0, 1, 2, 3, 4, 5]
    assert engine.rows(101) == [0, 1, 2, 3, 4, 5, 6]


def test_a_load_finds_its_rows_by_key(engine: Engine) -> None:
    a = engine.scheduler
    engine.begin()
    a.new(7, [3], 0, 0, keys(1))
    a.append(7, [], 4, keys(1))
    engine.run([3], 0, 4)
    a.finish(7, 0, None)
    engine.begin()
    a.new(8, [4, 5], 0, TOKENS, keys(1))
    engine.run([4, 5], 4, 6)
    a.finish(8, 6, 102)
    a.begin(0, 0)
    engine.store.report_message(a.finish_message())
    assert engine.rows(102) == [0, 1, 2, 3, 4, 5]


def test_preempt_copy_reset(engine: Engine) -> None:
    a = engine.scheduler
    engine.begin()
    a.new(7, [3], 0, 0, [])
    engine.run([3], 0, 4)
    a.preempt(7, 4, 100)
    a.copy(3, 5)
    engine.begin()
    a.resume(7, [5], 2, 0, [])
    engine.run([5], 3, 4)
    a.finish(7, 4, 101)
    a.reset()
    a.begin(0, 0)
    engine.store.report_message(a.finish_message())
    assert engine.rows(100) == [0, 1, 2, 3]
    assert engine.rows(101) == [0, 1, -1, 3]
    assert engine.read == {} and engine.store.pending_results == 0


class Hashes:
    """A sequence that counts how many of its items are read."""

    def __init__(self, items: list[bytes]) -> None:
        self.items, self.read = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> bytes:
        self.read += 1
        return self.items[i]


def test_few_hashes_are_read() -> None:
    a = VllmScheduler(4096, 4, 2)
    hashes: Any = Hashes([i.to_bytes(8, "little") for i in range(4000)])
    a.begin(1, 1)
    a.new(1, range(1, 2001), 7992, 0, hashes)
    assert hashes.read == 1
    a.append(1, [], 8000, hashes)
    assert hashes.read <= 1 + 4
    a.finish_message()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(waymark.InvalidArgumentError, match="hash_block_tokens.*divisor.*3"):
        VllmScheduler(16, 4, 3)
    with pytest.raises(waymark.InvalidArgumentError, match="num_blocks"):
        VllmScheduler(0, 4)
    a = VllmScheduler(16, 4, max_snapshots=1)
    with pytest.raises(waymark.FailedPreconditionError, match="Begin"):
        a.new(1, [3], 0, 0, [])
    a.begin(1, 1)
    with pytest.raises(waymark.InvalidArgumentError, match="blocks\\[1\\].*16"):
        a.new(1, [3, 16], 0, 0, [])
    with pytest.raises(waymark.InvalidArgumentError, match="local_tokens.*-1"):
        a.new(1, [3], -1, 0, [])
    with pytest.raises(waymark.InvalidArgumentError, match="external_tokens.*5"):
        a.new(1, [3], 0, 5, keys(1))
    with pytest.raises(waymark.InvalidArgumentError, match="external_tokens"):
        a.new(1, [3], 0, 2**62, keys(1))
    with pytest.raises(waymark.InvalidArgumentError, match="request.*it is 1"):
        a.append(1, [3], 0, [])
    a.new(1, [3, 4], 0, 0, [])
    with pytest.raises(waymark.InvalidArgumentError, match="full_tokens.*9"):
        a.append(1, [], 9, keys(2))
    with pytest.raises(waymark.InvalidArgumentError, match="hashes.*at least 2.*1"):
        a.append(1, [], 8, keys(1))
    for wrong in (["text"], [b""], [bytes(33)], [1]):
        with pytest.raises(waymark.InvalidArgumentError, match="hashes\\[0\\]"):
            a.append(1, [], 4, wrong)
    with pytest.raises(waymark.InvalidArgumentError, match="hashes\\[1\\]"):
        a.append(1, [], 8, [b"12", b"3"])
    with pytest.raises(TypeError):
        a.append(1, [], 4, None)
    with pytest.raises(TypeError, match="tag"):
        a.finish(1, 4, "tag")  # type: ignore[arg-type]
    with pytest.raises(waymark.InvalidArgumentError, match="tag"):
        a.finish(1, 4, -1)
    a.finish(1, 4, 2)
    with pytest.raises(waymark.InvalidArgumentError, match="it is 1"):
        a.finish(1, 4, 3)


def test_a_schedule_of_any_size_is_several_messages() -> None:
    """One of many requests that shared a long prompt ended the capture of the engine."""
    store = waymark.Capture(
        num_layers=1, top_k=1, num_experts=128, num_blocks=512, block_tokens=TOKENS,
        page_tokens=TOKENS, null_blocks=[0],
    )  # fmt: skip
    a = VllmScheduler(512, TOKENS, max_bytes=1024, max_snapshots=2)
    for step in (1, 2):
        a.begin(step, 1)
        for request in range(20):
            if step == 1:
                a.new(request, range(1 + 10 * request, 11 + 10 * request), 0, 0, [])
            else:
                a.append(request, [300 + request], 0, [])
        messages = [a.finish_message()]
        if step == 1:
            assert a.more
            with pytest.raises(waymark.FailedPreconditionError, match="FinishMessage"):
                a.begin(step + 1, 1)
        while a.more:
            messages.append(a.finish_message())
        assert max(map(len, messages)) <= 1024
        for message in messages:
            store.report_message(message)
    for request in range(20):
        a.finish(request, 4, request)
    a.begin(0, 0)
    store.report_message(a.finish_message())
    assert a.more
    while a.more:
        store.report_message(a.finish_message())
    assert [result.tag for result in store.results(timeout=10)] == list(range(20))
    assert store.stats().log_losses == 0 and store.stats().releases_below_zero == 0
    store.close()
