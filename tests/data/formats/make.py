"""Makes the golden files of this folder with numpy and the standard library alone.

The array: rows 0 ... 4 of 3 layers, top-2 of 16 experts; id = (3 row + 5 layer + 7 k) mod 16.
Files of two bytes an id have 300 experts and id = 17 (3 row + 5 layer + 7 k) mod 300.
"""

import base64
import json
import pathlib

import numpy as np
from numpy.lib import format as npy

HERE = pathlib.Path(__file__).parent
row, layer, k = np.ogrid[:5, :3, :2]
SMALL = (3 * row + 5 * layer + 7 * k) % 16
WIDE = 17 * (3 * row + 5 * layer + 7 * k) % 300


def b64(array):
    return base64.b64encode(array.tobytes()).decode()


def npy_bytes(array, version):
    path = HERE / "scratch"
    with open(path, "wb") as file:
        npy.write_array(file, array, version=version)
    data = path.read_bytes()
    path.unlink()
    return data


def write(name, data):
    (HERE / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def dump(name, value):
    write(name, json.dumps(value, separators=(",", ":")))


u1, u2, i2, i4 = (SMALL.astype("u1"), WIDE.astype("<u2"), SMALL.astype("<i2"), WIDE.astype("<i4"))
write("v1_u1.npy", npy_bytes(u1, (1, 0)))
write("v2_u2.npy", npy_bytes(u2, (2, 0)))
write("v3_i4.npy", npy_bytes(i4, (3, 0)))
write("v1_i8.npy", npy_bytes(WIDE.astype("<i8"), (1, 0)))
write("fortran_i2.npy", npy_bytes(np.asfortranarray(i2), (1, 0)))
vllm = base64.b64encode(npy_bytes(u1, (1, 0))).decode()
dump("vllm.json", {"routed_experts": vllm})
write("vllm.txt", vllm + "\n")
dump("vllm_lists.json", {"routed_experts": SMALL.tolist()})
dump("sglang_i4.json", {"routed_experts": b64(i4), "routed_experts_dtype": "int32",
                        "routed_experts_start_len": 0})
dump("sglang_u2.json", {"text": "...", "meta_info": {
    "id": "a", "e2e_latency": 0.5, "routed_experts": b64(u2[2:]), "routed_experts_dtype": "uint16",
    "routed_experts_start_len": 2}})
dump("megatron.json", SMALL.tolist())
dump("megatron_ndarray.json", ["ndarray", {"data": SMALL.tolist(), "dtype": "int16"}])
last = np.concatenate([i2, np.full((1, 3, 2), -1, "<i2")])
write("nemo_rl.txt", "nrlre1:int16:6x3x2:" + b64(last))
dump("skyrl.json", {"data": b64(u1), "shape": [5, 3, 2], "dtype": "uint8"})
dump("prime_rl.json", {"data": b64(i2[2:]), "shape": [3, 3, 2], "start": 2, "dtype": "int16"})
dump("lmdeploy.json", {"routed_experts": WIDE.tolist()})
# All five layers of a model whose first and last are dense: zeros in their columns.
every = np.zeros((5, 5, 2), "u1")
every[:, 1:4] = SMALL
dump("vllm_all_layers.json", {"routed_experts": base64.b64encode(npy_bytes(every, (1, 0))).decode()})
