"""Python page sources in a process of their own."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from ._errors import InvalidArgumentError
from ._fetching import RedisSource

__all__ = ["ProcessSource"]

_START = """
import json, sys
config = json.load(open(sys.argv[1] + "/config"))
sys.path[:] = config.pop("path")
from waymark._source_server import serve
serve(sys.argv[1], **config)
"""
_VALUES_BYTES = 1 << 26  # for large values, half of it a put; what exceeds it is sent
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds between the end of a process and the next


class ProcessSource(RedisSource):
    """A page source of your own (PageSource) that lives in a process of its own, so that none of
    its Python runs in this process and takes the GIL. Any thread; calls take turns.

    The process makes ``factory(**options)`` and calls its methods on one thread. A call that takes
    longer than ``timeout`` fails, as do, at once, those that follow before it has returned; if it
    takes ten times as long, the process ends. A process that ended is started again, which is
    logged; until then calls fail. It ends with this process, or when nothing uses the source any
    more."""

    __slots__ = ("_values_file",)

    def __init__(
        self,
        factory: str,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: float = 5.0,
        start_timeout: float = 30.0,
    ) -> None:
        """factory: ``"module:function"``, imported by the other process, with this one's sys.path.
        options: its keyword arguments, as JSON. timeout: seconds that a call may take, besides the
        deadline of the caller, of which the methods know nothing. start_timeout: seconds to wait
        until the process serves; it goes on starting after that. UnimplementedError if the library
        was built without hiredis."""
        module, _, name = factory.partition(":")
        if not (module and name):
            raise InvalidArgumentError(f"factory: 'module:function', got {factory!r}")
        if not timeout > 0:
            raise InvalidArgumentError(f"timeout: above 0 s, got {timeout}")
        values = self._values_file = os.memfd_create("waymark_source")
        config = {"factory": factory, "options": dict(options or {}), "timeout": timeout,
                  "values_file": values,
                  "path": [path for path in sys.path if isinstance(path, str)]}  # fmt: skip
        folder = ""
        try:
            text = json.dumps(config)
            os.truncate(values, _VALUES_BYTES)
            folder = tempfile.mkdtemp(prefix="waymark_source_")  # for this user alone
            socket = os.path.join(folder, "socket")
            super().__init__(
                unix_socket=socket, key_prefix="", command_timeout=timeout + 1, max_back_off=0.5
            )
            with open(os.path.join(folder, "config"), "w") as file:
                file.write(text)
        except BaseException:
            os.close(values)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._where = repr(factory)
        told, tell = os.pipe()
        self._close_with(tell)
        started = threading.Event()
        threading.Thread(
            target=_keep, args=(factory, folder, values, told, started), name="waymark-process",
            daemon=True,
        ).start()  # fmt: skip
        end = time.monotonic() + start_timeout
        while not started.is_set() and not os.path.exists(socket) and time.monotonic() < end:
            time.sleep(0.005)


def _keep(factory: str, folder: str, values: int, told: int, ended: threading.Event) -> None:
    """Keeps a process running until the other end of ``told`` is closed. Sets ``ended`` if one has
    ended."""
    delay = _FIRST_DELAY
    gone = select.poll()
    gone.register(told, 0)
    while not gone.poll(0):
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", _START, folder], stdin=told, pass_fds=[values]
        )
        end = os.pidfd_open(process.pid)
        either = select.poll()
        either.register(told, 0)
        either.register(end, select.POLLIN)
        either.poll()
        os.close(end)
        if gone.poll(0):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait()
        ended.set()
        if time.monotonic() - begun > _LONGEST_DELAY:
            delay = _FIRST_DELAY
        if not gone.poll(0):
            logging.getLogger("waymark").warning(
                "waymark: the process of source %s has ended (%d); it is started again in %.1f s",
                factory, code, delay,
            )  # fmt: skip
            gone.poll(int(delay * 1000))
            delay = min(2 * delay, _LONGEST_DELAY)
    shutil.rmtree(folder, ignore_errors=True)
    os.close(values)
    os.close(told)
