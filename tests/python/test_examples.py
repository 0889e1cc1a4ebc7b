"""The engine of docs/examples gives every row back; its training replays every one."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

# Runs an example while the reading thread is held back: behind each take it sleeps in a callback.
HELD_BACK = """
import runpy, sys, time, waymark
take = waymark.Capture.take
def slow(*args, **kwargs):
    taken = take(*args, **kwargs)
    taken.add_done_callback(lambda _: time.sleep(0.02))
    return taken
waymark.Capture.take = slow
runpy.run_path(sys.argv[1], run_name="__main__")
"""
ENGINE = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "engine.py"
TRAINING = ENGINE.with_name("replay_training.py")


@pytest.fixture(params=[False, True], ids=["alone", "held back"])
def program(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """How to run an example: alone, or beside busy processes with the reader held back."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(2 * request.param * len(os.sched_getaffinity(0)))]  # fmt: skip
    yield [sys.executable, "-c", HELD_BACK] if request.param else [sys.executable]
    for one in busy:
        one.kill()
        one.wait()


def test_the_engine_in_the_documentation_runs(program: list[str]) -> None:
    answer = subprocess.run([*program, ENGINE], capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    rows, requests, hits = [int(word) for word in answer.stdout.split() if word.isdigit()]
    assert rows == 14800 and requests == 200 and hits > 4000
    assert "agreement 1.000" in answer.stdout and "missing" not in answer.stdout


def test_the_batches_in_the_documentation_run(program: list[str]) -> None:
    batched = ENGINE.with_name("batched.py")
    answer = subprocess.run([*program, batched], capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    requests, preempted, forked, wrong = [int(w) for w in answer.stdout.split() if w.isdigit()]
    assert requests == 40 + forked and preempted > 10 and forked > 10 and wrong == 0


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_training_in_the_documentation_replays_every_row(engine: str) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    if engine == "vllm" and not pytest.importorskip("vllm.platforms").current_platform.is_cpu():
        pytest.skip("this vLLM is not one for the CPU")
    answer = subprocess.run(
        [sys.executable, TRAINING, "--steps", "1", "--engine", engine],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    words = answer.stdout.splitlines()[-1].split()
    assert words[:6] == ["with", "replay", "with", "replay", "0.00", "%"]


def test_the_rows_of_vllm_in_the_documentation_are_right_in_python_and_over_http() -> None:
    if not pytest.importorskip("vllm.platforms").current_platform.is_cpu():
        pytest.skip("this vLLM is not one for the CPU")
    if "waymark" not in importlib.metadata.entry_points(group="vllm.general_plugins").names:
        pytest.skip("vLLM does not find the plugin: waymark is not installed")
    program = ENGINE.with_name("vllm_rows.py")
    answer = subprocess.run(
        [sys.executable, program, "--http"], capture_output=True, text=True, timeout=600
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "64 tokens from the prefix cache" in answer.stdout and "WRONG" not in answer.stdout


def test_the_training_with_megatron_in_the_documentation_raises_no_alarm() -> None:
    pytest.importorskip("megatron.core")
    program = ENGINE.with_name("megatron_replay.py")
    answer = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("alarms []") == 3
