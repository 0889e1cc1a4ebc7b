"""Triton on the CPU, as far as vLLM's model runner V2 needs it: Triton's own interpreter runs the kernels.

vLLM asks Triton for a backend with the name "cpu", which PyPI's Triton has not. install() adds an empty one to its list,
and mends what stands in the way when a module has been imported; nothing is imported by install() itself.
"""
import importlib.abc
import importlib.util
import os
import sys


def add_backend(backends):
    """Of this one vLLM reads only that it is there: kernels are interpreted, and never compiled."""
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.backends.driver import DriverBase

    class Driver(DriverBase):
        @classmethod
        def is_active(cls):
            return True

        def get_current_target(self):
            return GPUTarget("cpu", 0, 0)

        def get_active_torch_device(self):
            import torch
            return torch.device("cpu")

        def get_current_device(self):
            return 0

        def get_benchmarker(self):
            raise NotImplementedError("kernels are interpreted")

        map_python_to_cpp_type = get_benchmarker

    backends.backends["cpu"] = backends.Backend(BaseBackend, Driver)


def patch_language_once(interpreter):
    """The interpreter replaces the functions of triton.language at every launch and puts them back, which takes longer
    than most kernels here. Nobody compiles, so that they may stay replaced."""
    patch, patched = interpreter._patch_lang, {}

    class Kept:
        def restore(self):
            pass

    def once(function):
        modules = frozenset(id(value) for value in function.__globals__.values() if value in (interpreter.tl, interpreter.tl.core))
        if modules not in patched:
            patched[modules] = patch(function)
        return Kept()

    interpreter._patch_lang = once


def own_kernels(interpreter):
    patch_language_once(interpreter)
    import kernels
    kernels.install(interpreter.InterpretedFunction)


def sort_for_top_k(sampler):
    """The kernel for top-k and top-p converts what is a plain number in the interpreter. vLLM has it in torch, too."""
    def sort(logits, k, p, *args, **more):
        return sampler.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    sampler.apply_top_k_top_p_triton = sort


AFTER = {"triton.backends": add_backend, "triton.runtime.interpreter": own_kernels,
         "vllm.v1.sample.ops.topk_topp_sampler": sort_for_top_k}


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function of AFTER when its module has been executed."""

    def __init__(self):
        self.left = dict(AFTER)

    def find_spec(self, name, path, target=None):
        if name not in self.left:
            return None
        change = self.left.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            change(module)

        spec.loader.exec_module = executed
        return spec


def install():
    os.environ["TRITON_INTERPRET"] = "1"
    sys.meta_path.insert(0, Finder())
