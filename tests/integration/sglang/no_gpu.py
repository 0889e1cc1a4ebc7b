"""Lets a whole SGLang 0.5.23 run where there is no GPU, with PyPI's packages alone. A plugin of SGLang, which each of its
processes loads (entry_point/). Leave SGLANG_USE_CPU_ENGINE unset: it makes SGLang import CPU kernels that PyPI has not.
"""
import sys
import types


def copy_layers(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """What the kernel `transfer_kv_direct` does: KV of tokens from a pool to another."""
    for src, dst in zip(src_layers, dst_layers):
        dst[dst_indices.cpu()] = src[src_indices.cpu()]


def install():
    import torch
    if torch.cuda.is_available():
        return
    package, operations = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    operations.rotary_embedding = None  # is imported, and not called
    package._custom_ops = operations
    sys.modules.setdefault("vllm", package)
    sys.modules.setdefault("vllm._custom_ops", operations)
    from sglang.srt.mem_cache.pool_host import common, mha, mla
    common._cuda_host_register = common._cuda_host_unregister = lambda *args, **more: None
    for module in (mha, mla):
        module.transfer_kv_direct = copy_layers
    torch.cpu.Stream.synchronize = lambda self: None
    page = mha.MHATokenToKVPoolHost.get_dummy_flat_data_page

    def not_pinned(pool):
        pool.pin_memory = False
        return page(pool)

    mha.MHATokenToKVPoolHost.get_dummy_flat_data_page = not_pinned
