"""Captures SGLang's routing, without a change to SGLang.

    WAYMARK_SGLANG=1 python -m sglang.launch_server --enable-return-routed-experts ...

SGLang captures on its device and copies to the host; the rows that `meta_info["routed_experts"]`
returns come from Waymark's store in the place of SGLang's host table. ``meta_info["waymark"]`` says
which rows are missing (-1) and why, and which weights chose each.

SGLang calls register(), the entry point ``waymark`` of ``sglang.srt.plugins``, in every process.
Importing this imports nothing of torch or SGLang.
"""

from ._plugin import register

__all__ = ["register"]
