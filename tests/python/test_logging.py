"""What the library logs is seen without asking for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import waymark
from conftest import logged

CODE = """
import logging, os, sys, time, threading
import numpy, waymark

class Broken:
    rank, size, number = 0, 2, 0
    def all_gather(self, data):
        self.number += 1
        raise ConnectionError(f"rank 1 is gone, call {self.number}")

def lose(steps):
    cap = waymark.Capture(num_layers=1, top_k=1, num_experts=4, num_blocks=1, row_gather=Broken())
    for number in range(1, steps + 1):
        cap.step(number, 1, [0, 1], numpy.zeros((1, 1, 1), numpy.int16))
        cap.wait_idle(20)
    cap.take([0], 2).result(20)
    return cap

"""


def said(code: str) -> list[str]:
    """What a program writes on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", CODE + code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr.splitlines()


def test_a_program_that_configures_nothing_sees_it_on_stderr() -> None:
    lines = said("lose(1)")
    assert any("waymark: row_gather.all_gather: ConnectionError" in line for line in lines)


def test_a_line_that_waits_at_the_end_is_written() -> None:
    lines = said(
        "class Slow(logging.StreamHandler):\n"
        "    def emit(self, record):\n"
        "        time.sleep(0.2)\n"
        "        super().emit(record)\n"
        "logging.getLogger('waymark').addHandler(Slow())\n"
        "lose(3)"
    )
    assert sum("rank 1 is gone" in line for line in lines) == 3


def test_there_are_at_most_20_lines_in_10_seconds() -> None:
    lines = [line for line in said("lose(40)") if "waymark:" in line]
    assert len(lines) == 21 and lines[-1].endswith(" lines were left out")


def test_a_logger_takes_them() -> None:
    named = "logging.basicConfig(format='%(name)s %(levelname)s %(message)s'); lose(1)"
    assert any(line.startswith("waymark WARNING waymark: row_gather") for line in said(named))
    assert said("logging.getLogger('waymark').setLevel(logging.CRITICAL); lose(1)") == []


def test_one_thread_logs_for_all_captures_and_in_a_forked_child() -> None:
    lines = said(
        "a, b = lose(1), lose(1)\n"
        "names = [thread.name for thread in threading.enumerate()]\n"
        "assert names.count('waymark-log') == 1, names\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    lose(2)\n"
        "    sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    assert sum("rank 1 is gone" in line for line in lines) == 4


def test_the_first_line_says_that_the_capture_is_on() -> None:
    info = "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s');"
    shape = "num_layers=58, top_k=8, num_experts=256, num_blocks=4096"
    (line,) = said(f"{info} waymark.Capture({shape}, engine='engine 7')")
    assert line == (
        "INFO waymark: the capture is on for engine 7: 58 layers, top 8 of 256 experts, 4096 "
        f"blocks of 16 tokens, 62 MB of address space; waymark {waymark.__version__}"
    )
    assert "the capture is on: 58 layers" in said(f"{info} waymark.Capture({shape})")[0]
    assert said(f"{info} waymark.Capture({shape}, engine=None)") == []
    assert said(f"waymark.Capture({shape})") == []


@pytest.mark.skipif(waymark.build_info()["redis"] == "none", reason="no hiredis in the build")
def test_a_source_that_cannot_be_reached_is_said_when_it_is_used() -> None:
    made = (
        "source = waymark.RedisSource(unix_socket='/nowhere/redis');"
        "rows = waymark.Rows.from_array(numpy.zeros((4, 1, 1), int), num_experts=4, layer_ids=[0]);"
        "p = waymark.Publisher(source, rows.shape); f = waymark.Fetcher(source);"
    )
    line = "waymark: the page source cannot be used now: redis: connecting to /nowhere/redis: "
    assert said(made + "time.sleep(0.2)") == []
    publish = "\ntry: p.publish(rows).wait(30)\nexcept waymark.PutFailedError: pass"
    for use in (publish, "f.fetch(rows.handle())"):
        assert said(made + use)[0].startswith(line)


IDS = np.zeros((2, 1, 1), np.int16)


def drop(cap: waymark.Capture) -> None:
    first = cap.step(1, 1, [0, 1])
    assert cap.step(2, 1, [2, 3], IDS).dropped
    first.ids = IDS


def leave_open(cap: waymark.Capture) -> None:
    cap.open = cap.step(1, 1, [0, 1])  # type: ignore[attr-defined]


def test_steps_whose_ids_wait_to_be_read_are_counted_and_said() -> None:
    """They were dropped in silence: without a line, and not as steps_without_room."""
    with waymark.Capture(
        num_layers=1, top_k=1, num_experts=4, num_blocks=4, max_steps_in_flight=2, ahead_bytes=0
    ) as cap:
        cap.bind([0, 1, 2, 3])
        first = cap.step(1, 1, [0, 1])
        dropped = [cap.step(n, 1, [16 * n - 16, 16 * n - 15], IDS).dropped for n in (2, 3, 4)]
        assert dropped == [False, False, True]
        first.ids = IDS
        assert first.dropped
        assert logged("a step was dropped, because 2 were in flight").levelname == "WARNING"
        stats = cap.stats()
        assert (stats.steps_dropped, stats.steps_without_room) == (2, 2)


MISTAKES: dict[str, Callable[[waymark.Capture], object]] = {
    "a step was dropped, because 1 were in flight": drop,
    "s after it was told: it is open, and all behind it waits": leave_open,
    "layer 0 (gate): an id is out of range or twice in a row (4, of 4 experts)": lambda cap: cap.step(
        1, 1, [0, 1], IDS + 4
    ),
    "layer 0 (gate): silent for the first time": lambda cap: cap.step(1, 1, [0, 1], IDS - 1),
    "a block without users was released": lambda cap: [cap.bind(0), cap.release(0), cap.release(0)],
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_of_the_engine_is_said(line: str) -> None:
    """Each of them cost rows, or would, and was in a counter alone."""
    with waymark.Capture(
        num_layers=1, top_k=1, num_experts=4, num_blocks=1, layer_names=["gate"],
        max_steps_in_flight=1, overdue_after=0.1,
    ) as cap:  # fmt: skip
        MISTAKES[line](cap)
        assert logged(line).levelname == "WARNING"
