#!/usr/bin/env python3
"""trainer.expand on a device against plan.fill on the host, by tensors of torch. Needs a GPU, torch, and a
waymark that was built with CUDA. Exit status: 0 they are equal; 1 otherwise; 77 there is no GPU."""

import sys

import numpy as np

try:
    import torch
except ImportError:
    print("SKIPPED: there is no torch", file=sys.stderr)
    sys.exit(77)
from waymark import Rows, trainer

if not torch.cuda.is_available():
    print("SKIPPED: there is no GPU", file=sys.stderr)
    sys.exit(77)

rng = np.random.default_rng(1)
compared = 0
for experts, top_k, layers in [(64, 6, 5), (256, 8, 58), (300, 4, 3)]:
    lengths = [200, 33, 1, 700]
    rows = []
    for n in lengths:
        ids = rng.random((n - 1, layers, experts)).argsort(-1)[..., :top_k]
        valid = rng.random(n - 1) > 0.1
        rows.append(Rows.from_array(ids, num_experts=experts, layer_ids=range(layers), valid=valid))
    plan = trainer.Layout(context=(1, 2), sequence_multiple=8).plan(lengths)
    chosen = range(layers // 2, layers)
    filled = plan.fill(rows, chosen, packed=True)
    # torch has no operations on uint16, but takes its bytes.
    packed = torch.from_numpy(filled.ids.view(np.int16) if experts > 256 else filled.ids).cuda()
    packed = packed.view(torch.uint16) if experts > 256 else packed
    mask = torch.from_numpy(filled.mask).cuda()
    for dtype, of_torch in [(np.int64, torch.int64), (np.int32, torch.int32)]:
        for fill in ("spread", "minus_one"):
            stream = torch.cuda.Stream()
            out = torch.full((len(chosen), plan.rows, top_k), 7, dtype=of_torch, device="cuda")
            torch.cuda.synchronize()
            trainer.expand(packed, mask, num_experts=experts, out=out, fill=fill, stream=stream)
            stream.synchronize()
            wanted = plan.fill(rows, chosen, dtype=dtype, fill=fill).ids
            if not np.array_equal(out.cpu().numpy(), wanted):
                sys.exit(f"E {experts}, {dtype.__name__}, {fill}: the device has other ids than the host")
            compared += wanted.size
print(f"{compared} ids are equal")
