"""The code of README.md and docs/: Python runs, or compiles and names what exists; C and C++ is that of an example."""

from __future__ import annotations

import ast
import base64
import importlib
import io
import json
import math
import pathlib
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import waymark

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RNG = np.random.default_rng(0)


def blocks(page: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def ids(rows: int, layers: int = 58, experts: int = 256, k: int = 8) -> Any:
    return RNG.random((rows, layers, experts)).argsort(-1)[..., :k]


def reply() -> bytes:
    file = io.BytesIO()
    np.save(file, ids(5, 61).astype(np.uint8))
    choice = {"routed_experts": base64.b64encode(file.getvalue()).decode()}
    return json.dumps({"choices": [choice]}).encode()


def given() -> dict[str, Any]:
    """What the blocks of pages take from the code around them."""
    cap = waymark.Capture(num_layers=58, top_k=8, num_experts=256, num_blocks=64)
    recomputed = ids(20)
    captured = waymark.Rows.from_array(recomputed, num_experts=256, layer_ids=range(58))
    return {
        "np": np, "math": math, "waymark": waymark, "cap": cap, "source": waymark.MemorySource(),
        "num_blocks": 64, "block": 2, "blocks": [2], "key": 5, "number": 1, "step": 9, "version": 1,
        "tokens": 8, "computed": 8, "slots": waymark.slots_of([2], 16, 0, 8), "timeout": 5, "tag": 3,
        "forward": lambda rows=8: ids(rows), "ids": ids(8), "new_blocks": [2], "full_blocks": [2],
        "keys": [7], "request": "r", "lives": {"r": []}, "first_step": {"r": 1}, "lost": [],
        "reply": reply(), "recomputed": recomputed,
        "rows": captured, "recompute": lambda request: recomputed, "finished": {"r": captured},
        "decoded": SimpleNamespace(routed_experts=np.where(np.arange(8)[:, None, None] < 3, -1, ids(8))),
        "prefilled": SimpleNamespace(routed_experts=ids(5)),
    }  # fmt: skip


# A line of each block that is not run here, and why.
NOT_RUN = {
    "from vllm import LLM": "vLLM",
    "llm.generate(prompts": "vLLM",
    "requests.post(": "a server",
    "waymark.megatron": "megatron-core",
    "waymark.hf.": "torch, transformers",
    'pinned.to("cuda"': "a GPU",
    "waymark.RedisSource(": "a Redis server",
    "waymark.source_of(": "a Redis server",
    "row_gather=group": "several ranks",
}
ALL = [(page, number) for page in PAGES for number, _ in enumerate(blocks(page, "python"))]


def resolves(tree: ast.AST) -> None:
    """Every dotted name that begins with waymark, or with `trainer`, exists."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        names: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            names.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in ("waymark", "trainer"):
            path = ["waymark", *(["trainer"] if inner.id == "trainer" else []), *names]
            found: Any = waymark
            for depth, name in enumerate(path[1:], 2):
                if not hasattr(found, name):
                    importlib.import_module(".".join(path[:depth]))
                found = getattr(found, name)


@pytest.mark.parametrize("page, number", ALL, ids=lambda value: getattr(value, "name", value))
def test_a_block_of_python(page: pathlib.Path, number: int) -> None:
    code = blocks(page, "python")[number]
    tree = ast.parse(code)
    resolves(tree)
    if any(line in code for line in NOT_RUN):
        return
    names = given()
    cap = names["cap"]
    cap.bind([2])
    if "new_blocks" not in code and "cap.take(" in code and "cap.step(" not in code:
        cap.step(1, 1, names["slots"], names["ids"])  # rows to take
    exec(compile(code, f"{page.name}, block {number}", "exec"), names)  # noqa: S102
    if "lives[" in code:
        assert names["rows"].valid.all()
    if "waymark.verify" in code:
        assert names["report"].rows == 20 and names["report"].agreement == 1
    if "missing = (rows < 0)" in code:
        assert (names["rows"] >= 0).all()
    if "taken.result(timeout=5)" in code:
        assert names["rows"].valid.all()


def test_every_reason_not_to_run_a_block_is_needed() -> None:
    text = "".join("".join(blocks(page, "python")) for page in PAGES)
    assert [line for line in NOT_RUN if line not in text] == []


@pytest.mark.parametrize("language, example", [("c", "engine.c"), ("cpp", "engine.cc")])
def test_a_quick_start_is_the_example(language: str, example: str) -> None:
    text = (ROOT / "docs" / "examples" / example).read_text()
    assert blocks(ROOT / "docs" / "quickstart.md", language)
    for block in blocks(ROOT / "docs" / "quickstart.md", language):
        assert block in text


def test_commands_parse() -> None:
    shell = shutil.which("bash")
    for page in PAGES if shell else []:
        for block in blocks(page, "sh"):
            done = subprocess.run([str(shell), "-n", "-c", block], capture_output=True, text=True)
            assert done.returncode == 0, (page, done.stderr)


def test_each_reason_and_cause_has_its_trouble() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.split("## Rows are missing")[1].split("##")[0]
    for reason in [*waymark.Reason][1:]:
        assert f"| *{reason}* |" in table or reason == waymark.Reason.CAPACITY
    for cause in [*waymark.Cause][1:]:
        assert f"| *capacity: {cause}*" in table or f"*{cause}*" in table, cause


def test_every_counter_is_described_and_log_lines_are_real() -> None:
    page = "".join((ROOT / "docs" / name).read_text() for name in ("operating.md", "troubleshooting.md"))
    cap = waymark.Capture(num_layers=1, top_k=1, num_experts=8, num_blocks=1)
    of_publisher = waymark.Publisher(waymark.MemorySource(), cap.shape).stats().as_dict()
    good = {"published", "pages", "objects_held", "objects_put", "bytes_put"}
    for name in {*cap.stats().as_dict(), *of_publisher, *cap.tier_stats().as_dict()} - good:
        assert f"`{name}`" in page, name
    tops = [ROOT / top for top in ("blockstore", "plugin", "adapters")]
    files = [p for top in tops for p in top.rglob("*") if p.suffix in (".cc", ".h", ".py")]
    source = re.sub(r'"\s+f?"|\\', "", "".join(p.read_text() for p in files))
    lines = re.findall(r"^\| (.*?) \|", page.split("## Log lines")[1], re.M)[2:]
    for part in [part for line in lines for part in re.split(r"\*[^*]*\*|\.\.\.|; ", line)]:
        text = part.removeprefix("waymark: ").strip(" ;,.:()")
        assert text in source, text
