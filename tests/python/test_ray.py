"""Through Ray's object store: rows and handles cross processes, and the arrays are not copied.
docs/examples/ray_rollouts.py gets every row back, and says what is wrong if it does not.

Skipped where Ray is not installed or does not start: it is no requirement of the package or of its
other tests."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waymark
from conftest import distinct_ids
from waymark import Rows

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray  # noqa: E402

COUNT, LAYERS, TOP_K = 4000, 12, 8
HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "docs" / "examples" / "ray_rollouts.py"


def why_not() -> str:
    """Why Ray does not start on this machine, tried where it cannot hold up anybody; "" if it
    does."""
    start = "import ray; ray.init(num_cpus=1, include_dashboard=False); ray.shutdown()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", start], capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return "not in 120 s"
    return "" if done.returncode == 0 else (done.stderr.strip() or "?").splitlines()[-1]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Its address."""
    reason = why_not()
    if reason:
        pytest.skip(f"Ray does not start here: {reason}")
    paths = os.pathsep.join(p for p in [*sys.path, str(EXAMPLE.parent)] if p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)  # of workers of every job, too
        context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 << 20)
        yield context.address_info["address"]
        ray.shutdown()


def many_rows() -> Rows:
    rng = np.random.default_rng(3)
    ids = distinct_ids(rng, COUNT, LAYERS, TOP_K, 64)
    shape = waymark.Shape(LAYERS, TOP_K, 64, 16, 0, 0, tuple(range(LAYERS)))
    infos = np.zeros(COUNT, waymark.row_info_dtype)
    infos["step"] = np.arange(1, COUNT + 1)
    infos["version"] = 1
    return Rows(shape, 0, ids.astype(shape.id_dtype), infos)


def lies_in(array: npt.NDArray[Any]) -> str:
    """What the file is called that is mapped where the array lies; "" for none."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            begin, end = (int(word, 16) for word in words[0].split("-"))
            if begin <= address < end:
                return words[5].strip() if len(words) > 5 else ""
    return ""


def in_object_store(array: npt.NDArray[Any]) -> bool:
    return "plasma" in lies_in(array) and not array.flags.writeable and not array.flags.owndata


def test_rows_are_read_where_the_object_store_has_them() -> None:
    rows = many_rows()
    assert not in_object_store(rows.ids) and not in_object_store(np.ones(1 << 20))
    ref = ray.put(rows)
    for _ in range(2):
        got = ray.get(ref)
        assert type(got) is Rows and got.shape == rows.shape
        assert in_object_store(got.ids) and in_object_store(got.infos)
        assert (got.ids == rows.ids).all() and (got.infos == rows.infos).all()
    # A copy would have another place.
    assert lies_in(ray.get(ref).ids) == lies_in(got.ids)
    assert ray.get(ref).ids.ctypes.data == got.ids.ctypes.data


def test_rows_handles_and_documents_cross_workers() -> None:
    there = in_object_store  # pickled with the functions below, which workers cannot import

    @ray.remote
    def capture() -> tuple[int, Rows, waymark.Handle]:
        rows = many_rows()
        return os.getpid(), rows, rows.handle(store="engine-7")

    @ray.remote
    def train(rows: Rows, handle: waymark.Handle) -> tuple[int, bool, int, bool]:
        held = there(rows.ids) and there(rows.infos)
        return os.getpid(), held, int(rows.ids.sum()), rows.handle(store="engine-7") == handle

    @ray.remote
    def look(document: waymark.Document) -> tuple[bool, Any]:
        return there(np.frombuffer(document._source, np.uint8)), document.rows().ids

    rows = many_rows()
    engine, captured, handle = ray.get(capture.remote())
    assert type(handle) is waymark.Handle and handle == rows.handle(store="engine-7")
    assert in_object_store(captured.ids)
    trainer, held, total, same = ray.get(train.remote(ray.put(captured), ray.put(handle)))
    assert os.getpid() not in (engine, trainer)
    assert held and same and total == int(rows.ids.sum())
    # Ray stores what is bytes as bytes: a handle comes back so by itself, and as it is within.
    alone, within = ray.get([ray.put(handle), ray.put((handle,))])
    assert alone == handle and type(within[0]) is waymark.Handle and within[0] == handle
    assert waymark.Handle(alone).store == "engine-7"

    # A document arrives as it is; its bytes lie in the store.
    ref = ray.put(waymark.from_bytes(rows.to_bytes()))
    document = ray.get(ref)
    assert isinstance(document, waymark.Document)
    assert in_object_store(np.frombuffer(document._source, np.uint8))
    lent, ids = ray.get(look.remote(ref))
    assert lent and (ids == rows.ids).all()


def rollouts(address: str, program: pathlib.Path, *words: str) -> tuple[int, str, dict[str, int]]:
    """(exit status, what it printed, rows by what they are)."""
    sizes = "--groups 4 --samples 2 --turns 4 --prompt 96 --new 24 --tool 16".split()
    done = subprocess.run(
        [sys.executable, program, *words, *sizes, "--address", address],
        capture_output=True,
        text=True,
        timeout=300,
    )
    table = re.findall(r"^([\d,]+) rows: (.*)$", done.stdout, re.M)
    assert len(table) == 1, done.stdout + done.stderr
    cells = [cell.split(" ", 1) for cell in f"{table[0][0]} wanted, {table[0][1]}".split(", ")]
    return done.returncode, done.stdout, {kind: int(n.replace(",", "")) for n, kind in cells}


def test_the_rollouts_in_the_documentation_lose_no_row(
    cluster: str, tmp_path: pathlib.Path
) -> None:
    plot = tmp_path / "plot.svg"
    status, text, rows = rollouts(cluster, EXAMPLE, "--plot", str(plot))
    assert status == 0 and rows.pop("wanted") == rows.pop("right") == 4 * 2 * (96 + 144 - 1)
    assert not any(rows.values()), text
    assert "the weights change" in text and re.search(r"engine \d is killed", text)
    of_weights = re.findall(r"([\d,]+) of weights (\d)", text)
    assert [version for _, version in of_weights] == ["1", "2"], text
    assert re.search(r"16 bundles of .*; [1-4] turns were cut off", text), text
    table = text[text.index("\nMB ") :].splitlines()[2:7]
    size = {line[:20].strip(): float(line.split()[-1]) for line in table}
    by_trainers = size["fetched by trainer 0"] + size["fetched by trainer 1"]
    assert abs(by_trainers - size["unique of these"]) < 0.05  # nothing twice
    assert 0 < size["unique of these"] < size["published"] < size["arrays in replies"]
    assert plot.read_text().count("<path") == 6


@pytest.mark.parametrize(
    "plant, kind",
    [
        ("swap", "wrong"),
        ("wrong", "missing (capacity: the object is damaged)"),
        ("drop", "missing (capacity: the source does not have the object)"),
        ("put", "of other weights"),  # rows of the engine that took the place of the killed one
        ("kill", "missing (never returned)"),
    ],
)
def test_a_row_that_the_rollouts_lose_is_told(cluster: str, plant: str, kind: str) -> None:
    status, text, rows = rollouts(cluster, HERE / "ray_plants.py", plant)
    wanted, right = rows.pop("wanted"), rows.pop("right")
    assert status == 1 and rows[kind] == sum(rows.values()) == wanted - right > 0, text
