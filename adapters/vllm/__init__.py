"""Captures vLLM's routing, without a change to vLLM.

    WAYMARK_VLLM=1 vllm serve ...

or ``--additional-config '{"waymark": true}'``. Then ``outputs[i].routed_experts`` of a finished
request has the expert ids of all its tokens but the last, [tokens - 1, layers, K]; rows that are
missing are below 0, and coverage() says why. A request with
``SamplingParams(extra_args={"waymark": False})`` has none.

vLLM calls register(), the entry point ``waymark`` of ``vllm.general_plugins``, in every process.
Importing this imports nothing of torch or vLLM.
"""

from .._signed import Run, coverage
from ._options import Options
from ._plugin import register

__all__ = ["Options", "Run", "coverage", "register"]
