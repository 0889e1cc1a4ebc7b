"""A Redis server of the test's own, in which an engine publishes rows, and what handles name there."""
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

# Debian's redis-tools has the program under the second name alone; by its first word it knows what it is to be.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")
SECONDS = 1.0  # that an output waits for its publication


class Store:
    """The server, and a Fetcher. Its process may be killed, stopped, or made full."""

    def __init__(self, tiered=False, port=None):
        """tiered: rows by key are there, too. port: of a server that runs."""
        if PROGRAM is None:
            raise SystemExit("Error: no redis-server here (Debian: redis-tools)")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = port or free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0?prefix=test:"
        self.tiered, self.fetcher, self.process, self.by_key = tiered, None, None, 0
        if port is None:
            self.start()

    def start(self, *more):
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", tempfile.gettempdir()]
        self.process = subprocess.Popen([*words, *more], executable=PROGRAM, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not self.command("PING").startswith(b"+") and time.monotonic() < end:
            time.sleep(0.02)

    def command(self, *words):
        """Its answer; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as to:
                to.sendall((" ".join(words) + "\r\n").encode())
                return to.recv(1 << 16)
        except OSError:
            return b""

    def stop(self, what=signal.SIGKILL):
        if self.process is None:
            return
        self.process.send_signal(what)
        if what == signal.SIGKILL:
            self.process.wait()

    def options(self, publishes=True, **more):
        """Those of the plugin, in JSON. Weights have a name, so that all engines of a test find the rows."""
        publish = {"publish": self.url, "publish_seconds": SECONDS} if publishes else {}
        tier = {"tier": {"url": self.url, "weights": "the first", "timeout": 2.0}} if self.tiered else {}
        return json.dumps(publish | tier | more)

    def rows(self, handle, count):
        """The first `count` rows that a handle names: (int16 [rows, layers, top_k], why each is missing or None)."""
        import waymark
        from waymark._source_url import source_of
        if self.fetcher is None:
            tier = waymark.Tier(source_of(self.url), timeout=2.0) if self.tiered else None
            self.fetcher = waymark.Fetcher(source_of(self.url), tier=tier)
        if count > waymark.Handle(handle).rows:
            return None, "the handle names fewer rows"
        rows = self.fetcher.fetch(bytes(handle), 0, count, timeout=SECONDS + 2.0)
        self.by_key += int((rows.valid & (rows.infos["provenance"] == waymark.Provenance.BY_KEY)).sum())
        reasons = [waymark.Reason(reason).name.lower() if reason else None for reason in rows.reasons]
        return rows.astype("int16"), reasons


def handle_in(params):
    """The handle beside what a KV connector says, or None."""
    return base64.b64decode(params["waymark"]) if params and "waymark" in params else None


def environment(scenario):
    """The store of a scenario whose engine publishes or has a tier, or None. Sets the plugin's options in this process."""
    if not (scenario.publishes or scenario.tier):
        return None
    if "WAYMARK_TEST_ROLE" in os.environ:
        return Store(scenario.tier, int(os.environ["WAYMARK_TEST_STORE"])) if scenario.publishes else None
    store = Store(scenario.tier)
    os.environ |= {"WAYMARK_VLLM_OPTIONS": store.options(scenario.publishes), "WAYMARK_TEST_STORE": str(store.port)}
    return store
