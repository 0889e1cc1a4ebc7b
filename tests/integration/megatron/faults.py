"""Leaves out one hook of waymark.megatron, to see that the comparison or a counter notices.

`install` patches waymark.megatron before an engine is attached; Waymark's own code knows nothing of it. What a fault
patches has to be there. `did_something` tells whether it was reached: a fault that did nothing proves nothing.
"""
# Methods that are not wrapped: the scenario in which it has to be noticed.
HOOKS = {
    "allocate_memory_blocks": "lru", "release_memory_blocks": "few_pages", "register_kv_block_hashes": "noisy",
    "reconstruct_routing_from_blocks": "context_only",
    "_compute_prefix_match": "lru", "add_request": "lru", "release_memory_blocks_from_request_indexes": "lru",
    "evict_overflow_paused_requests": "new_weights", "deallocate_inference_state_buffers": "new_weights_suspend",
    "get_routing_indices": "static_buffers_mtp", "enable_static_buffer_recording": "static_buffers",
    "post_process_requests": "lru",
}
# retain_memory_blocks is of main only. Without store_routing_per_block Megatron's own writes to block_routing, which is not
# its own then, and the engine ends: the fault `step` is in its place.
# That the allocator's reset is not told is not noticed. Blocks that it takes from their users would stay in use for the
# store, and keep their pages; but the allocator begins again with these very blocks, and to bind them ends all that. Tried
# with RECOMPUTE, 15 to 104 blocks in use at a reset, and pages for 150 and 200 of 399 blocks: the same rows came back.
# That Megatron has failed a request, and that the engine or the context is reset, is not noticed by a row either, because a
# request goes on only with its own tokens: the rows of one that is gone stay in memory.
# That KV of two versions of the weights keeps its key is not noticed: the store does not ask for lost rows of a block into
# which steps of two versions wrote. tests/python/adapters/test_megatron_tier.py has it.
# No scenario has a forward that throws.
NOT_LEFT_OUT = ("retain_memory_blocks", "store_routing_per_block", "reset", "_handle_failed_request", "_dynamic_step_forward_logits")
FAULTS = {
    "step": "lru",              # no step is told
    "weights": "new_weights",   # new weights are not followed
    "keep_running": "new_weights",  # the rows so far of running requests are not kept when weights change
    "older_hits": "older_hits",     # nor those that a request hits
    "lend": "suspend_recompute",    # the arrays that a resume makes are not looked at
    "keys": "tier_attach",       # blocks get no keys
    "layer": "lru",             # the last router records nothing after 100 forwards
    "layer_buffer": "static_buffers",  # the same, with the buffers of CUDA graphs
} | HOOKS
_did = []


def did_something():
    return bool(_did)


def did():
    _did.append(True)


def nothing(*args, **more):
    did()


def install(fault):
    from waymark.megatron import _attached, _hooks, _versions
    Attached = _attached.Attached
    if fault in HOOKS:
        wrap = _hooks.Hooks.wrap

        def without(self, owner, name, hook, reads):
            if name == fault:
                did()
            else:
                wrap(self, owner, name, hook, reads)

        _hooks.Hooks.wrap = without
    elif fault == "step":
        replace(Attached, "_end_forward", nothing)
    elif fault == "weights":
        replace(Attached, "_follow_weights", nothing)
    elif fault in ("keep_running", "older_hits"):
        keep = Attached._keep_running

        def keep_running(self, indexes):
            if isinstance(indexes, range) == (fault == "keep_running"):
                did()
            else:
                keep(self, indexes)

        replace(Attached, "_keep_running", keep_running)
    elif fault == "lend":
        pairs = _versions.Tokens.pairs

        def once(self):
            if self._lent is None:
                return pairs(self)
            did()
            return self._pairs

        replace(_versions.Tokens, "pairs", once)
    elif fault == "keys":
        from waymark.megatron import _keys
        replace(_keys.Keys, "admit", nothing)
    elif fault in ("layer", "layer_buffer"):
        import megatron_engine
        route, forwards = megatron_engine.Router.route, []

        def route_but_the_last(self, ids, context=None):
            if self.layer_number == 5:
                forwards.append(self)
                if len(forwards) > 100:
                    return did()
            return route(self, ids, context)

        replace(megatron_engine.Router, "route", route_but_the_last)
    else:
        raise ValueError(f"no fault {fault!r}")


def replace(owner, name, value):
    """Replaces a function. AttributeError if it is not there."""
    getattr(owner, name)
    setattr(owner, name, value)
