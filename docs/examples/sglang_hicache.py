"""SGLang's own table of routed experts, and Waymark's, under the hierarchical cache: one engine on a CPU, every row compared.

    python docs/examples/sglang_hicache.py [PICTURE.svg]

Needs a clone of Waymark, and an environment with SGLang 0.5.23 (tests/integration/sglang/setup makes one from PyPI) and Waymark. A small random
model answers requests that share prefixes; its KV goes to the host and comes back. Rows are compared with a recompute by transformers. Nothing
here says what SGLang has to return: a version that follows KV has no wrong rows.
"""

import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "integration" / "sglang"
COLOURS = {"right": "#4c9a5b", "wrong": "#c8443c", "missing": "#c9c9c9"}


def measured() -> dict:
    """The figures of a run of one engine, in which SGLang's own table is kept beside."""
    command = [sys.executable, FOLDER / "run", "--scenario", "hicache16", "--requests", "8", "--json"]
    print("an engine starts, answers some 60 requests, and is recomputed: a minute or two ...", flush=True)
    done = subprocess.run(command, env={"WAYMARK_SGLANG_VENV": sys.prefix, **os.environ}, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        sys.exit(done.returncode)
    found = json.loads(done.stdout)["hicache16"]
    if "error" in found:
        sys.exit(found["error"])
    return found


def bar(parts: dict, width: int) -> str:
    total, signs = max(sum(parts.values()), 1), {"right": "=", "wrong": "X", "missing": "."}
    return "".join(signs[name] * -(-count * width // total) for name, count in parts.items())[:width]


def main() -> None:
    found = measured()
    lines = []
    for name, rows, own_wrong, wrong, missing in found["each"]:
        total = rows + missing
        lines.append((name, {"wrong": own_wrong, "right": total - own_wrong}, {"wrong": wrong, "right": rows - wrong, "missing": missing}))
    print(f"\n{'request':>14}  {'SGLang, of its rows':34}{'Waymark':34}(X wrong, = right, . missing)")
    for name, own, ours in lines:
        print(f"{name:>14}  {own['wrong']:4} wrong {bar(own, 22):24}{ours['wrong']:4} wrong {bar(ours, 22)}")
    picture = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "sglang_hicache.svg")
    picture.write_text(drawn(lines))
    total = sum(rows + missing for _, rows, _, _, missing in found["each"])
    print(f"\nWith KV that went to the host and came back, {found['own']['rows_wrong']:,} of {total:,} rows of SGLang's own table are other tokens' "
          f"rows; of Waymark's {found['rows_wrong']:,} are wrong, and {sum(found['rows_missing'].values()):,} are missing: "
          f"docs/sglang.md ({picture})")


def drawn(lines: list) -> str:
    """Both tables, a line a request."""
    shapes, step, width = [], 9, 300
    for at, (_, *tables) in enumerate(lines):
        for side, parts in enumerate(tables):
            x, total = 10 + side * (width + 20), max(sum(parts.values()), 1)
            for name, count in parts.items():
                wide = count * width / total
                shapes.append(f'<rect x="{x:.1f}" y="{30 + at * step}" width="{wide:.1f}" height="{step - 2}" fill="{COLOURS[name]}"/>')
                x += wide
    titles = "".join(f'<text x="{10 + side * (width + 20)}" y="20">{title}</text>' for side, title in
                     enumerate(("SGLang's own rows: right, wrong", "Waymark's: right, wrong, missing")))
    size = f'width="{2 * width + 40}" height="{40 + len(lines) * step}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">{titles}{"".join(shapes)}</svg>\n'


if __name__ == "__main__":
    main()
