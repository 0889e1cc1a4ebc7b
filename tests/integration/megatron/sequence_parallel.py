#!/usr/bin/env python3
"""Sequence parallelism over torch.distributed with gloo: every rank gets the rows of all ranks.

    PYTHONPATH=build/ci/python python tests/integration/megatron/sequence_parallel.py
    ... --ranks 2 --steps 100 --fault late

Needs torch and waymark; without one of them it prints SKIPPED and exits with 77. Each rank is a
process with a model of its own: a few MoE layers whose tokens are split over the ranks, as
Megatron's sequence parallelism splits them (contiguous parts of padded_tokens / ranks rows), and
whose hidden states are all-gathered in every layer. Batches are padded to a multiple of 2 * ranks,
as CUDA graphs pad them. The capture exchanges packed rows over a gloo group of its own.

Checked, on every rank: each row against what the routers of all ranks chose in the same run, and
all rows against a run with one rank. With --fault, one rank is late by more than the deadline of
the group, or ends in the middle: no row may be wrong, and every row that is missing must be of that
step or a later one, and "not captured", or "never written" if its forward failed. No call of a
capture may wait for the collective.
Exit code 0: all of that holds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

try:
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import waymark
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

LAYERS, TOP_K, EXPERTS, HIDDEN = 4, 2, 32, 48
SEQUENCES, PROMPT, BLOCK = 7, 9, 4
DEADLINE = 3.0  # of the group that exchanges rows, in the runs with a fault


class GlooGather:
    """A waymark.Collective over a process group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def all_gather(self, data: bytes, /) -> Sequence[Any]:
        """Bytes of every rank."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self.group)
        return [part.numpy() for part in parts]


class Model:
    """Routers and projections of LAYERS layers, the same on every rank. Float64: a row does not
    depend on the number of rows beside it as far as choices go."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        shape = (LAYERS, HIDDEN, HIDDEN)
        self.embed = torch.randn(4096, HIDDEN, generator=random, dtype=torch.float64)
        self.project = torch.randn(shape, generator=random, dtype=torch.float64) / HIDDEN**0.5
        self.gate = torch.randn(
            (LAYERS, HIDDEN, EXPERTS), generator=random, dtype=torch.float64
        )

    def forward(self, tokens: torch.Tensor, ranks: int) -> torch.Tensor:
        """The ids that the routers of this rank choose for its rows: int64 [rows, LAYERS,
        TOP_K]."""
        hidden = self.embed[tokens]
        chosen = []
        for layer in range(LAYERS):
            chosen.append((hidden @ self.gate[layer]).topk(TOP_K, dim=-1).indices)
            if ranks > 1:  # as before attention: the rank waits for the others here
                parts = [torch.empty_like(hidden) for _ in range(ranks)]
                dist.all_gather(parts, hidden)
            hidden = torch.tanh(hidden @ self.project[layer])
        return torch.stack(chosen, dim=1)


def token_of(sequence: int, position: int) -> int:
    return (sequence * 977 + position * 131 + sequence * position) % 4096


def run(rank: int, ranks: int, steps: int, fault: str, port: int, results: Any) -> None:
    """One rank; puts (rank, ids, valid, reasons, chosen, slowest call, gathers, failed) to
    `results`."""
    torch.set_num_threads(1)
    gather = None
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
        )
        timeout = datetime.timedelta(seconds=DEADLINE if fault else 60.0)
        gather = GlooGather(dist.new_group(backend="gloo", timeout=timeout))
    faulty = bool(fault) and rank == ranks - 1
    blocks = -(-(PROMPT + steps) // BLOCK)
    store = waymark.Capture(
        num_layers=LAYERS, top_k=TOP_K, num_experts=EXPERTS, num_blocks=SEQUENCES * blocks,
        page_tokens=BLOCK, max_steps_in_flight=steps + 2, row_gather=gather,
    )  # fmt: skip
    store.bind(list(range(SEQUENCES * blocks)))
    model = Model()
    chosen: dict[int, np.ndarray[Any, Any]] = {}  # of this rank's rows, by slot
    slowest = 0.0
    for step in range(1, steps + 1):
        first, last = (0, PROMPT) if step == 1 else (PROMPT + step - 2, PROMPT + step - 1)
        rows = [(s, p) for s in range(SEQUENCES) for p in range(first, last)]
        padded = -(-len(rows) // (2 * ranks)) * 2 * ranks
        slots = [s * blocks * BLOCK + p for s, p in rows] + [-1] * (padded - len(rows))
        tokens = [token_of(s, p) for s, p in rows] + [0] * (padded - len(rows))
        part = padded // ranks
        mine = slice(rank * part, (rank + 1) * part)
        # A rank that is late is so after its forward, which the others would wait for, too. Without
        # a rank the forward of the others fails, and their engines end.
        try:
            ids = model.forward(torch.tensor(tokens[mine]), ranks)
        except RuntimeError:
            break
        start = time.monotonic()
        told = store.step(step, 1, slots)
        slowest = max(slowest, time.monotonic() - start)
        for slot, of_row in zip(slots[mine], ids.numpy()):
            if slot >= 0:
                chosen[slot] = of_row
        if faulty and step == steps // 2:
            if fault == "dies":
                time.sleep(1.0)  # the steps before have been exchanged
                break
            if fault == "late":
                time.sleep(2 * DEADLINE)
        start = time.monotonic()
        told.ids = ids
        slowest = max(slowest, time.monotonic() - start)
    if faulty and fault == "dies":
        results.put((rank, None))
        results.close()
        results.join_thread()
        os._exit(0)
    taken = [
        store.take(list(range(s * blocks, (s + 1) * blocks)), PROMPT + steps - 1)
        for s in range(SEQUENCES)
    ]
    ids_out, valid, reasons = [], [], []
    for of_sequence in taken:
        read = of_sequence.result(300)
        ids_out.append(read.astype(np.int64))
        valid.append(read.valid)
        reasons.append(np.array([int(reason) for reason in read.reasons]))
    gathers, failed, _ = store.gather_stats()
    store.close()
    results.put((rank, np.stack(ids_out), np.stack(valid), np.stack(reasons), chosen, slowest,
                 gathers, failed))  # fmt: skip
    results.close()
    results.join_thread()
    os._exit(0)  # a group whose rank is gone does not shut down


def start(ranks: int, steps: int, fault: str) -> list[Any]:
    """What the ranks put, in their order; None for one that put nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=run, args=(rank, ranks, steps, fault, port, results))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    answers: list[Any] = [None] * ranks
    until = time.monotonic() + 600
    for _ in processes:
        answer = results.get(timeout=until - time.monotonic())
        answers[answer[0]] = answer[1:] if answer[1] is not None else None
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
            sys.exit("a rank hangs")
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fault", choices=["", "late", "dies"], default="")
    args = parser.parse_args()
    blocks = -(-(PROMPT + args.steps) // BLOCK)
    [alone] = start(1, args.steps, "")
    answers = start(args.ranks, args.steps, args.fault)
    chosen: dict[int, Any] = {}
    for answer in answers:
        chosen.update(answer[3] if answer is not None else {})
    explained = {int(waymark.Reason.NOT_CAPTURED)} if args.fault else set()
    if args.fault == "dies":
        explained.add(int(waymark.Reason.NEVER_WRITTEN))
    wrong = unexplained = failures = 0
    for rank, answer in enumerate(answers):
        if answer is None:
            print(f"rank {rank}: ended in the middle")
            continue
        ids, valid, reasons, _, slowest, gathers, failed = answer
        of_rank = [0, 0, 0]  # rows, wrong, missing
        for s in range(SEQUENCES):
            for p in range(ids.shape[1]):
                slot = s * blocks * BLOCK + p
                of_rank[0] += 1
                if not valid[s, p]:
                    of_rank[2] += 1
                    late = p >= PROMPT + args.steps // 2 - 2
                    unexplained += not late or int(reasons[s, p]) not in explained
                    continue
                right = (ids[s, p] == alone[0][s, p]).all()
                if slot in chosen:
                    right = right and (ids[s, p] == chosen[slot]).all()
                of_rank[1] += not right
        wrong += of_rank[1]
        if slowest > 1.0:
            failures += 1
        print(
            f"rank {rank}: {of_rank[0]} rows, {of_rank[1]} wrong, {of_rank[2]} missing; slowest call "
            f"{slowest * 1e3:.1f} ms; gathers {gathers}, failed {failed}"
        )
        # The steps before the fault, and with it at least one that failed.
        failures += gathers < args.steps // 2 - 1
        failures += (failed == 0) == bool(args.fault) and not (
            args.fault == "late" and rank == args.ranks - 1
        )
    print(f"wrong {wrong}, unexplained {unexplained}, other failures {failures}")
    return 1 if wrong or unexplained or failures else 0


if __name__ == "__main__":
    sys.exit(main())
