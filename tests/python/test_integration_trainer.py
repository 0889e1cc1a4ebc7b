"""tests/integration/trainer/run without a framework: what it makes of what its parts print, and of how they end."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

INTEGRATION = pathlib.Path(__file__).resolve().parents[1] / "integration"
PARTS = ("gpt_model", "families", "doors", "glue", "example", "trajectories")


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Any:
    """run(part=(exit status, what it prints), ...): `run` beside programs that print so; the exit
    status, and what it printed with --json."""
    for folder in ("trainer", "megatron", "environment/v019", "environment/venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("trainer/run", "trainer/place.py", "megatron/place.py"):
        shutil.copy(INTEGRATION / file, tmp_path / file)
    python = tmp_path / "environment/venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def run(*options: str, **parts: tuple[int, Any]) -> tuple[int, Any]:
        for name, (status, printed) in parts.items():
            text = printed if isinstance(printed, str) else json.dumps(printed)
            program = f"import sys, time\nprint({text!r})\n"
            program += "time.sleep(60)\n" if status < 0 else f"sys.exit({status})\n"
            (tmp_path / f"trainer/{name}.py").write_text(program)
        done = subprocess.run(
            [sys.executable, tmp_path / "trainer/run", "--json", "--part", ",".join(parts), *options],
            env=os.environ
            | {"WAYMARK_MEGATRON": str(tmp_path / "environment"), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    return run


def of(wrong: int = 0, compared: int = 10, part: str = "doors") -> dict[str, Any]:
    cases = [{"name": "first", "rows_compared": 7, "rows_wrong": 0}] if compared else []
    last = {"name": "last", "rows_compared": compared, "rows_wrong": wrong}
    return {"part": part, "cases": [*cases, last]}


def test_the_parts_are_there() -> None:
    text = (INTEGRATION / "trainer/run").read_text()
    assert f"PARTS = {PARTS!r}".replace("'", '"') in text
    for name in PARTS:
        assert (INTEGRATION / f"trainer/{name}.py").exists() and f"\n{name} " in text


def test_right_rows_are_right(run: Any) -> None:
    status, results = run(families=(0, of(part="families")), doors=(0, of()))
    assert status == 0 and [result["status"] for result in results] == [0, 0]
    assert [result["part"] for result in results] == ["families", "doors"]
    assert all("error" not in result for result in results)


@pytest.mark.parametrize(
    ("wrong", "compared", "text"),
    [(1, 10, "1 of 17 rows are wrong"), (10, 10, "10 of 17"), (0, 0, "0 of 0")],
)
def test_rows_that_are_wrong_or_none_count_whatever_the_exit_status(
    run: Any, wrong: int, compared: int, text: str
) -> None:
    status, results = run(families=(0, of(part="families")), doors=(0, of(wrong, compared)))
    assert status == 1 and [result["status"] for result in results] == [0, 1]
    assert text in results[1]["error"] and "exit status is 0" in results[1]["error"]


def test_the_exit_status_counts_whatever_the_rows(run: Any) -> None:
    status, results = run(doors=(1, of()), families=(0, of()))
    assert status == 1 and [result["status"] for result in results] == [1, 0]
    status, results = run(doors=(3, "Traceback"))
    assert status == 1 and "JSONDecodeError" in results[0]["error"]
    status, results = run("--timeout", "1", doors=(-1, of()))
    assert status == 1 and "TimeoutExpired" in results[0]["error"]


def test_what_is_no_answer_is_wrong(run: Any) -> None:
    for printed in ("", "{}", "[]", {"part": "doors", "cases": [{"name": "without rows"}]}, "5"):
        status, results = run(doors=(0, printed), families=(0, of()))
        assert status == 1, printed
        assert [result["status"] for result in results] == [1, 0], printed


def test_parts_that_are_skipped(run: Any) -> None:
    assert run(doors=(77, "SKIPPED"))[0] == 77
    status, results = run(doors=(77, "SKIPPED"), families=(0, of()))
    assert status == 0 and [result["status"] for result in results] == [77, 0]
    assert run(doors=(77, "SKIPPED"), families=(1, of(2)))[0] == 1


def test_parts_that_there_are_not(run: Any) -> None:
    status, text = run(door=(0, of()))
    assert status == 2 and "no part 'door'" in text


def test_without_the_environment_nothing_runs(run: Any, tmp_path: pathlib.Path) -> None:
    shutil.rmtree(tmp_path / "environment/v019")
    status, text = run(doors=(0, of()))
    assert status == 77 and text.startswith("SKIPPED: there is no megatron-core")
