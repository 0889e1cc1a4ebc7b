"""Imports single modules of trainers, as they are, without what else their packages want installed.

A trainer is in a folder of WAYMARK_TRAINERS (doors_setup makes it). Packages on the way to a module are taken without
their __init__, and what is named in STUBS does nothing: no module that a test calls a function of is among them.
"""
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import pathlib
import sys
import types
import warnings
from unittest import mock

import torch

FOLDERS = {"verl": "verl", "skyrl": "skyrl", "areal": "areal", "slime": "slime", "miles": "miles", "prime-rl": "prime-rl/src",
           "roll": "roll", "nemo-rl": "nemo-rl"}
# What the modules import beside what is tested: services, clients, configurations, other engines.
STUBS = ("ray", "hydra", "omegaconf", "tensordict", "torchdata", "uvloop", "aiohttp", "requests", "loguru", "vllm", "sglang",
         "verifiers", "cloudpathlib", "PIL", "lark", "zmq", "httpx",
         "verl.protocol", "verl.single_controller", "verl.tools", "verl.trainer", "verl.utils.config", "verl.utils.dataset",
         "verl.utils.profiler", "verl.utils.ray_utils", "verl.utils.rollout_trace", "verl.utils.skip", "verl.utils.tokenizer",
         "verl.utils.model", "verl.utils.tracking", "verl.workers.config",
         *(f"verl.workers.rollout.{name}" for name in ("base", "hf_rollout", "naive", "router", "utils")),
         "areal.api.cli_args", "areal.infra.workflow_context", "areal.infra.platforms", "areal.infra.utils",
         "areal.infra.workflow_executor", "areal.utils",
         "miles.utils.ft_utils", "prime_rl.configs", "prime_rl.trainer.world", "prime_rl.utils", "roll.configs",
         "roll.pipeline", "roll.platforms", "roll.utils.kl_controller", "roll.utils.logging", "roll.distributed",
         "roll.third_party.megatron.util", "nemo_rl.distributed", "nemo_rl.models.policy", "nemo_rl.utils")


class Nothing:
    """Anything: called, it is the function that it decorates, or nothing; as a base class, object."""

    def __call__(self, *args, **more):
        return args[0] if len(args) == 1 and not more and (callable(args[0]) or isinstance(args[0], type)) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __mro_entries__(self, bases):
        return (object,)

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __bool__(self):
        return False


class _StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    used = set()

    def find_spec(self, name, path=None, target=None):
        for stub in STUBS:
            if name == stub or name.startswith(stub + "."):
                self.used.add(stub)
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _StubModule(spec.name)
        module.__all__ = []
        return module

    def exec_module(self, module):
        pass


def root():
    return pathlib.Path(os.environ.get("WAYMARK_TRAINERS", pathlib.Path(__file__).resolve().parent / "environment"))


def is_here(trainer):
    return (root() / FOLDERS[trainer]).is_dir()


def stubbed():
    return sorted(_Finder.used)


def module(trainer, name):
    """A module of a trainer, by its dotted name."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.path.append(str(root() / "light"))
    folder = root() / FOLDERS[trainer]
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = ".".join(parts[:i])
        if package not in sys.modules:
            bare = types.ModuleType(package)
            bare.__path__ = [str(folder.joinpath(*parts[:i]))]
            bare.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
            bare.__spec__.submodule_search_locations = bare.__path__
            sys.modules[package] = bare
    return importlib.import_module(name)


class Group:
    """A process group of which one member is looked at, for code that only asks for rank and size."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


@contextlib.contextmanager
def megatron_rank(tensor=(0, 1), context=(0, 1), pipeline=(0, 1)):
    """In its body, megatron-core believes that it is this rank of these groups."""
    from megatron.core import parallel_state
    known = {"is_initialized": True}
    for name, (rank, size) in (("tensor_model_parallel", tensor), ("context_parallel", context),
                               ("pipeline_model_parallel", pipeline)):
        known |= {f"get_{name}_rank": rank, f"get_{name}_world_size": size, f"get_{name}_group": Group(rank, size)}
    with contextlib.ExitStack() as stack:
        for name, value in known.items():
            stack.enter_context(mock.patch.object(parallel_state, name, lambda *args, value=value, **more: value))
        stack.enter_context(mock.patch.object(torch.distributed, "is_initialized", lambda: True))
        stack.enter_context(mock.patch.object(torch.distributed, "get_rank", lambda *args: 1))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
