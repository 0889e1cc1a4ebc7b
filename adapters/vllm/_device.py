"""The half in the worker where slots and expert ids are on a device. Its routers write a buffer
there, in eager forwards and in CUDA graphs, and a thread tells the store of every step in its own
time (waymark.late)."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from .. import late
from .._core import Buffer
from . import _routers, _versions
from ._capture import fill
from ._exchange import NEXT, Schedule
from ._hooks import Function, around, logger, starting, wrap
from ._options import Options, of
from ._worker import WorkerHalf, hook_steps, stores


class DeviceIds:
    """The buffer that the routers of one model runner write. On every tensor-parallel rank, since
    all take part in gathering the ids. The worker's thread."""

    def __init__(self, runner: Any, stores: bool) -> None:
        """Before the memory for the KV cache is measured, and before a graph is captured. stores:
        whether this rank has a store."""
        config = runner.vllm_config
        self.layers = _routers.moe_layers(runner.get_model(), cuda=True)
        self.memory = late.Memory(
            late.Cuda(runner.device.index),
            _versions.most_rows(config),
            len(self.layers),
            self.layers[0].top_k,
            max(4, _versions.steps_ahead(config) + 2) if stores else 0,
            32 if stores else 0,
        )
        self._write = _versions.writer(config, self.memory.buffer)
        self._raised = False
        self.attach(runner)

    def attach(self, runner: Any) -> None:
        """Again after others took the slots, or replaced them."""
        for number, layer in enumerate(_routers.moe_layers(runner.get_model(), cuda=True)):
            fill(layer.slot, functools.partial(self._take, number))

    def _take(self, layer: int, ids: Any) -> None:
        """Of one layer: in a forward, or while a graph is captured, which does it again then."""
        try:
            self._write(layer, ids)
        except Exception as error:  # the layer is silent
            if not self._raised:
                self._raised = True
                logger.error("waymark: ids of %s are lost: %s", self.layers[layer].name, error)


class LateHalf(WorkerHalf):
    """Where slots and ids are on their way when a forward returns. The thread of `late` alone tells
    the store anything; nothing here keeps the runner or the model, so that it keeps neither."""

    why_without = "the steps before it are not told yet, and no buffer is free"

    def __init__(self, runner: Any, kv_cache_config: Any, ids: DeviceIds, options: Options) -> None:
        memory = ids.memory
        super().__init__(runner, kv_cache_config, ids.layers, "NLK", memory.max_rows, options)
        seconds = _versions.late_seconds(runner.vllm_config)
        self.late = late.LateIds(memory, self.store, seconds)
        self._idle_seconds = seconds / 2  # vLLM gives up a schedule that takes longer
        weakref.finalize(runner, self.late.stop)

    def forward(
        self, call: Function, runner: Any, scheduler_output: Any, schedule: Schedule | None
    ) -> Any:
        if schedule is None:
            return call()
        if schedule.tags:
            self._answers.promise(len(schedule.tags))
        if not schedule.step:
            self.late.later(functools.partial(self._tell, schedule, 0))
            return call()
        try:
            self.late.begin()
        except Exception as error:
            self.fail(error)
        slots, rows = None, 0
        try:
            result = call()
            slots, rows = self._issued(runner, scheduler_output)
        finally:  # what was thrown may have been thrown behind kernels
            self.late.issued(slots, rows, functools.partial(self._tell, schedule, rows))
        return result

    def _issued(self, runner: Any, scheduler_output: Any) -> tuple[Any, int]:
        try:
            return self._slots, _versions.rows(runner, scheduler_output)
        except Exception as error:
            self.fail(error)
            return None, 0

    def _tell(
        self, schedule: Schedule, rows: int, slots: Buffer | None, ids: Buffer | None
    ) -> None:
        """The thread of `late`, in the order of the schedules."""
        try:
            if slots is None or schedule.tags or schedule.reset or len(schedule.messages) > 1:
                self.begin_schedule(schedule)
            if self.late.failure:
                raise RuntimeError(self.late.failure)
            if not schedule.step or self.failure:
                return
            if slots is None:
                self._lose_step(schedule)
            else:
                self.tell_step(schedule, rows, slots, ids)
        except Exception as error:
            self.fail(error)
        finally:
            if schedule.tags:
                self._answers.promise(-len(schedule.tags))

    def _lose_step(self, schedule: Schedule) -> None:
        self._step = self._step + 1 if schedule.step == NEXT else schedule.step
        logger.warning(
            "waymark: step %d has lost its slots, so that all blocks lose their rows", self._step
        )
        late.lose_rows(self.store)

    def _send(self, output: Any, idle: bool) -> Any:
        if idle:
            self.late.drain(self._idle_seconds)
        return super()._send(output, idle)


def hook(worker: type, runner: type) -> None:
    """Wraps the methods of the classes of a worker and of its model runner, before the model is
    loaded."""
    # Not the runner's load_model: within it memory is the weights', which sleep takes away.
    wrap(worker, "load_model", around(_load_model))
    wrap(runner, "reload_weights", around(_reload_weights))
    hook_steps(runner, _serve)


# What a hook takes after `call` and the object are arguments of vLLM's method: around().
def _load_model(call: Function, worker: Any) -> Any:
    result = call()
    runner = worker.model_runner
    if of(runner.vllm_config) is not None:
        with starting():
            runner._waymark_ids = DeviceIds(runner, stores())
    return result


def _serve(runner: Any, kv_cache_config: Any, ids: DeviceIds, options: Options) -> None:
    ids.attach(runner)  # vLLM's own capture has just taken the slots
    if stores():
        if half := getattr(runner, "_waymark", None):
            half.late.stop()
        runner._waymark = LateHalf(runner, kv_cache_config, ids, options)


def _reload_weights(call: Function, runner: Any) -> Any:
    """Layers may have other routers now."""
    result = call()
    ids: DeviceIds | None = getattr(runner, "_waymark_ids", None)
    if ids is not None:
        try:
            ids.attach(runner)
        except Exception as error:  # the engine has started
            if half := getattr(runner, "_waymark", None):
                half.fail(error)
    return result
