"""What several tests share. Random tests print their seed; --seed runs one again."""

from __future__ import annotations

import random
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
    parser.addoption("--engines", type=int, default=40, help="random engines to run")
    parser.addoption("--cycles", type=int, default=100_000, help="of the leak tests")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    chosen = random.SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"--seed={chosen}")
    return chosen


def distinct_ids(
    rng: np.random.Generator, num_layers: int, rows: int, top_k: int, num_experts: int
) -> Ids:
    """int16 [L, rows, K]: distinct experts, as a router chooses them."""
    order = np.argsort(rng.random((num_layers, rows, num_experts)), axis=2)
    return order[:, :, :top_k].astype(np.int16)


class Rig:
    """A small store and a session, and whole steps on them."""

    def __init__(self, **options: Any) -> None:
        session = {
            name: options.pop(name)
            for name in ("max_rows", "num_buffers", "num_ids_steps", "layers")
            if name in options
        }
        self.num_layers = options.setdefault("num_layers", 3)
        self.top_k = options.setdefault("top_k", 2)
        self.num_experts = options.setdefault("num_experts", 16)
        options.setdefault("num_blocks", 32)
        options.setdefault("page_tokens", 4)
        self.store = waymark.Store(**options)
        session = {"max_rows": 64, "num_buffers": 16, **session}
        self.session = waymark.CaptureSession(self.store, **session)
        self.rng = np.random.default_rng(7)
        self.step = 0

    def ids(self, rows: int) -> Ids:
        return distinct_ids(self.rng, self.num_layers, rows, self.top_k, self.num_experts)

    def begin(self, slots: Any, events: Any = None, version: int = 1, **more: Any) -> int:
        self.step += 1
        assert self.session.begin_step(self.step, version, events, slots, **more)
        return self.step

    def write(
        self, slots: Any, events: Any = None, version: int = 1, ids: Ids | None = None
    ) -> Ids:
        """A step from its begin to its end; the ids that it wrote."""
        rows = len(slots)
        ids = self.ids(rows) if ids is None else ids
        step = self.begin(slots, events, version)
        self.session.view(step).array[:, :rows] = ids
        self.session.submit(step)
        return ids

    def snapshots_live(self) -> int:
        """After time enough for the landing thread to take back what was released."""
        deadline = time.monotonic() + 10
        while self.store.stats().snapshots_live and time.monotonic() < deadline:
            self.write([])
            self.store.wait_idle(10)
        return self.store.stats().snapshots_live

    def bind(self, blocks: Any, keys: Any = None) -> waymark.Events:
        events = waymark.Events()
        events.bind(blocks, keys)
        return events


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def make_rig() -> Callable[..., Rig]:
    return Rig
