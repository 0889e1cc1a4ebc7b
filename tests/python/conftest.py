"""What several tests share. Random tests print their seed; --seed runs one again."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark

Ids = npt.NDArray[np.int16]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="of random tests")
    parser.addoption("--schedules", type=int, default=6, help="random schedules of late ids to run")
    parser.addoption("--engines", type=int, default=40, help="random engines to run")
    parser.addoption("--trees", type=int, default=100, help="random conversations to assemble")
    parser.addoption("--cycles", type=int, default=100_000, help="of the leak tests")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    chosen = random.SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"--seed={chosen}")
    return chosen


def stop(pid: int) -> None:
    """SIGSTOP, and waits until every thread has stopped: kill() returns before."""
    os.kill(pid, signal.SIGSTOP)

    def stopped() -> bool:
        threads = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
        return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)

    until(stopped)


def until(done: Callable[[], Any]) -> Any:
    """What `done` returns, once that is something."""
    deadline = time.monotonic() + 60
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


class LogRecords(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


LOG = LogRecords()
logging.getLogger("waymark").addHandler(LOG)
waymark._logging._MOST = 1 << 30


@pytest.fixture(autouse=True)
def _log_is_of_the_test() -> None:
    LOG.records.clear()


def logged(text: str) -> logging.LogRecord:
    """The line of the log that has `text`: it is written behind the end of a step, for which
    wait_idle and takes wait."""
    found: logging.LogRecord = until(
        lambda: next((line for line in LOG.records if text in line.getMessage()), None)
    )
    return found


def captures_on(caplog: pytest.LogCaptureFixture, make: Callable[[], Any]) -> list[str]:
    """The lines of the library's own that a capture is on which ``make`` causes."""
    caplog.set_level(logging.INFO, "waymark")
    kept = make()
    waymark.Capture(num_layers=1, top_k=1, num_experts=2, num_blocks=1, engine="the last")
    logged("the capture is on for the last")
    del kept
    lines = [line.getMessage() for line in LOG.records]
    return [line for line in lines if "the capture is on" in line][:-1]


def failed_put(ticket: waymark.Ticket) -> waymark.PutFailedError:
    """What the ticket of a publication raises whose source failed."""
    with pytest.raises(waymark.PutFailedError) as caught:
        ticket.wait(30)
    return caught.value


def refused(kind: Any, *cases: tuple[str, Callable[[], Any]]) -> None:
    """Each call raises an error of this kind, whose text matches."""
    for match, call in cases:
        with pytest.raises(kind, match=match):
            call()


def in_threads(count: int, call: Callable[[], Any]) -> list[Any]:
    """What so many threads get that make this call at once."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [future.result(60) for future in [pool.submit(call) for _ in range(count)]]


def output_of(code: str, *words: str, **environment: str) -> tuple[str, str]:
    """What a fresh interpreter that runs `code`, and ends well, prints: to stdout and to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def distinct_ids(
    rng: np.random.Generator, rows: int, num_layers: int, top_k: int, num_experts: int
) -> Ids:
    """int16 [rows, L, K]: distinct experts, as a router chooses them."""
    order = np.argsort(rng.random((rows, num_layers, num_experts)), axis=2)
    return order[:, :, :top_k].astype(np.int16)


class DictSource:
    """The least that a page source is."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.calls: list[str] = []
        self.timeouts: list[float] = []

    def get(self, digests: list[bytes], timeout: float) -> list[Any]:
        self.calls.append("get")
        self.timeouts.append(timeout)
        return [self.objects.get(digest) for digest in digests]

    def put(self, objects: list[tuple[bytes, bytes]], timeout: float) -> None:
        self.calls.append("put")
        self.timeouts.append(timeout)
        assert all(type(d) is bytes and len(d) == 16 and type(b) is bytes for d, b in objects)
        self.objects.update(objects)


class Events:
    """The events that event methods report: those in a flight of a small capture
    (docs/internals/flight.md), as an array."""

    def __init__(self) -> None:
        self._capture = waymark.Capture(
            num_layers=1, top_k=1, num_experts=2, num_blocks=1024,
            recorder=waymark.RecorderOptions(),
        )  # fmt: skip
        self._capture.schedule(1 << 40, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._capture, name)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def array(self) -> npt.NDArray[np.void]:
        self._capture.wait_idle(10)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "flight")
            self._capture.dump_flight(path)
            flight = path.read_bytes()
        events = []
        record = 8
        while record < len(flight):
            size, kind = struct.unpack_from("<IH", flight, record)
            at = record + 16
            record = at + size
            while kind == 10 and at < record:
                event, at = self._read(flight, at)
                events.append(event)
        return np.array(events, waymark.event_dtype)

    @staticmethod
    def _read(flight: bytes, at: int) -> tuple[Any, int]:
        event = np.zeros((), waymark.event_dtype)
        kind, detail = flight[at], flight[at + 1]
        event["type"], event["src"] = kind, -1
        at += 4
        fields = {1: "i", 2: "i", 3: "i", 4: "iQ", 5: "iii", 6: "ii", 7: "iiQ", 8: ""}[kind]
        names = {4: ["block", "step"], 5: ["block", "src", "rows"], 6: ["block", "src"],
                 7: ["block", "rows", "step"]}  # fmt: skip
        for name, value in zip(
            names.get(kind, ["block"]), struct.unpack_from("<" + fields, flight, at)
        ):
            event[name] = value
        at += struct.calcsize("<" + fields)
        if kind in (1, 4):
            event["key_size"] = detail
            event["key"][:detail] = np.frombuffer(flight, np.uint8, detail, at)
            at += detail
        if kind == 6:
            event["more"] = detail
        return event, at


class Rig:
    """A small capture, and whole steps on it."""

    def __init__(self, **options: Any) -> None:
        self.num_layers = options.setdefault("num_layers", 3)
        self.top_k = options.setdefault("top_k", 2)
        self.num_experts = options.setdefault("num_experts", 16)
        options.setdefault("num_blocks", 32)
        options.setdefault("page_tokens", 4)
        self.store = waymark.Capture(**options)
        self.rng = np.random.default_rng(7)

    def ids(self, rows: int) -> Ids:
        """[rows, L, K]."""
        return distinct_ids(self.rng, rows, self.num_layers, self.top_k, self.num_experts)

    def begin(
        self, slots: Any, bind: Any = None, version: int = 1, number: int | None = None, **more: Any
    ) -> waymark.Step:
        """Binds the blocks `bind`, then tells a step, whose ids come later."""
        if bind is not None:
            self.store.bind(bind)
        return self.store.step(number, version, slots, **more)

    def write(
        self, slots: Any, bind: Any = None, version: int = 1, ids: Any = None, **more: Any
    ) -> Ids:
        """A whole step; the ids that it wrote."""
        ids = self.ids(len(slots)) if ids is None else ids
        self.begin(slots, bind, version, ids=ids, **more)
        return ids

    def lose(self, slots: Any, bind: Any = None) -> None:
        """A step whose ids are lost."""
        self.begin(slots, bind).lost()

    def read(self, blocks: Any, tokens: int, first: int = 0) -> waymark.Rows:
        return self.store.take(blocks, tokens, first).result(20)

    def reasons(self, blocks: Any, tokens: int) -> list[waymark.Reason]:
        """Of each row, NONE for valid ones."""
        return [waymark.Reason(int(reason)) for reason in self.read(blocks, tokens).reasons]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def make_rig() -> Callable[..., Rig]:
    return Rig
