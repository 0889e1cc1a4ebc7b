"""Types: mypy accepts the package and a program that uses it; the stubs are the module's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import waymark

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs" / "api"
PACKAGE = Path(waymark.__file__).parent


def run(*command: str, cwd: Path) -> str:
    paths = os.pathsep.join(p for p in sys.path if p)
    # An installed package mypy finds by itself, and wants it to be told no more.
    found = "" if "site-packages" in PACKAGE.parts else str(PACKAGE.parent)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, "MYPYPATH": found},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_core.pyi").exists()


def test_mypy_accepts_the_package_and_a_program(tmp_path: Path) -> None:
    needs("mypy")
    python = [] if sys.version_info >= (3, 11) else ["--python-version", "3.11"]
    run("-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "waymark", cwd=tmp_path)
    run(
        "-m", "mypy", "--strict", *python, "--cache-dir", str(tmp_path),
        str(HERE / "typed_sample.py"), cwd=tmp_path,
    )  # fmt: skip


def test_the_page_of_the_api_is_that_of_the_docstrings() -> None:
    page = run(str(DOCS / "python_page.py"), cwd=HERE)
    assert page == (DOCS / "python.md").read_text(), "docs/api/python_page.py says how"
