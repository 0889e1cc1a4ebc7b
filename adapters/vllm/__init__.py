"""Captures vLLM's routing, without a change to vLLM.

    WAYMARK_VLLM=1 vllm serve ...

or ``--additional-config '{"waymark": true}'``. Then ``outputs[i].routed_experts`` of a finished
request has the expert ids of all its tokens but the last, [tokens - 1, layers, K], and
``outputs[i].waymark`` says what they are (Coverage). A request with
``SamplingParams(extra_args={"waymark": False})`` has neither.

vLLM calls register(), the entry point ``waymark`` of ``vllm.general_plugins``, in every process.
Importing this imports nothing of torch or vLLM.
"""

from .._coverage import Coverage
from ._hooks import forget_times, hook_times
from ._options import Options
from ._plugin import register, worker_report

__all__ = ["Coverage", "Options", "forget_times", "hook_times", "register", "worker_report"]
