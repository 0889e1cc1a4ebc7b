#!/usr/bin/env python3
"""A Mooncake Store over TCP, of real processes: a master and two segments. By hand:

  mooncake_store.py [--rounds N] [--seed N] [--tokens N] [--sequences N] [--repeats N] [--fault NAME]

Needs pip install mooncake-transfer-engine-non-cuda==0.3.13.post1 and libibverbs1. Prints
1. bandwidth: the store's own (objects of 2 and 4 MB in registered buffers), this publisher into
   memory, and publishing to and fetching from the store, in turns, the median of --repeats each;
2. faults, --rounds each: a segment or the master killed, or stopped (SIGSTOP), and segments too
   small, at a random moment of publishing and fetching. Each row is compared; a row is right, or
   missing with a cause. A round ends when the store works again, which takes it up to 20 s.
Exit status: 0 no row is wrong or unexplained, no call later than its deadline and a second, and
the store works again after each round; 1 otherwise; 77 without Mooncake.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Union

import numpy as np
import waymark
import waymark.sources.mooncake

DEADLINE, MARGIN = 2.0, 1.0
Source = Union[waymark.MemorySource, waymark.BundleSource]
SEGMENT = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup(sys.argv[1], sys.argv[2], int(sys.argv[3]), 1 << 24, "tcp", "", sys.argv[4])
print("up" if code == 0 else code, flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Cluster:
    """A master and two processes with a segment each."""

    def __init__(self, segment_bytes: int) -> None:
        import mooncake

        self.program = pathlib.Path(mooncake.__file__).parent / "mooncake_master"
        self.segment_bytes = segment_bytes
        self.log = tempfile.TemporaryFile()
        self.ports = [free_port() for _ in range(3)]
        self.segments: list[subprocess.Popen[bytes]] = []
        self.start_master()
        for _ in range(2):
            self.start_segment()

    @property
    def master_at(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def metadata(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}/metadata"

    def start_master(self) -> None:
        rpc, http, metrics = self.ports
        self.master = subprocess.Popen(
            [self.program, "--rpc_address=127.0.0.1", f"--rpc_port={rpc}",
             "--metrics_host=127.0.0.1", f"--metrics_port={metrics}",
             "--enable_http_metadata_server=true", f"--http_metadata_server_port={http}",
             "--http_metadata_server_host=127.0.0.1", "--enable_metric_reporting=false"],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip
        for port in (rpc, http):
            for _ in range(500):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.02)

    def start_segment(self) -> None:
        for _ in range(5):  # Mooncake draws a port of its own, which may be in use
            segment = subprocess.Popen(
                [sys.executable, "-c", SEGMENT, f"127.0.0.1:{free_port()}", self.metadata,
                 str(self.segment_bytes), self.master_at],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            )  # fmt: skip
            assert segment.stdout is not None
            if segment.stdout.readline() == b"up\n":
                return self.segments.append(segment)
            segment.kill()
            segment.wait()
        raise RuntimeError("no segment of Mooncake starts")

    def close(self) -> None:
        for process in (*self.segments, self.master):
            process.kill()
            process.wait()

    def source(self, prefix: str, **options: object) -> waymark.BundleSource:
        return waymark.sources.mooncake.source(
            self.master_at, self.metadata, key_prefix=prefix, **options
        )


def rows_of(tokens: int, seed: int) -> waymark.Rows:
    """58 layers, 8 of 256 experts: 7,616 bytes a page of 16 tokens."""
    rng = np.random.default_rng(seed)
    shape = waymark.Shape(58, 8, 256, 16, 0, 0, tuple(range(58)))
    ids = (rng.integers(0, 256, (tokens, 58, 1)) + 29 * np.arange(8)) % 256
    infos = np.zeros(tokens, waymark.row_info_dtype)
    infos["step"] = infos["version"] = 1
    # Of the library's own memory, as those of an engine are: numpy's would be copied by publish().
    return waymark.join(waymark.Rows(shape, 0, ids.astype(np.uint8), infos))


# ---- bandwidth


class Own:
    """The store's own: a client in this process, batches of 4 objects in registered buffers."""

    def __init__(self, cluster: Cluster, size: int) -> None:
        import ctypes
        import mmap

        from mooncake.store import MooncakeDistributedStore

        self.size, self.batches = size, 0
        self.store = MooncakeDistributedStore()
        at = f"127.0.0.1:{free_port()}"
        assert self.store.setup(at, cluster.metadata, 0, 1 << 26, "tcp", "", cluster.master_at) == 0
        self.memory = mmap.mmap(-1, 4 * size)
        self.memory[:] = os.urandom(4 * size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert self.store.register_buffer(address, 4 * size) == 0
        self.where, self.sizes = [address + i * size for i in range(4)], [size] * 4

    def __call__(self) -> tuple[float, float]:
        self.batches += 1
        keys = [f"own:{self.size}:{self.batches}:{j}" for j in range(4)]
        begun = time.perf_counter()
        assert set(self.store.batch_put_from(keys, self.where, self.sizes)) == {0}
        put = time.perf_counter()
        assert set(self.store.batch_get_into(keys, self.where, self.sizes)) == {self.size}
        got = time.perf_counter()
        return 4 * self.size / (put - begun) / 1e6, 4 * self.size / (got - put) / 1e6


class Ours:
    """Sequences published as an engine does, which waits for none, and fetched one after the other;
    each row is compared."""

    def __init__(self, source: Source, reader: Source, tokens: int, sequences: int) -> None:
        self.reader, self.tokens, self.sequences, self.seed = reader, tokens, sequences, os.getpid()
        self.publisher = waymark.Publisher(source, rows_of(16, 0).shape)

    def __call__(self) -> tuple[float, float]:
        rows = [rows_of(self.tokens, self.seed + i) for i in range(self.sequences)]
        self.seed += self.sequences
        size = sum(of.ids.nbytes + self.tokens * 12 for of in rows)
        fetcher = waymark.Fetcher(self.reader)
        begun = time.perf_counter()
        handles = [one.wait(60) for one in [self.publisher.publish(of) for of in rows]]
        put = time.perf_counter()
        back = [fetcher.fetch(handle, timeout=60) for handle in handles]
        got = time.perf_counter()
        for of, there in zip(rows, back):
            assert there.valid.all() and (there.ids == of.ids).all()
        return size / (put - begun) / 1e6, size / (got - put) / 1e6


def bandwidth(tokens: int, sequences: int, repeats: int) -> None:
    """They take turns, so that what else runs on the machine slows all of them."""
    cluster = Cluster(3 << 30)
    try:
        memory = waymark.MemorySource()
        measured: dict[str, Own | Ours] = {
            "the store's own, 2 MB": Own(cluster, 2 << 20),
            "the store's own, 4 MB": Own(cluster, 4 << 20),
            "publisher and memory": Ours(memory, memory, tokens, sequences),
            "through the store": Ours(cluster.source("a:"), cluster.source("a:"), tokens, sequences),
        }
        rates = [[one() for one in measured.values()] for _ in range(repeats)]
    finally:
        cluster.close()
    print(f"MB/s, {sequences} x {tokens} tokens       put      get")
    puts, gets = (
        [statistics.median(of) for of in zip(*([pair[i] for pair in turn] for turn in rates))]
        for i in range(2)
    )
    for name, put, got in zip(measured, puts, gets):
        print(f"{name:24s}{put:9.0f}{got:9.0f}")
    for what, of in (("publishing", puts), ("fetching", gets)):
        asked = min(0.6 * max(of[:2]), 0.9 * puts[2])
        print(f"{what}: {of[3]:.0f} of the {asked:.0f} MB/s asked for ({of[3] / asked:.2f})")


# ---- faults


class Round:
    """One fault while rows are published and fetched."""

    def __init__(self, cluster: Cluster, fault: str, rng: random.Random) -> None:
        self.cluster, self.fault, self.rng = cluster, fault, rng
        self.counts: collections.Counter[str] = collections.Counter()
        self.latest = self.again = 0.0

    def begin(self) -> None:
        what, _, how = self.fault.partition(" ")
        if what == "full":
            return
        victim = self.cluster.master if what == "master" else self.rng.choice(self.cluster.segments)
        victim.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        self.victim = victim

    def end(self) -> None:
        what, _, how = self.fault.partition(" ")
        if how == "frozen":
            self.victim.send_signal(signal.SIGCONT)
        elif how == "killed":
            self.victim.wait()
            if what == "master":
                self.cluster.start_master()
            else:
                self.cluster.segments.remove(self.victim)
                self.cluster.start_segment()

    def timed(self, deadline: float, begun: float) -> None:
        self.latest = max(self.latest, time.monotonic() - begun - deadline)

    def run(self, source: waymark.BundleSource, reader: waymark.BundleSource, seed: int) -> None:
        publisher = self.use(source, reader, seed, time.monotonic() + 1.5)
        self.end()
        if self.fault != "full" and not self.works(publisher, reader, seed + 50):
            self.counts["not working again"] += 1

    def works(self, publisher: waymark.Publisher, reader: waymark.BundleSource, seed: int) -> bool:
        """Whether rows are published and fetched within a minute."""
        begun = time.monotonic()
        rows = rows_of(400, seed)
        while time.monotonic() < begun + 60:
            try:
                handle = publisher.publish(rows).wait(60)
                if waymark.Fetcher(reader).fetch(handle, timeout=DEADLINE).valid.all():
                    self.again = time.monotonic() - begun
                    return True
            except waymark.PutFailedError:
                pass
            time.sleep(0.1)
        return False

    def use(
        self, source: waymark.BundleSource, reader: waymark.BundleSource, seed: int, end: float
    ) -> waymark.Publisher:
        rows = rows_of(4000, seed)
        publisher = waymark.Publisher(source, rows.shape, source_timeout=DEADLINE)
        timer = threading.Timer(self.rng.random() * 0.15, self.begin)
        timer.start()
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                handle = publisher.publish(rows).wait(60)
            except waymark.PutFailedError as error:
                self.counts["puts failed"] += 1
                handle = error.handle
            self.timed(DEADLINE, begun)
            fetcher = waymark.Fetcher(reader)
            begun = time.monotonic()
            got, report = fetcher.fetch_with_report(handle, timeout=DEADLINE)
            self.timed(DEADLINE, begun)
            right = got.valid & (got.ids == rows.ids).all(axis=(1, 2))
            self.counts["right"] += int(right.sum())
            self.counts["wrong"] += int((got.valid & ~right).sum())
            for cause, count in zip(*np.unique(got.infos["cause"][~got.valid], return_counts=True)):
                self.counts[waymark.Cause(cause).name.lower()] += int(count)
            rows = rows_of(4000, seed := seed + 1)
        timer.join()
        return publisher


FAULTS = ["segment killed", "segment frozen", "master killed", "master frozen", "full"]


def faults(rounds: int, seed: int, names: list[str]) -> bool:
    good = True
    for fault in names:
        cluster = Cluster((24 if fault == "full" else 256) << 20)
        counts: collections.Counter[str] = collections.Counter()
        latest = again = 0.0
        try:
            source, reader = cluster.source("f:", timeout=1.0), cluster.source("f:", timeout=1.0)
            for i in range(rounds):
                one = Round(cluster, fault, random.Random(seed + i))
                one.run(source, reader, seed * 1000 + i * 100)
                counts += one.counts
                latest, again = max(latest, one.latest), max(again, one.again)
        finally:
            cluster.close()
        print(f"{fault:15s} {rounds} rounds, latest {latest:+.2f} s after its deadline, works again "
              f"after {again:.1f} s:",
              ", ".join(f"{name} {count}" for name, count in sorted(counts.items())), flush=True)
        bad = counts["wrong"] + counts["none"] + counts["not working again"]
        good &= not bad and latest < MARGIN
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(16))
    parser.add_argument("--tokens", type=int, default=16000)
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    words = parser.parse_args()
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        print(f"Mooncake is not here: {error}")
        return 77
    os.environ.setdefault("MC_FORCE_TCP", "true")
    if words.repeats:
        bandwidth(words.tokens, words.sequences, words.repeats)
    print(f"--seed={words.seed}")
    return 0 if not words.rounds or faults(words.rounds, words.seed, words.fault or FAULTS) else 1


if __name__ == "__main__":
    sys.exit(main())
