"""The tiny engine with vLLM's names, where ids and slots are on a device: its model runner V2, whose
forwards run eager or by graphs. A graph is what was copied while it was captured: Python does not
run again, and addresses stay."""

from __future__ import annotations

import time
import types
import zlib
from typing import Any

import numpy as np
import pytest
import vllm_engine
from late_device import SPOILED, Array, LateDevice, array
from vllm_engine import LAYERS, Engine, Runner, config
from waymark.late import _late_ids
from waymark.vllm import _capture, _device, _results, _scheduler, _versions, _worker
from waymark.vllm._options import Options

SIZES = (1, 2, 4, 8, 16)
MOST_ROWS = 64


class DeviceRunner(Runner):
    """graphs: for batches of at most the largest size. v1: model runner V1."""

    device = types.SimpleNamespace(index=0)
    decode_query_len = uniform_decode_query_len = 1
    graphs, v1 = True, False
    silent: int | None = None  # a layer that does not choose
    fails_before = fails_behind = False

    def __init__(self) -> None:
        super().__init__()
        config = self.vllm_config
        config.device_config.device_type = "cuda"
        config.use_v2_model_runner = not self.v1
        config.compilation_config.cudagraph_capture_sizes = list(SIZES) if self.graphs else []
        config.scheduler_config.max_num_seqs = 8
        config.parallel_config.tensor_parallel_size = 1
        self.on_device = array((1, MOST_ROWS), np.int64)
        self.block_tables = types.SimpleNamespace(slot_mappings=self.on_device)
        mapping = types.SimpleNamespace(gpu=self.on_device[0])
        self.input_batch.block_table = [types.SimpleNamespace(slot_mapping=mapping)]
        self.execute_model_state: Any = None
        self.inputs = array((LAYERS, MOST_ROWS, 1), np.int32)  # what the routers choose
        self.captured: dict[int, list[Any]] = {}
        self.rows = 0  # of the forward
        self.runs: list[tuple[int, bool]] = []  # size, by a graph

    @property
    def slots(self) -> Any:
        return self.on_device[0]

    def route(self, layer: int, ids: Any) -> None:
        self.rows = len(ids)
        self.inputs[layer, : self.rows] = ids
        self.inputs[layer, self.rows :] = SPOILED  # padding

    def run_model(self, eager: bool = False) -> None:
        sizes = [size for size in self.captured if size >= self.rows]
        self.runs.append((self.rows, bool(sizes and not eager)))
        if sizes and not eager:
            for target, source in self.captured[min(sizes)]:
                target[...] = source
        else:
            self.layers(self.rows)

    def layers(self, size: int) -> None:
        for layer, router in enumerate(self.routers):
            if layer != self.silent:
                router.capture_fn(self.inputs[layer, :size])

    def capture_model(self) -> int:
        for size in SIZES if self.graphs else ():
            Array.recorded = []
            self.layers(size)
            self.captured[size], Array.recorded = Array.recorded, None
        return 0

    def execute_model(self, scheduler_output: Any, dummy_run: bool = False) -> Any:
        if not scheduler_output.total_num_scheduled_tokens:
            return types.SimpleNamespace(req_ids=[], finished=[])
        if self.fails_before:
            raise RuntimeError("before the kernels")
        self.forward()
        self.run_model()
        if self.fails_behind:
            raise RuntimeError("behind the kernels")
        batch = types.SimpleNamespace(num_tokens=scheduler_output.total_num_scheduled_tokens)
        self.execute_model_state = types.SimpleNamespace(input_batch=batch)
        return None

    def sample_tokens(self) -> Any:
        self.execute_model_state = None
        self.slots.fill_(SPOILED)  # by the drafter
        return super().sample_tokens()

    def _dummy_run(self, tokens: int, skip_eplb: bool = False, uniform_decode: bool = False,
                   is_profile: bool = False) -> None:  # fmt: skip
        self.slots.fill_(-1)
        self.rows, self.inputs[...] = tokens, 3
        self.run_model(eager=is_profile)


class Worker:
    def __init__(self, runner: Any) -> None:
        self.model_runner = runner

    def load_model(self) -> None:
        self.model_runner.load_model()

    def compile_or_warm_up_model(self) -> None:
        self.model_runner._dummy_run(5)
        self.model_runner.capture_model()


class DeviceEngine(Engine):
    """An id is a hash of its request's name, position and layer."""

    device_type = "cuda"
    device: LateDevice

    def __init__(self, given: Options = Options(), **attributes: Any) -> None:
        self.runner_kind = type("DeviceRunnerOfTest", (DeviceRunner,), attributes)
        super().__init__(given)

    def started(self, runner_kind: type) -> Any:
        kind = type("WorkerOfTest", (Worker,), {})
        _device.hook(kind, runner_kind)
        self.worker = worker = kind(runner_kind())
        runner = worker.model_runner
        worker.load_model()
        self.device = runner._waymark_device.memory.device
        runner.initialize_kv_cache(config())
        worker.compile_or_warm_up_model()
        return runner

    def id_of(self, name: str, position: int, layer: int) -> int:
        return zlib.crc32(f"{name} {position} {layer} {self.shift}".encode()) % 117

    def follow(self) -> None:
        """The engine runs two steps ahead of its device, and not more."""
        late = self.runner._waymark.late
        deadline = time.monotonic() + 10
        while self.device.pending > 2 or sum(late._ids_taken) > 2 or not all(
            buffer.free for buffer in late._ids_read):  # fmt: skip
            assert time.monotonic() < deadline
            self.device.look()
            time.sleep(1e-4)

    def expected(self, name: str, first: int, last: int) -> Any:
        return np.array([[[self.id_of(name, p, layer)] for layer in range(LAYERS)]
                         for p in range(first, last)])  # fmt: skip


def modules(name: str) -> Any:
    if name == "vllm.envs":
        return types.SimpleNamespace(VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=5)
    return vllm_engine.modules(name)


@pytest.fixture(autouse=True)
def cuda(vllm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the tests is a LateDevice."""
    for part in (_capture, _versions, _worker, _scheduler, _results):
        monkeypatch.setattr(part, "module", modules)
    monkeypatch.setattr(_device.late, "Cuda", LateDevice)
    monkeypatch.setattr(_late_ids, "_PAUSE_SECONDS", 1e-4)
    monkeypatch.setattr(_late_ids, "_LOOK_AGAIN_SECONDS", 1e-3)
