"""What the library logs goes to ``logging.getLogger("waymark")``, by a thread of its own."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time

from . import _core

_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR}
_MOST, _SECONDS = 20, 10.0  # lines in so many seconds

_lock = threading.Lock()
_thread: threading.Thread | None = None
_ended = False


def start() -> None:
    """Called when something that logs is made."""
    global _thread
    with _lock:
        if not _ended and (_thread is None or not _thread.is_alive()):
            _thread = threading.Thread(target=_run, name="waymark-log", daemon=True)
            _thread.start()


def _run() -> None:
    logger = logging.getLogger("waymark")
    begun, count, left_out = 0.0, 0, 0
    while (found := _core._wait_log()) is not None:
        lines, lost = found
        for level, text in lines:
            if not logger.isEnabledFor(_LEVELS[level]):
                continue
            if time.monotonic() - begun > _SECONDS:
                begun, count = time.monotonic(), 0
            count += 1
            if count > _MOST:
                left_out += 1
                continue
            if left_out:
                logger.warning("waymark: %d lines were left out", left_out)
                left_out = 0
            logger.log(_LEVELS[level], "waymark: %s", text)
        left_out += lost
    if left_out:
        logger.warning("waymark: %d lines were left out", left_out)


@atexit.register
def _end() -> None:
    """No thread may be in Python when the interpreter ends."""
    global _ended
    with _lock:
        _ended = True
    if _thread is not None:
        _core._end_log()
        _thread.join(5)


def _forked() -> None:
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _core._forked_log()


os.register_at_fork(after_in_child=_forked)
