"""How often the audit finds a Bind that was not reported, by shape and by rows that the new owner
wrote. A program, and no test:

    python tests/python/audit_rates.py [TRIALS] [SEED]

A block of 16 rows is sealed and released. Another request gets it, and its Bind is forgotten. Both
choose K of E experts at random in each layer, as unrelated tokens of a well balanced model do.
Prints, by the number of rows that the new owner wrote, in how many trials it was found, and by a
threshold of 0.5, which an engine cannot set where chance gives as much, in how many it would be.
"""

from __future__ import annotations

import sys

import numpy as np
import waymark

SHAPES = [(58, 8, 256), (48, 8, 128), (32, 2, 8), (24, 1, 16), (16, 6, 8), (4, 4, 6), (1, 2, 4)]
ROWS = [1, 2, 4, 16]


def main(trials: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    print(f"{trials} trials each, seed {seed}")
    print("| layers | top k of experts | chance | threshold | rows written | found | with 0.5 |")
    print("|---|---|---|---|---|---|---|")
    for num_layers, top_k, num_experts in SHAPES:

        def ids(rows: int) -> np.ndarray:
            order = np.argsort(rng.random((rows, num_layers, num_experts)), axis=2)
            return order[:, :, :top_k].astype(np.int16)

        for rows in ROWS:
            store = waymark.Capture(
                num_layers=num_layers, top_k=top_k, num_experts=num_experts, num_blocks=trials
            )
            kept_of, half = [], 0
            blocks = np.arange(trials)
            store.bind(blocks)
            store.seal(blocks, None)
            step = 0
            for written in (16, rows):
                for block in blocks:
                    step += 1
                    slots = block * 16 + np.arange(written)
                    new = ids(written)
                    if store.step(step, 1, slots, new).dropped:
                        raise RuntimeError("a step was dropped")
                    store.wait_idle(60)
                    if len(kept_of) < trials:
                        kept_of.append(new)
                        continue
                    kept = kept_of[block][:written]
                    common = (kept[..., :, None] == new[..., None, :]).any(axis=3)
                    half += common.mean() < 0.5
            found = store.stats().audit_voided_pages
            chance = top_k / num_experts
            print(
                f"| {num_layers} | {top_k} of {num_experts} | {chance:.2f} | "
                f"{(1 + chance) / 2:.2f} "
                f"| {rows} | {found / trials:.1%} | {half / trials:.1%} |"
            )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [1000, 1][len(given) :]))
