"""Lets Megatron's inference run where there is no CUDA device. Import it before megatron.

Nothing of Megatron is changed: torch.cuda gets a device that is the CPU, events and streams that do nothing, and memory
is not pinned. With a CUDA device nothing is done.
"""
import contextlib

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def host(tensor):
    """Its values, as an array."""
    return tensor.cpu().numpy()


class _Event:
    def __init__(self, *args, **more): ...
    def record(self, *args): ...
    def synchronize(self): ...
    def wait(self, *args): ...
    def query(self): return True
    def elapsed_time(self, other): return 0.0


class _Stream:
    cuda_stream = 0

    def __init__(self, *args, **more): ...
    def synchronize(self): ...
    def wait_stream(self, other): ...
    def wait_event(self, event): ...
    def record_event(self, event=None): return event or _Event()


class NoStates:
    """In place of Megatron's tracker of the random states of CUDA devices."""
    def add(self, *args): ...
    def reset(self): ...
    def get_states(self): return {}
    def set_states(self, states): ...
    def is_initialized(self): return True
    def fork(self, *args, **more): return contextlib.nullcontext()


def _on_the_host(make):
    """A function that makes a tensor, in host memory whatever device is asked for."""
    def call(*args, **more):
        more.pop("pin_memory", None)
        if str(more.get("device", "")).startswith("cuda"):
            more["device"] = "cpu"
        return make(*args, **more)

    return call


def nothing(value=None):
    return lambda *args, **more: value


def install():
    if torch.cuda.is_available():
        return
    cpu = torch.device("cpu")
    memory = {f"{kind}_bytes.all.current": 0 for kind in ("allocated", "reserved")}
    replaced = dict(
        Event=_Event, Stream=_Stream, current_device=nothing(cpu), set_device=nothing(), device_count=nothing(0),
        current_stream=lambda *args, **more: _Stream(), default_stream=lambda *args, **more: _Stream(),
        stream=lambda *args: contextlib.nullcontext(), synchronize=nothing(), empty_cache=nothing(),
        is_current_stream_capturing=nothing(False), memory_allocated=nothing(0), max_memory_allocated=nothing(0),
        memory_reserved=nothing(0), mem_get_info=nothing((1 << 30, 1 << 30)), memory_stats=nothing(memory),
        get_device_capability=nothing((0, 0)))
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = nothing()
    for name in ("empty", "full", "zeros", "ones", "tensor", "arange", "empty_like", "zeros_like", "as_tensor"):
        setattr(torch, name, _on_the_host(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args: self
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **more: self


install()
