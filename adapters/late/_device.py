"""The device whose ids come late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._hooks import module


class Cuda:
    """A GPU, by torch. What has these methods may be in its place, as in tests."""

    def __init__(self, index: int) -> None:
        self._torch = torch = module("torch")
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)

    def memory(self, shape: tuple[int, ...], dtype: str, pinned: bool = False) -> Any:
        """A tensor on the device, or in host memory that it copies to. The engine's thread."""
        torch = self._torch
        where = {"pin_memory": True} if pinned else {"device": self._device}
        # A tensor that inference mode makes could not be written outside of it.
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=getattr(torch, dtype), **where)

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        """Copies (host, device) of each pair, behind what the device was given so far; neither the
        caller nor what comes later waits for it. Returns an event. The engine's thread."""
        torch = self._torch
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        event = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            for host, source in pairs:
                host.copy_(source, non_blocking=True)
            event.record(self._stream)
        return event

    def done(self, event: Any) -> bool:
        """Whether the copies of an event are done. Raises if the device has failed. The thread that
        waits."""
        return bool(event.query())

    def enter_thread(self) -> None:
        """The first call of the thread that waits."""
        # A fresh thread is on GPU 0, and would make a context there.
        self._torch.cuda.set_device(self._device)
