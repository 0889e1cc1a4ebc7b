"""A Redis server of the test's own, in which engines find rows by key."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

# Debian's redis-tools has the program under the second name alone; by its first word it knows what it is to be.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")


class Store:
    """The server's process."""

    def __init__(self):
        if PROGRAM is None:
            raise SystemExit("Error: no redis-server here (Debian: redis-tools)")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", tempfile.gettempdir()]
        self.process = subprocess.Popen(words, executable=PROGRAM, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not self.answers() and time.monotonic() < end:
            time.sleep(0.02)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as to:
                to.sendall(b"PING\r\n")
                return to.recv(1 << 16).startswith(b"+")
        except OSError:
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()


def environment(scenario):
    """The store of a scenario whose engines have a tier, or None. Sets the plugin's options in this process. Weights have a
    name, so that all engines of a test find the rows."""
    if not scenario.tier or "WAYMARK_TEST_ROLE" in os.environ:
        return None
    store = Store()
    tier = {"url": f"redis://127.0.0.1:{store.port}/0?prefix=test:", "weights": "the first", "timeout": 2.0}
    os.environ["WAYMARK_TEST_OPTIONS"] = json.dumps({"reasons": True, "tier": tier})
    return store
