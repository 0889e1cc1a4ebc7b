"""Leaves out one hook of waymark.megatron."""
FAULTS = {}


def install(fault):
    raise ValueError(f"no fault {fault!r}")
