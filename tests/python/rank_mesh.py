"""Ranks that are processes, and a collective between them over pipes, in plain Python."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

_CONTEXT = multiprocessing.get_context("spawn")


class Mesh:
    """An all-gather between processes. The n-th calls of all ranks belong together: what a late rank
    sends is thrown away. Raises TimeoutError at its deadline, ConnectionError if a rank is gone."""

    def __init__(self, rank: int, links: dict[int, Connection], deadline: float) -> None:
        self.rank, self.size = rank, len(links) + 1
        self.deadline = deadline
        self.calls = -1  # the first one is that of _main
        self.sent = 0
        self._links = links
        self._early: dict[int, list[tuple[int, bytes]]] = {other: [] for other in links}

    def all_gather(self, data: bytes, /) -> Sequence[bytes]:
        call, self.calls = self.calls, self.calls + 1
        self.sent += len(data)
        for link in self._links.values():
            try:
                link.send((call, data))
            except OSError as error:
                raise ConnectionError("a rank is gone") from error
        until = time.monotonic() + self.deadline
        parts = {self.rank: data}
        for other in self._links:
            parts[other] = self._part(other, call, until)
        return [parts[rank] for rank in range(self.size)]

    def _part(self, other: int, call: int, until: float) -> bytes:
        link, early = self._links[other], self._early[other]
        while True:
            while early and early[0][0] < call:
                early.pop(0)
            if early and early[0][0] == call:
                return early.pop(0)[1]
            if early:
                raise TimeoutError(f"rank {other} has given call {call} up")
            if not wait([link], max(0.0, until - time.monotonic())):
                raise TimeoutError(f"rank {other} is late in call {call}")
            try:
                early.append(link.recv())
            except (EOFError, OSError) as error:
                raise ConnectionError(f"rank {other} is gone") from error


def _main(
    run: Callable[..., Any],
    rank: int,
    links: dict[int, Connection],
    deadline: float,
    result: Connection,
    args: tuple[Any, ...],
) -> None:
    mesh = Mesh(rank, links, 60.0)
    mesh.all_gather(b"")  # every process is there
    mesh.deadline = deadline
    result.send(run(mesh, *args))
    result.close()
    os._exit(0)  # what the ranks share is closed by the kernel


def run_ranks(size: int, run: Callable[..., Any], *args: Any, deadline: float = 30.0) -> list[Any]:
    """What ``run(mesh, *args)`` returned in the process of each rank; None if it died. Fails if a
    rank hangs."""
    links: list[dict[int, Connection]] = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a + 1, size):
            links[a][b], links[b][a] = _CONTEXT.Pipe()
    processes, results = [], []
    for rank in range(size):
        mine, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(
            target=_main, args=(run, rank, links[rank], deadline, theirs, args)
        )
        process.start()
        theirs.close()
        processes.append(process)
        results.append(mine)
    for of_rank in links:
        for link in of_rank.values():
            link.close()
    until = time.monotonic() + 120
    answers: list[Any] = []
    for process, result in zip(processes, results):
        try:
            answers.append(result.recv() if result.poll(until - time.monotonic()) else "hangs")
        except EOFError:
            answers.append(None)
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            answers[-1] = "hangs"
    assert "hangs" not in answers, answers
    return answers
