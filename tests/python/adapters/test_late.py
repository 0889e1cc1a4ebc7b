"""waymark.late on an emulated device: random schedules of a small engine, mistakes that it could
have, a device that fails or hangs, and the end of its thread."""

from __future__ import annotations

import pathlib
import sys
import time
from collections import Counter
from typing import Any

import pytest
import waymark
from conftest import output_of
from late_device import MISTAKES, LateDevice, Numpy
from waymark import late
from waymark.late import _late_ids

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "gpu"))
import late_ids  # noqa: E402


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_late_ids, "_PAUSE_SECONDS", 1e-4)
    monkeypatch.setattr(_late_ids, "_LOOK_AGAIN_SECONDS", 1e-3)


def engine_of(seed: int, **more: Any) -> Any:
    return late_ids.Engine(Numpy, LateDevice(), seed, **more)


def schedule(seed: int) -> Counter[str]:
    return engine_of(seed, graphs=("full", "piecewise", "")[seed % 3], follows=seed % 5 > 0).run()


def bad(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in late_ids.BAD if counts[name]}


def test_random_schedules(seed: int, request: pytest.FixtureRequest) -> None:
    """--schedules: how many; the n-th has seed + n."""
    every = [schedule(seed + n) for n in range(request.config.getoption("--schedules"))]
    assert not [(f"--seed={seed + n}", one) for n, one in enumerate(every) if bad(one)]
    assert all(one["right"] for one in every)


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(late_ids.LateIds, "what", what)
    assert any(bad(schedule(seed)) for seed in range(1, 25))


@pytest.mark.parametrize("learns", [True, False])
def test_a_step_whose_slots_find_no_buffer_costs_all_rows(
    monkeypatch: pytest.MonkeyPatch, learns: bool
) -> None:
    """learns: the store does; else it is noticed."""
    if not learns:
        monkeypatch.setattr(waymark.Capture, "lose_rows", lambda self: None)
    engine = engine_of(1)
    for number in range(4):
        engine.start()
        engine.late._slots_taken = [number == 3] * 32
        engine.step()
        engine.follow(0)
    engine.late._slots_taken = [False] * 32
    counts = engine.run(steps=10)
    assert engine.late.unknown == 1 and counts["right"]
    assert not bad(counts) and counts["lost"] if learns else counts["wrong"]


@pytest.mark.parametrize("where", ["done", "copy"])
def test_the_device_fails(where: str) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError("a test")

    engine = engine_of(1)
    setattr(engine.memory.device, where, fails)
    counts = engine.run(steps=10)
    assert engine.late.failure == "RuntimeError: a test"
    assert counts["wrong"] == counts["right"] == 0


def test_the_engine_never_waits_for_the_device() -> None:
    """Buffers of ids are 4: the other steps lose theirs, and their rows are missing."""
    begin = time.monotonic()
    engine = engine_of(1, follows=False)
    engine.memory.device.held = True
    engine.late.later(lambda *_: None)
    for _ in range(20):
        engine.start()
        engine.step()
        for request in [one for one in engine.requests if one["done"] == one["length"]]:
            engine.end(request)
    assert time.monotonic() - begin < 60 and engine.late.lost == 16
    engine.memory.device.held = False
    counts = engine.run(steps=0)
    assert not bad(counts) and counts["right"] and counts["lost"]


def test_a_step_that_is_given_up_keeps_its_buffers_until_its_copies_are_done() -> None:
    device = LateDevice()
    memory = late.Memory(device, 8, 1, 1)
    store = waymark.Capture(num_layers=1, top_k=1, num_experts=128, num_blocks=4, engine=None)
    ids = late.LateIds(memory, store, 0.05)
    device.held = True
    told: list[Any] = []
    slots = device.memory((8,), "int64")
    ids.issued(slots, 1, lambda slots, ids: told.append(slots))
    assert ids.drain(10) and ids.given_up == 1 and told == [None]
    assert ids._ids_taken[0] and ids._slots_taken[0]
    device.held = False
    deadline = time.monotonic() + 10
    while ids._ids_taken[0] and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert not ids._ids_taken[0] and not ids._slots_taken[0]
    assert ids.close(10)


def test_its_end_does_not_wait_for_a_device_that_hangs() -> None:
    engine = engine_of(1)
    engine.memory.device.held = True
    engine.start()
    engine.step()
    begin = time.monotonic()
    assert not engine.late.close(0.05) and not engine.late.drain(0.1)
    assert time.monotonic() - begin < 5 and not engine.late._thread.is_alive()


def test_the_thread_ends_before_the_interpreter() -> None:
    """In a call of torch, which comes back for the GIL, it ended the process by std::terminate."""
    program = """if True:
        import atexit, threading
        def at_end():
            print([one.name for one in threading.enumerate() if one.name == "waymark-late"])
        atexit.register(at_end)  # the first of all: the last to run
        import waymark.late
        from late_device import LateDevice
        device = LateDevice(most_looks=1 << 40)
        memory = waymark.late.Memory(device, 8, 1, 1)
        store = waymark.Capture(num_layers=1, num_experts=2, top_k=1, num_blocks=4)
        ids = waymark.late.LateIds(memory, store, 1000)
        ids.issued(device.memory((8,), "int64"), 1, lambda slots, ids: None)"""
    assert output_of(program)[0] == "[]\n"
