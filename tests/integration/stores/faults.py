#!/usr/bin/env python3
"""Stores that are killed, frozen and full while publishers and fetchers use them.

  faults.py [--rounds N] [--seed N] [--store NAME] [--client NAME] [--fault NAME] [--json] [--plant NAME]

A round: a client works with a store, at a random moment the fault begins, at another it ends, and the client goes on for a while. Each
row that the client gets is compared with the row that was written. It prints a table: rows right, wrong and missing by cause, calls, and
the longest call beyond its deadline, and the same less what a thread that only sleeps waited too long in the meantime (other processes
have the cores, too).
--plant: one planted mistake a round, which must fail the run: wrong (a row is changed), late (a call sleeps past its deadline),
unexplained (a row is missing for no reason).
Stores: redis (needs redis-server), folder (an ext4 file system on a loop device: needs root). A store that cannot be here is left out.
Exit status: 0 no row is wrong or missing without a cause, no call is later than its deadline and MARGIN (without such waits), each fault costs rows or calls,
and after each the store works again; 1 otherwise; 2 usage; 77 no store can be here.
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

sys.dont_write_bytecode = True

import numpy as np
import waymark

MARGIN = 0.5  # seconds beyond a deadline, without the time for which other processes had the cores (Control)
SKIPPED = 77
FAULTS = {"killed": ("kill", "start"), "frozen": ("freeze", "thaw"), "full": ("fill", "drain")}


# ---- stores


class Store:
    """What a store must do. `losses` counts the times that it lost what it held."""

    name = ""
    losses = 0

    @staticmethod
    def missing() -> str:
        """Why it cannot be here; "": it can."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, for the first time or after kill()."""
        raise NotImplementedError

    def source(self) -> Any:
        """A page source of waymark, or an object that is one."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets all objects, before a round."""
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def freeze(self) -> None:
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def fill(self) -> None:
        """Takes (nearly) all of its room."""
        raise NotImplementedError

    def drain(self) -> None:
        """The end of fill()."""
        raise NotImplementedError

    def stop(self) -> None:
        """The end, in any state."""
        raise NotImplementedError


def check(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Redis(Store):
    """A server of its own at a Unix socket, without a file on disk; killed, it comes back empty."""

    name = "redis"
    # Debian's redis-tools has the program under the second name alone; by its first word it knows what it is to be.
    PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")

    @staticmethod
    def missing() -> str:
        if waymark.build_info()["redis"] == "none":
            return "the build has no hiredis"
        return "" if Redis.PROGRAM else "no redis-server (Debian: redis-server)"

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="waymark_redis_")
        self.socket = os.path.join(self.folder, "socket")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no", "--dir", self.folder]
        self.process = subprocess.Popen([*words, "--maxmemory-policy", "noeviction"], executable=self.PROGRAM, stdout=subprocess.DEVNULL)
        while True:
            try:
                return self.command("PING")
            except OSError:
                assert self.process.poll() is None, "redis-server has ended"
                time.sleep(0.005)

    def command(self, *words: str) -> None:
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(20)
            to.connect(self.socket)
            to.sendall((" ".join(words) + "\r\n").encode())
            answer = to.recv(1000)
            assert answer.startswith(b"+"), answer

    def source(self) -> waymark.RedisSource:
        return waymark.RedisSource(unix_socket=self.socket, initial_back_off=0.005, max_back_off=0.05)

    def clear(self) -> None:
        self.command("FLUSHALL")

    def kill(self) -> None:
        self.losses += 1
        assert self.process
        self.process.kill()
        self.process.wait()
        pathlib.Path(self.socket).unlink(missing_ok=True)

    def freeze(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def fill(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", "1")

    def drain(self) -> None:
        self.command("CONFIG", "SET", "maxmemory", "0")

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder)


class Folder(Store):
    """A folder on a file system of its own. Killed: the file system is not mounted for a while. Frozen: nobody can write to it."""

    name = "folder"
    BYTES = 128 << 20

    @staticmethod
    def missing() -> str:
        if os.geteuid() != 0:
            return "mounting a file system needs root"
        lacks = [name for name in ("losetup", "mkfs.ext4", "fsfreeze") if not shutil.which(name)]
        return f"no {lacks[0]}" if lacks else ""

    def __init__(self) -> None:
        # In memory where that can be: what else the machine's disk does is nothing of ours.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="waymark_folder_", dir=memory))
        self.mount = self.base / "mount"
        self.mount.mkdir()
        image = self.base / "image"
        with open(image, "wb") as file:
            file.truncate(self.BYTES)
        check("mkfs.ext4", "-q", "-F", "-m", "0", "-N", "20000", str(image))
        found = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True)
        self.device = found.stdout.strip()
        self.frozen = False
        # Two levels: FolderSource makes the last one alone, so that nothing is written beside the file system.
        self.objects = self.mount / "waymark" / "objects"

    def start(self) -> None:
        check("mount", self.device, str(self.mount))
        self.objects.parent.mkdir(exist_ok=True)

    def source(self) -> waymark.FolderSource:
        return waymark.FolderSource(self.objects)

    def clear(self) -> None:
        shutil.rmtree(self.objects, ignore_errors=True)

    def kill(self) -> None:
        check("umount", "--lazy", str(self.mount))

    def freeze(self) -> None:
        check("fsfreeze", "--freeze", str(self.mount))
        self.frozen = True

    def thaw(self) -> None:
        check("fsfreeze", "--unfreeze", str(self.mount))
        self.frozen = False

    def fill(self) -> None:
        with open(self.mount / "filler", "wb", buffering=0) as file:
            size = 1 << 20
            while size >= 512:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def drain(self) -> None:
        (self.mount / "filler").unlink()

    def stop(self) -> None:
        if self.frozen:
            self.thaw()
        subprocess.run(["umount", "--lazy", str(self.mount)], stderr=subprocess.DEVNULL)
        subprocess.run(["losetup", "--detach", self.device])
        shutil.rmtree(self.base)


# ---- clients


@dataclasses.dataclass
class Outcome:
    """Of one round, or the sum of several."""

    right: int = 0
    wrong: int = 0
    missing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # rows by cause
    calls: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by how they ended
    # Seconds by call: the longest one beyond its deadline, and the same less what the control waited meanwhile.
    late: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)  # what must not be, beside wrong rows

    def add(self, other: Outcome) -> None:
        self.right += other.right
        self.wrong += other.wrong
        self.missing += other.missing
        self.calls += other.calls
        self.failures += other.failures
        for call, (seconds, alone) in other.late.items():
            self.took(call, seconds, seconds - alone)

    def took(self, call: str, late: float, waited: float) -> None:
        seconds, alone = self.late.get(call, (-1e9, -1e9))
        self.late[call] = [max(seconds, late), max(alone, late - waited)]


class Client:
    """What a client must do: work until `stop` is set, then once more, when all must be right."""

    name = ""

    def __init__(self, store: Store, rng: random.Random, plant: str) -> None:
        self.store, self.rng, self.plant = store, rng, plant

    def round(self, stop: threading.Event) -> Outcome:
        raise NotImplementedError


@dataclasses.dataclass
class Published:
    rows: waymark.Rows
    handle: bytes
    put_failed: str  # the code of the source, if it refused objects
    losses: int


class Handles(Client):
    """A publisher and two fetchers, by handle."""

    name = "handles"
    PUT, TICKET, FETCH = 0.4, 0.6, 0.25  # seconds: source_timeout, Ticket.wait, Fetcher.fetch

    def round(self, stop: threading.Event) -> Outcome:
        self.published: list[Published] = []
        self.outcome, self.lock = Outcome(), threading.Lock()
        seeds = [self.rng.randrange(1 << 32) for _ in range(4)]
        publisher = waymark.Publisher(self.store.source(), self.rows(0).shape, source_timeout=self.PUT)
        threads = [threading.Thread(target=self.publish, args=(publisher, stop, seeds[0]))]
        threads += [threading.Thread(target=self.fetch, args=(stop, seed)) for seed in seeds[1:3]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.afterwards(seeds[3])
        return self.outcome

    @staticmethod
    def rows(seed: int) -> waymark.Rows:
        """48 to 247 rows of 16 layers, no two alike."""
        rng = np.random.default_rng(seed)
        first = rng.integers(0, 256, (int(rng.integers(48, 248)), 16, 1))
        return waymark.Rows.from_array(((first + 31 * np.arange(8)) % 256).astype(np.int16), num_experts=256, layer_ids=range(16))

    def timed(self, call: str, deadline: float, do: Any) -> Any:
        begin, waited = time.monotonic(), CONTROL.waited()
        try:
            return do()
        finally:
            if self.plant == "late" and call == "fetch":
                time.sleep(deadline + 1.5 * MARGIN)
            with self.lock:
                self.outcome.took(call, time.monotonic() - begin - deadline, CONTROL.waited() - waited)

    def publish(self, publisher: waymark.Publisher, stop: threading.Event, seed: int) -> None:
        while not stop.is_set():
            seed += 1
            rows, losses = self.rows(seed), self.store.losses
            ticket = self.timed("publish", 0, lambda: publisher.publish(rows))
            try:
                handle = self.timed("wait", self.TICKET, lambda: ticket.wait(self.TICKET))
                one, ended = Published(rows, handle, "", losses), "published"
            except waymark.PutFailedError as error:
                one, ended = Published(rows, error.handle, "put failed", losses), "put failed"
            except waymark.DeadlineExceededError:
                one, ended = None, "no handle by the deadline"
            with self.lock:
                self.outcome.calls[ended] += 1
                if one:
                    self.published.append(one)
            time.sleep(0.005)

    def fetch(self, stop: threading.Event, seed: int) -> None:
        rng, source = random.Random(seed), self.store.source()
        while not stop.is_set():
            with self.lock:
                one = rng.choice(self.published) if self.published else None
            if one:
                self.compare(one, *self.get(source, one))
            else:
                time.sleep(0.001)

    def get(self, source: Any, one: Published, timeout: float = FETCH) -> Any:
        fetcher = waymark.Fetcher(source)  # has nothing yet
        return self.timed("fetch", timeout, lambda: fetcher.fetch_with_report(one.handle, timeout=timeout))

    def compare(self, one: Published, got: waymark.Rows, report: waymark.FetchReport) -> int:
        """Counts the rows, and returns how many are missing."""
        ids, infos, reasons = got.ids.copy(), got.infos, got.reasons.copy()
        if self.plant == "wrong":
            ids[0, 0, 0] ^= 1
        if self.plant == "unexplained":
            reasons[0], report = waymark.Reason.CAPACITY, report._replace(absent=0, damaged=0, source_status=0)
        same = (infos == one.rows.infos) & (ids == one.rows.ids).all(axis=(1, 2)) & (reasons == one.rows.reasons)
        lost = ~same & (reasons == waymark.Reason.CAPACITY)
        cause = ""
        if report.source_status:
            cause = {4: "timeout", 14: "unreachable"}.get(report.source_status, f"status {report.source_status}")
        elif report.damaged:
            cause = "damaged"
        elif report.absent and one.put_failed:
            cause = "absent: its put failed"
        elif report.absent and self.store.losses > one.losses:
            cause = "absent: lost with the store"
        with self.lock:
            self.outcome.right += int(same.sum())
            self.outcome.wrong += int((~same & ~lost).sum())
            if lost.any():
                self.outcome.missing[cause or "unexplained"] += int(lost.sum())
            if lost.any() and not cause:
                self.outcome.failures.append(f"{int(lost.sum())} rows are missing without a cause: {report}")
            self.outcome.calls["fetched" if not lost.any() else "fetched with missing rows"] += 1
        return int(lost.sum())

    def afterwards(self, seed: int) -> None:
        """The store works again: what is published now is fetched whole."""
        source, rows = self.store.source(), self.rows(seed)
        try:
            handle = waymark.Publisher(source, rows.shape).publish(rows).wait(20)
        except waymark.WaymarkError as error:
            self.outcome.failures.append(f"the store does not work afterwards: {error}")
            return
        one = Published(rows, handle, "", self.store.losses)
        if self.compare(one, *self.get(source, one, 20)):
            self.outcome.failures.append("rows are missing afterwards")


class ByKey(Client):
    """Two engines with a tier: one computes blocks and seals them, the other has their KV from elsewhere."""

    name = "by key"
    BLOCKS, TOKENS, TIMEOUT, SKIP = 64, 32, 0.25, 0.5
    SHAPE = dict(num_layers=16, top_k=8, num_experts=256)

    def round(self, stop: threading.Event) -> Outcome:
        self.computed: list[tuple[int, int]] = []  # number of the block, losses of the store then
        self.outcome, self.lock = Outcome(), threading.Lock()
        self.number = self.rng.randrange(1 << 40)
        with self.capture() as first, self.capture() as second:
            computes = threading.Thread(target=self.compute, args=(first, stop))
            computes.start()
            rng = random.Random(self.rng.random())
            while not stop.is_set():
                if self.computed:
                    self.look(first, second, *rng.choice(self.computed[-200:]))
            computes.join()
            self.afterwards(first, second)
        return self.outcome

    def capture(self) -> waymark.Capture:
        tier = waymark.Tier(self.store.source(), self.store.source(), space="test", timeout=self.TIMEOUT, skip=self.SKIP, put_timeout=0.4)
        made = waymark.Capture(**self.SHAPE, num_blocks=self.BLOCKS, block_tokens=self.TOKENS, tier=tier)
        made.name_weights(1, "w")
        return made

    @staticmethod
    def key(number: int) -> bytes:
        return hashlib.sha256(b"%d" % number).digest()

    def ids(self, number: int) -> Any:
        first = np.random.default_rng(number).integers(0, 256, (self.TOKENS, 16, 1))
        return ((first + 31 * np.arange(8)) % 256).astype(np.int16)

    def compute(self, first: waymark.Capture, stop: threading.Event) -> None:
        while not stop.is_set():
            self.block(first)
            time.sleep(0.002)

    def block(self, first: waymark.Capture) -> None:
        self.number += 1
        block, losses = [self.number % self.BLOCKS], self.store.losses
        first.bind(block)
        first.seal(block, [self.key(self.number)])
        first.step(None, 1, waymark.slots_of(block, self.TOKENS, 0, self.TOKENS), self.ids(self.number))
        first.release(block)
        first.wait_idle()
        self.computed.append((self.number, losses))

    def look(self, first: waymark.Capture, second: waymark.Capture, number: int, losses: int) -> int:
        """Counts the rows of a block, and returns how many are missing."""
        second.bind([1], [self.key(number)])
        begin, waited = time.monotonic(), CONTROL.waited()
        before = first.tier_stats()  # what waits now may be put when the take is over
        rows = second.take([1], self.TOKENS, last_step=1 << 60, keys=[self.key(number)], version=1).result(20)
        put = first.tier_stats()
        second.release([1])
        if self.plant == "late":
            time.sleep(1.5 * MARGIN + self.TIMEOUT)
        self.outcome.took("take", time.monotonic() - begin - self.TIMEOUT, CONTROL.waited() - waited)
        right = (rows.ids == self.ids(number)).all(axis=(1, 2)) & rows.valid
        if self.plant == "wrong":
            right[0] = False
        for run in rows.coverage():
            if run.valid:
                continue
            cause, why = run.cause, str(run.cause)
            if cause == waymark.Cause.ABSENT:
                failed, lost = put.pages_failed + put.pages_dropped, self.store.losses > losses
                waits = before.pages_sealed > before.pages_put + before.pages_held + before.pages_failed + before.pages_dropped
                why = "absent: lost with the store" if lost else "absent: not put" if failed else "absent: not put yet" if waits else "unexplained"
            if self.plant == "unexplained":
                why = "unexplained"
            self.outcome.missing[why] += run.end - run.begin
            if why == "unexplained" or run.reason != waymark.Reason.CAPACITY or not cause:
                self.outcome.failures.append(f"rows are missing without a cause: {run.why}")
        self.outcome.right += int(right.sum())
        self.outcome.wrong += int((rows.valid & ~right).sum())
        self.outcome.calls["found" if rows.valid.all() else "not all found"] += 1
        return int((~rows.valid).sum())

    def afterwards(self, first: waymark.Capture, second: waymark.Capture) -> None:
        time.sleep(2 * self.SKIP)
        for _ in range(20):  # the connections have a back-off
            self.block(first)
            if not self.look(first, second, *self.computed[-1]):
                return
            time.sleep(self.SKIP)
        self.outcome.failures.append("rows are missing afterwards")


# ---- rounds


class Control(threading.Thread):
    """Sleeps for moments, and so learns for how long other processes had the cores (or other threads the GIL)."""

    MOMENT = 0.005

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.total, self.woke = 0.0, time.monotonic()
        self.start()

    def run(self) -> None:
        while True:
            time.sleep(self.MOMENT)
            now = time.monotonic()
            self.total, self.woke = self.total + max(0.0, now - self.woke - self.MOMENT), now

    def waited(self) -> float:
        """Seconds since the start that it was kept from running."""
        return self.total + max(0.0, time.monotonic() - self.woke - self.MOMENT)


CONTROL = Control()


def one_round(store: Store, client: Client, fault: str, rng: random.Random) -> Outcome:
    store.clear()
    begin, end = FAULTS[fault]
    moments = [rng.uniform(0.05, 0.3), rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.2)]
    stop, errors = threading.Event(), []

    def inject() -> None:
        try:
            time.sleep(moments[0])
            getattr(store, begin)()
            try:
                time.sleep(moments[1])
            finally:
                getattr(store, end)()
            time.sleep(moments[2])
        except BaseException as error:
            errors.append(f"{begin} or {end}: {error!r} {getattr(error, 'stderr', '')}")
        finally:
            stop.set()

    injector = threading.Thread(target=inject)
    injector.start()
    try:
        outcome = client.round(stop)
    finally:
        injector.join()
    outcome.failures += errors
    for call, (seconds, alone) in outcome.late.items():
        if alone > MARGIN:
            outcome.failures.append(f"{call} took {seconds:.3f} s more than its deadline, {alone:.3f} s without the machine's waits")
    return outcome


def line_of(store: str, client: str, fault: str, total: Outcome) -> str:
    missing = ", ".join(f"{count:,} {cause}" for cause, count in sorted(total.missing.items())) or "0"
    calls = ", ".join(f"{count:,} {how}" for how, count in sorted(total.calls.items()))
    late, alone = (max(seconds[i] for seconds in total.late.values()) for i in (0, 1))
    times = f"{late * 1000:+.0f} ms; {alone * 1000:+.0f} ms"
    return f"| {store} {fault}, {client} | {total.right:,} | {total.wrong} | {missing} | {calls} | {times} |"


def main() -> int:
    stores = {store.name: store for store in (Redis, Folder)}
    clients = {client.name: client for client in (Handles, ByKey)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--store", choices=stores)
    parser.add_argument("--client", choices=clients)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plant", choices=("wrong", "late", "unexplained"), default="")
    options = parser.parse_args()
    here = [one for name, one in stores.items() if options.store in (None, name)]
    for one in here:
        if why := one.missing():
            print(f"{one.name} is left out: {why}", file=sys.stderr)
    here = [one for one in here if not one.missing()]
    if not here:
        return SKIPPED
    import logging

    logging.getLogger("waymark").setLevel(logging.ERROR)
    print(f"seed {options.seed}, {options.rounds} rounds each", file=sys.stderr)
    print("| fault, client | right | wrong | missing | calls | longest beyond its deadline; without the machine's waits |\n|---|---|---|---|---|---|", flush=True)
    failures, figures = 0, []
    for make in here:
        store = make()
        try:
            store.start()
            for client in [one for name, one in clients.items() if options.client in (None, name)]:
                for fault in [name for name in FAULTS if options.fault in (None, name)]:
                    rng = random.Random(f"{options.seed} {store.name} {client.name} {fault}")
                    total = Outcome()
                    for _ in range(options.rounds):
                        total.add(one_round(store, client(store, rng, options.plant), fault, rng))
                    if not total.missing and not set(total.calls) - {"published", "fetched", "found"}:
                        total.failures.append("the fault cost nothing: it was not there")
                    print(line_of(store.name, client.name, fault, total), flush=True)
                    for failure in collections.Counter(total.failures).most_common(5):
                        print(f"FAILED {failure[1]} times: {failure[0]}", file=sys.stderr)
                    failures += total.wrong + len(total.failures)
                    figures.append({"store": store.name, "client": client.name, "fault": fault, **vars(total)})
        finally:
            store.stop()
    if options.json:
        print(json.dumps({"seed": options.seed, "rounds": options.rounds, "faults": figures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
