"""Expert ids that a device writes: told to a store late, in order; the engine does not wait.

    memory = late.Memory(late.Cuda(0), max_rows, layers, top_k)   # before graphs are captured
    routers write memory.buffer[row, layer]                       # in eager forwards and in graphs
    ids = late.LateIds(memory, store, seconds)                    # its thread tells the store

    ids.begin()                                                   # before the forward of a step
    forward()
    ids.issued(slots, rows, tell)                                 # behind it; slots: on the device

For engines in Python whose device alone knows ids and slots. Cuda alone imports torch.
"""

from ._device import Cuda
from ._late_ids import LateIds, Memory, Tell

__all__ = ["Cuda", "LateIds", "Memory", "Tell"]
