"""The engine of docs/examples gives every row back."""

import pathlib
import subprocess
import sys

ENGINE = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "engine.py"


def test_the_engine_in_the_documentation_runs() -> None:
    answer = subprocess.run([sys.executable, ENGINE], capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    rows, hits, wrong = [int(word) for word in answer.stdout.split() if word.isdigit()]
    assert rows == 14800 and hits > 4000 and wrong == 0
