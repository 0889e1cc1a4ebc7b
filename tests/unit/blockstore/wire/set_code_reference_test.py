"""The Python of docs/internals/format-set-code.md against set_code_vectors.txt, and its example.

    python3 set_code_reference_test.py            # test
    python3 set_code_reference_test.py --write    # make the vectors anew
"""
import itertools
import pathlib
import random
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
VECTORS = HERE / "set_code_vectors.txt"
DOCUMENT = HERE.parents[3] / "docs" / "internals" / "format-set-code.md"

# E, K, l, unary: each row of the defaults, their neighbours, each kind of field width, and the ends.
PARAMS = [
    (1, 1, 0, 0), (1, 1, 0, 1), (2, 1, 0, 0), (8, 2, 0, 0), (8, 8, 0, 0), (8, 8, 2, 1),
    (60, 4, 2, 0), (64, 6, 2, 0), (128, 8, 3, 0), (128, 8, 4, 0), (160, 6, 4, 0), (160, 6, 4, 1),
    (256, 8, 0, 0), (256, 8, 3, 0), (256, 8, 4, 0), (256, 8, 4, 1), (256, 8, 5, 0), (257, 8, 4, 0),
    (384, 8, 4, 0), (384, 8, 5, 0), (512, 8, 4, 0), (512, 10, 1, 0), (512, 10, 4, 0),
    (512, 10, 5, 0), (512, 10, 5, 1), (512, 22, 4, 0), (512, 22, 4, 1), (512, 22, 5, 1),
    (1000, 5, 0, 0), (4096, 33, 7, 1), (65535, 1, 0, 0), (65535, 4, 0, 0), (65535, 64, 10, 1),
    (65535, 64, 16, 0),
]


def reference():
    code = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    scope = {}
    exec(code, scope)
    return scope


def lines(ref):
    rng = random.Random(1)
    encode, decode, bits, pack = (ref[name] for name in ("encode", "decode", "bits", "pack"))
    for params in PARAMS:
        E, K, l, unary = params
        b = bits(*params)
        head = " ".join(map(str, params))
        sets = [list(range(E - K, E)), sorted(rng.sample(range(E), K))]
        for ids in sorted(set(map(tuple, sets))):
            code = encode(*params, ids)
            yield f"cell {head} {pack([code], b).hex() or '-'} {','.join(map(str, ids))}"
        code = next((code for code in ((1 << b) - 1, 0) if decode(*params, code) is None), None)
        if code is not None:
            yield f"cell {head} {pack([code], b).hex()} corrupt"
        if b == 0:
            continue
        rows = [None if rng.random() < 0.2 else rng.sample(range(E), K) for _ in range(11)]
        codes = [encode(*params, ids) if ids else 0 for ids in rows]
        texts = [",".join(map(str, ids)) if ids else "-" for ids in rows]
        yield f"layer {head} {pack(codes, b).hex()} {' '.join(texts)}"


def check(ref):
    encode, decode, bits, pack = (ref[name] for name in ("encode", "decode", "bits", "pack"))
    cells = 0
    for line in VECTORS.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, *numbers, hexed = line.split()[:6]
        params = tuple(map(int, numbers))
        stored = bytes.fromhex(hexed.replace("-", ""))
        rest = line.split()[6:]
        b = bits(*params)
        if kind == "layer":
            codes = [0 if text == "-" else encode(*params, map(int, text.split(",")))
                     for text in rest]
            assert pack(codes, b) == stored, line
            continue
        cells += 1
        code = int.from_bytes(stored, "little")
        if rest == ["corrupt"]:
            assert decode(*params, code) is None, line
        else:
            ids = list(map(int, rest[0].split(",")))
            assert encode(*params, reversed(ids)) == code and decode(*params, code) == ids, line
    assert cells >= 80, cells
    # Every set of a small E has a code of its own, and nothing else is one.
    for E, K, l, unary in itertools.product(range(1, 8), range(1, 5), range(4), (0, 1)):
        if K > E or bits(E, K, l, unary) > 14:
            continue
        sets = {encode(E, K, l, unary, ids): list(ids)
                for ids in itertools.combinations(range(E), K)}
        for code in range(1 << bits(E, K, l, unary)):
            assert decode(E, K, l, unary, code) == sets.get(code), (E, K, l, unary, code)
    # The example.
    ranked, unary = encode(64, 4, 2, 0, [40, 5, 63, 6]), encode(64, 4, 2, 1, [40, 5, 63, 6])
    layer = pack([ranked, 0, encode(64, 4, 2, 0, range(4))], bits(64, 4, 2, 0)).hex(" ")
    for shown in (f"{ranked:#x} of {bits(64, 4, 2, 0)} bits", f"`{layer}`",
                  f"{unary:#x} of {bits(64, 4, 2, 1)} bits"):
        assert shown in DOCUMENT.read_text(), shown
    print(f"{cells} cells: ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        about = ("# cell E K l unary CODE IDS|corrupt and layer E K l unary CODES IDS|- ...: codes as\n"
                 "# hexadecimal bytes (none: -), - a missing row. From set_code_reference_test.py.\n")
        VECTORS.write_text(about + "".join(line + "\n" for line in lines(reference())))
    else:
        check(reference())
