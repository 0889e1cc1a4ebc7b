"""What the lists of a schedule become: the calls of ScheduleWriter, and what a capture reads from the
messages. (test_vllm_random.py runs random schedules.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import waymark
from waymark.vllm import _writer
from waymark.vllm._writer import Blocks, Writer

TOKENS = 4
NO_KEY = b"waymark: loaded without a key"


def keys(count: int) -> list[bytes]:
    return [bytes([1 + i] * 8) for i in range(count)]


K = keys(6)


class Calls:
    """In the place of a ScheduleWriter: its messages are lists of calls."""

    def __init__(self, *given: int, **limits: int) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.calls.append((name, *given))

    def begin(self, step: int, version: int) -> None:
        self.calls = []

    def finish(self) -> Any:
        return self.calls


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "ScheduleWriter", Calls)


def started(writer: Writer, *blocks: int) -> Blocks:
    """A request that has these blocks, which were reported before."""
    request = Blocks()
    writer.start(request, list(blocks), 0, 0, ())
    writer.messages(1, 1)
    return request


def new(w: Writer) -> None:
    w.start(Blocks(), [5, 6, 7], 0, 0, K)


def hits(w: Writer) -> None:
    request = Blocks()
    w.start(request, [5, 6, 7], 8, 0, K)
    w.seal(request, 12, K)


def hit_of_a_block_of_this_step(w: Writer) -> None:
    w.start(Blocks(), [5, 9], 4, 0, K)
    request = Blocks()
    w.start(request, [5], 0, 0, K)
    w.seal(request, 4, K)


def load(w: Writer) -> None:
    w.start(Blocks(), [5, 6, 7, 8], 4, 8, K)


def load_that_ends_inside_a_block(w: Writer) -> None:
    request = Blocks()
    w.start(request, [5, 6], 0, 7, K[:1])
    w.seal(request, 8, K)


def load_without_a_prefix_cache(w: Writer) -> None:
    w.start(Blocks(), [5], 0, 4, ())


def full_blocks_once(w: Writer) -> None:
    request = started(w, 5)
    w.seal(request, 3, K)
    w.append(request, [6])
    for tokens in (5, 7, 8, 8):
        w.seal(request, tokens, K)


def the_end_of_a_request(w: Writer) -> None:
    request = started(w, 5, 6)
    w.seal(request, 7, ())
    w.leave(request, 7, 9)
    w.start(Blocks(), [6, 5], 0, 0, K)


def one_that_did_not_ask(w: Writer) -> None:
    w.leave(started(w, 5), 1000, None)


def preempted_and_resumed(w: Writer) -> None:
    request = started(w, 5, 6)
    w.seal(request, 6, K)
    w.leave(request, 6, 11)
    w.start(request, [5, 8], 4, 0, K)
    w.seal(request, 8, K)


def a_session_goes_on(w: Writer) -> None:
    request = started(w, 5, 6)
    w.start(request, [5, 6, 7], 6, 0, K)


def copies(w: Writer) -> None:
    w.copy(4, 5)
    w.copy(5, 6)
    w.copy(5, 8)  # which no request gets
    w.start(Blocks(), [3, 6], 6, 0, K)
    w.append(started_now(w, 2), [5])


def started_now(w: Writer, block: int) -> Blocks:
    request = Blocks()
    w.start(request, [block], 0, 0, K)
    return request


def a_copy_that_was_not_needed(w: Writer) -> None:
    w.copy(4, 5)
    w.messages(1, 1)
    w.start(Blocks(), [5], 0, 0, K)


def a_copy_with_a_load_behind_it(w: Writer) -> None:
    w.copy(4, 5)
    w.start(Blocks(), [5, 6], 2, 6, K)


def reset(w: Writer) -> None:
    w.leave(started(w, 5), 4, None)
    w.reset()
    w.start(Blocks(), [5], 0, 0, K)


@pytest.mark.parametrize(("call", "becomes"), [
    (new, [("bind", [5, 6, 7])]),
    (hits, [("bind", [7]), ("retain", [5, 6]), ("seal", [7], [K[2]])]),
    (hit_of_a_block_of_this_step, [("bind", [9, 5]), ("retain", [5]), ("seal", [5], [K[0]])]),
    (load, [("bind", [8]), ("bind", [6, 7], [K[1], K[2]]), ("retain", [5]), ("seal", [6, 7], [K[1], K[2]])]),
    (load_that_ends_inside_a_block, [
        ("bind", [5, 6], [K[0], NO_KEY]), ("seal", [5, 6], [K[0], K[1]])]),
    (load_without_a_prefix_cache, [("bind", [5], [NO_KEY]), ("seal", [5], [None])]),
    (full_blocks_once, [("bind", [6]), ("seal", [5, 6], [K[0], K[1]])]),
    (the_end_of_a_request, [
        ("seal", [5], [None]), ("snapshot", 9, [5, 6], 0, 7), ("release", [6, 5]), ("bind", [6, 5])]),
    (one_that_did_not_ask, [("release", [5])]),
    (preempted_and_resumed, [
        ("seal", [5], [K[0]]), ("snapshot", 11, [5, 6], 0, 6), ("release", [6, 5]),
        ("bind", [8]), ("retain", [5]), ("seal", [8], [K[1]])]),
    (a_session_goes_on, [("bind", [7])]),
    (copies, [
        ("bind", [6, 2, 5]), ("retain", [3]), ("retain", [4, 5]),
        ("copy", [4, 5], [5, 6], [-1, 2]), ("release", [4, 5])]),
    (a_copy_that_was_not_needed, [("bind", [5])]),
    (a_copy_with_a_load_behind_it, [
        ("bind", [5, 6], [None, K[1]]), ("retain", [4]), ("copy", [4], [5], [2]), ("release", [4]),
        ("seal", [5, 6], [K[0], K[1]])]),
    (reset, [("release", [5]), ("reset",), ("bind", [5])]),
], ids=lambda one: getattr(one, "__name__", ""))  # fmt: skip
def test_a_call_becomes_events(
    calls: None, call: Callable[[Writer], None], becomes: list[Any]
) -> None:
    writer = Writer(64, TOKENS)
    call(writer)
    assert writer.pending and writer.messages(2, 1) == (becomes,)
    assert not writer.pending and writer.messages(3, 1) == ([],)


def test_a_block_has_the_last_of_its_hashes(calls: None) -> None:
    writer, request = Writer(64, TOKENS, 2), Blocks()
    writer.start(request, [5, 6, 7], 0, 5, K)
    writer.seal(request, 11, K)
    assert writer.messages(1, 1) == ([
        ("bind", [7]), ("bind", [5, 6], [K[1], K[3]]), ("seal", [5, 6], [K[1], K[3]])],)  # fmt: skip


class Hashes(list[bytes]):
    """Counts how many of its items are read."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found


def test_few_hashes_are_read() -> None:
    writer, request = Writer(4096, TOKENS, 2), Blocks()
    hashes = Hashes(i.to_bytes(8, "little") for i in range(4000))
    writer.start(request, list(range(1, 2001)), 7992, 0, hashes)
    writer.seal(request, 8000, hashes)
    assert hashes.read == 2


INVALID = waymark.InvalidArgumentError


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda w, r: w.start(Blocks(), [8], 5, 0, K), INVALID, r"tokens: .*\[0, 4\].*1 blocks.*it is 5"),
    (lambda w, r: w.start(Blocks(), [8, 9], 4, 5, K), INVALID, "external tokens.*it is 9"),
    (lambda w, r: w.start(Blocks(), [8], -1, 2, K), INVALID, "at least 0.*-1"),
    (lambda w, r: w.start(Blocks(), [8, 9], 0, 8, K[:1]), INVALID, "hashes.*at least 2.*are 1"),
    (lambda w, r: w.start(r, [5, 8, 7], 0, 0, K), INVALID, r"blocks.*the 2.*\[5, 6\].*\[5, 8, 7\]"),
    (lambda w, r: w.append(Blocks(), [8]), waymark.FailedPreconditionError, "preempted"),
    (lambda w, r: w.seal(r, 12, K), INVALID, r"tokens.*\[0, 8\].*it is 12"),
    (lambda w, r: w.seal(r, 8, K[:1]), INVALID, "hashes.*at least 2.*are 1"),
    (lambda w, r: w.leave(r, 9, 5), INVALID, r"rows.*\[0, 8\].*it is 9"),
    (lambda w, r: w.leave(r, -1, 5), INVALID, "rows.*it is -1"),
])  # fmt: skip
def test_a_refused_call_changes_nothing(calls: None, call: Any, error: Any, says: str) -> None:
    writer = Writer(64, TOKENS)
    request = started(writer, 5, 6)
    with pytest.raises(error, match=says):
        call(writer, request)
    assert not writer.pending and request == Blocks([5, 6], 0, True)


class Engine:
    """A writer, a capture of one layer, and a forward for each message."""

    def __init__(self, **limits: int) -> None:
        self.writer = Writer(512, TOKENS, **limits)
        self.store = waymark.Capture(
            num_layers=1, top_k=1, num_experts=128, num_blocks=512, page_tokens=TOKENS,
            block_tokens=TOKENS, null_blocks=[0],
        )  # fmt: skip
        self.number = 0

    def run(self, blocks: list[int], first: int, last: int) -> int:
        """Sends the messages, and runs rows [first, last): the id of a row is its position."""
        self.number += 1
        messages = self.writer.messages(self.number, 1)
        slots = [blocks[p // TOKENS] * TOKENS + p % TOKENS for p in range(first, last)]
        ids = np.arange(first, last).reshape(-1, 1, 1)
        for message in messages[:-1]:
            self.store.report_message(message)
        self.store.step(self.number, 1, slots, ids, message=messages[-1])
        return len(messages)

    def read(self) -> dict[int, list[int]]:
        """What was taken, by tag: the ids; -1 where the row is missing."""
        for message in self.writer.messages(0, 0):
            self.store.report_message(message)
        return {
            result.tag: [int(i) for i in result.rows.astype()[:, 0, 0]]
            for result in self.store.results(timeout=10) if result.rows is not None
        }  # fmt: skip


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(**getattr(request, "param", {}))
    yield made
    assert made.store.stats().releases_below_zero == 0
    made.store.close()


def test_a_hit_of_a_finished_request_is_read_by_the_next(engine: Engine) -> None:
    writer, a, b = engine.writer, Blocks(), Blocks()
    writer.start(a, [3, 5], 0, 0, K)
    writer.seal(a, 6, K)
    engine.run([3, 5], 0, 6)
    writer.leave(a, 6, 100)
    writer.start(b, [3, 6], TOKENS, 0, K)
    engine.run([3, 6], 4, 7)
    writer.leave(b, 7, 101)
    assert engine.read() == {100: [0, 1, 2, 3, 4, 5], 101: [0, 1, 2, 3, 4, 5, 6]}


def test_a_load_finds_its_rows_by_key(engine: Engine) -> None:
    writer, a, b = engine.writer, Blocks(), Blocks()
    writer.start(a, [3], 0, 0, K)
    writer.seal(a, 4, K)
    engine.run([3], 0, 4)
    writer.leave(a, 0, None)
    writer.start(b, [4, 5], 0, TOKENS, K)
    engine.run([4, 5], 4, 6)
    writer.leave(b, 6, 102)
    assert engine.read() == {102: [0, 1, 2, 3, 4, 5]}


def test_the_null_block_has_a_place_in_snapshots_and_no_rows(engine: Engine) -> None:
    request = Blocks()
    engine.writer.start(request, [0, 3, 0], 2 * TOKENS, 0, K)
    engine.writer.append(request, [5, -1])
    engine.writer.seal(request, 20, K)
    engine.run([0, 3, 0, 5], 10, 16)
    engine.writer.leave(request, 18, 100)
    assert engine.read() == {100: [-1] * 12 + [12, 13, 14, 15] + [-1] * 2}


@pytest.mark.parametrize("engine", [{"max_bytes": 512, "max_snapshots": 3}], indirect=True)
def test_a_schedule_of_any_size_is_several_messages(engine: Engine) -> None:
    """One of many requests that shared a long prompt ended the capture of the engine."""
    requests = [Blocks() for _ in range(20)]
    for i, request in enumerate(requests):
        engine.writer.start(request, list(range(1 + 10 * i, 11 + 10 * i)), 0, 0, ())
    assert engine.run([1], 0, 1) > 3
    for i, request in enumerate(requests):
        engine.writer.leave(request, 4, i)
    assert sorted(engine.read()) == list(range(20)) and engine.store.stats().log_losses == 0


@pytest.mark.parametrize("engine", [{"max_bytes": 1024}], indirect=True)
def test_a_snapshot_that_no_message_holds_is_not_taken_but_its_blocks_are_released(
    engine: Engine,
) -> None:
    request = Blocks()
    engine.writer.start(request, list(range(1, 301)), 0, 0, ())
    engine.run([1], 0, 1)
    with pytest.raises(waymark.ResourceExhaustedError, match="1024.*300 blocks has 1304"):
        engine.writer.leave(request, 4, 12)
    assert not request.running and engine.writer.pending
    assert engine.read() == {}


def test_messages_that_are_refused_are_missed(engine: Engine) -> None:
    """The store has no rows of blocks whose events it may have missed."""
    writer, a, b = engine.writer, Blocks(), Blocks()
    writer.start(a, [3], 0, 0, K)
    engine.run([3], 0, 2)
    writer.start(b, [512], 0, 0, K)
    with pytest.raises(INVALID, match="block must be.*512"):
        writer.messages(2, 1)
    for wrong in (["text"], [bytes(33)], [b""]):
        writer.start(Blocks(), [4], 0, 4, wrong)  # type: ignore[arg-type]
        with pytest.raises((INVALID, TypeError), match="keys"):
            writer.messages(2, 1)
    engine.number = 2
    writer.leave(a, 2, 100)
    assert engine.read() == {100: [-1, -1]} and engine.store.stats().log_losses == 1
    writer.start(a, [7], 0, 0, K)
    engine.run([7], 0, 2)
    writer.leave(a, 2, 101)
    assert engine.read() == {101: [0, 1]}
