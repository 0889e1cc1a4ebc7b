"""What is refused, by its name, before the first request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from .. import _hooks, _options
from .._hooks import module

VERSION = "0.5.23"  # that was run
SWITCH, OPTIONS = "WAYMARK_SGLANG", "WAYMARK_SGLANG_OPTIONS"
_MEM = "sglang.srt.mem_cache."
ALLOCATORS = (
    _MEM + "allocator.token.TokenToKVPoolAllocator",
    _MEM + "allocator.paged.PagedTokenToKVPoolAllocator",
)
CONTROLLER = _MEM + "hybrid_cache.hybrid_cache_controller.HybridCacheController"
# Of ServerArgs: modes whose rows no test has compared, and the values without them.
MODES = {"tp_size": 1, "dp_size": 1, "enable_dp_attention": False, "pp_size": 1, "dcp_size": 1,
         "attn_cp_size": 1, "speculative_algorithm": None, "disaggregation_mode": "null",
         "dllm_algorithm": None, "ep_num_redundant_experts": 0, "enable_eplb": False,
         "enable_hisparse": False, "enable_two_batch_overlap": False,
         "enable_single_batch_overlap": False, "enable_pdmux": False}  # fmt: skip


class Refused(SystemExit):
    """SGLang only logs what a plugin raises, but for this: the process ends, and says why."""


def options() -> dict[str, Any] | None:
    """Arguments of Capture that the user gives; None: it is switched off. Refused if they are
    wrong, or SGLang is another version."""
    text = os.environ.get(OPTIONS, "") or "{}"
    try:
        if not _options.switched(SWITCH, os.environ.get(SWITCH, "")):
            return None
        given = json.loads(text)
        if not isinstance(given, dict):
            raise _options.refused(OPTIONS, "arguments of Capture, in JSON", text)
        _options.check(OPTIONS, {"tier": "", "store": given})
    except json.JSONDecodeError as error:
        raise Refused(str(_options.refused(OPTIONS, str(error), text))) from None
    except _hooks.Refused as error:
        raise Refused(str(error)) from None
    if (found := module("sglang").__version__) != VERSION:
        raise Refused(f"waymark: sglang {found} is refused: {VERSION} is served")
    return given


def check(scheduler: Any) -> None:
    """Refused if an engine of this scheduler cannot be captured."""
    for what, refused, why in _refused(scheduler):
        if refused:
            raise Refused(f"waymark: {what} is refused: {why}")


def _name(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"


def _refused(scheduler: Any) -> Iterator[tuple[str, bool, str]]:
    registry = module("sglang.srt.plugins.hook_registry").HookRegistry
    for target, hooks in registry._hooks.items():
        ours = any(hook.__module__.startswith(str(__package__)) for _, hook, _ in hooks)
        applied = target in registry._patched
        yield f"a hook of {target}", ours and not applied, "SGLang did not apply it"
    allocator = scheduler.token_to_kv_pool_allocator
    yield (f"allocator {_name(allocator)}", _name(allocator) not in ALLOCATORS,
           "how it allocates slots is not known")  # fmt: skip
    controller = getattr(scheduler.tree_cache, "cache_controller", None)
    yield (f"cache controller {_name(controller)}",
           controller is not None and _name(controller) != CONTROLLER,
           "how it moves KV is not known")  # fmt: skip
    for name, value in MODES.items():
        found = getattr(scheduler.server_args, name)
        yield f"{name}={found}", found != value, "its rows were never compared"
