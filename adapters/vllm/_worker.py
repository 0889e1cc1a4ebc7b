"""The half in the worker: gives every message to the store, captures the forward, and sends the
rows of finished and preempted requests back with the next output."""

from __future__ import annotations

import copy
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from .._capture import Capture
from .._core import Buffer
from .._errors import WaymarkError
from .._rows import Rows
from ..late import lose_rows
from . import _routers, _tier, _versions
from ._capture import Buffers, Ids
from ._exchange import NEXT, ByKey, Ended, Result, Schedule
from ._hooks import Function, Refused, around, logger, module, starting, timed, wrap
from ._options import Options, of
from ._publish import Publications
from ._stages import Stages

_MOST_RESULTS = 1 << 20  # a request waits for each of them
_LANDING_SECONDS = 70.0  # longer than rows are waited for, so that a lost step is an answer


class _Answers:
    """What the worker sends back: the rows that messages took, as the library's thread reads them.
    Of pipeline stages another thread joins them. Any thread, except read()."""

    def __init__(
        self, store: Capture, stages: Stages, publications: Publications | None = None
    ) -> None:
        self._store = store
        self._stages = stages
        self._publications = publications
        self._lock = threading.Lock()
        self._done: deque[Result] = deque()
        self._promised = 0  # snapshots of messages that the store has not been given
        self.expects = False
        """Whether something is being read, or was read and not taken."""
        self._by_key: dict[int, ByKey] = {}  # of snapshots that are being read
        self._joins: queue.SimpleQueue[tuple[int, ...]] | None = None
        if stages.joins:
            self._joins = queue.SimpleQueue()
            self._joined = threading.Condition(self._lock)
            self._joining = 0  # snapshots
            threading.Thread(target=self._run, name="waymark-stages", daemon=True).start()

    def end(self, ended: tuple[Ended, ...]) -> None:
        """Requests have ended, whose rows are published."""
        if self._publications is not None:
            self._publications.end(ended)
            self.expects = True

    def promise(self, snapshots: int) -> None:
        """So many will be asked for; less than 0: have been asked for."""
        with self._lock:
            self._promised += snapshots
            self.expects |= self._promised > 0

    def find(self, by_key: dict[int, ByKey]) -> dict[int, tuple[int, list[bytes | None]]]:
        """Of snapshots that are about to be taken: what the store looks for."""
        with self._lock:
            self._by_key |= by_key
        return {tag: (one.version, one.keys) for tag, one in by_key.items()}

    def read(self, taken: tuple[int, ...], refused: dict[int, str]) -> None:
        """Messages took the snapshots with these tags, and did not take those of `refused`. The
        thread that reports the messages."""
        with self._lock:
            self._done.extend(Result.none(tag, why) for tag, why in refused.items())
            self.expects = True
            if self._joins is not None:
                self._joining += len(taken)
        if self._joins is not None and taken:
            self._joins.put(taken)

    def take(self, wait: bool) -> tuple[Result, ...]:
        """What has been read; wait: until everything has."""
        read = [] if self._joins is not None else self._read(_LANDING_SECONDS if wait else None)
        with self._lock:
            if wait and self._joins is not None:
                self._joined.wait_for(lambda: not self._joining, _LANDING_SECONDS)
            results = (*self._done, *read)
            self._done.clear()
        if self._publications is not None:
            results = self._publications.results(results, wait)
        with self._lock:
            waits = self._joining if self._joins is not None else self._store.pending_results
            publishes = self._publications is not None and self._publications.waits
            self.expects = bool(waits or self._promised or publishes)
        return results

    def put_back(self, results: tuple[Result, ...]) -> None:
        """They could not be sent: the next output has them."""
        with self._lock:
            self._done.extendleft(reversed(results))
            self.expects = True

    @timed("read")
    def _read(self, timeout: float | None) -> list[Result]:
        return [self._result(*one) for one in self._store.results(timeout)]

    def _result(self, tag: int, own: Rows | None, failure: str) -> Result:
        try:
            rows = self._stages.joined(tag, own)
            by_key = self._by_key.pop(tag, None)
            if rows is not None and by_key is not None:
                return self._with_tails(tag, rows, by_key)
            if rows is not None:
                return Result.of(tag, rows)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        return Result.none(tag, failure or "another pipeline stage has no rows")

    @staticmethod
    def _with_tails(tag: int, rows: Rows, by_key: ByKey) -> Result:
        if by_key.tail:
            rows = _tier.with_tail(rows, by_key.tail, by_key.version)
        result = Result.of(tag, rows)
        if rows.first <= by_key.tail_first < rows.last:
            result = result._replace(tail=rows[by_key.tail_first - rows.first :].to_bytes())
        return result

    def _run(self) -> None:
        """Of pipeline stages: waits for their rows, in the order in which all of them take."""
        assert self._joins is not None
        read: dict[int, tuple[Rows | None, str]] = {}
        while tags := self._joins.get():
            for tag in tags:
                while tag not in read and self._store.pending_results:
                    found = self._store.results(0.05)
                    read.update((one.tag, (one.rows, one.failure)) for one in found)
                result = self._result(tag, *read.pop(tag, (None, "the rows were given up")))
                with self._lock:
                    self._done.append(result)
                    self._joining -= 1
                    self._joined.notify_all()

    def stop(self) -> None:
        if self._joins is not None:
            self._joins.put(())


class WorkerHalf:
    """Of one model runner: its store, and what goes to it and comes from it. The thread of the
    worker."""

    why_without = ""
    """Why a step has no ids, if not because of a failure."""

    def __init__(
        self, runner: Any, kv_cache_config: Any, layers: list[_routers.MoELayer],
        ids_layout: Literal["NLK", "LNK"], max_rows: int, options: Options,
    ) -> None:  # fmt: skip
        config = runner.vllm_config
        group = _versions.kv_group(kv_cache_config)
        arguments: dict[str, Any] = {
            "num_layers": len(layers),
            "top_k": layers[0].top_k,
            "num_experts": _routers.experts_of(layers, config),
            "num_blocks": kv_cache_config.num_blocks,
            "block_tokens": group.block_tokens,
            "page_tokens": 16 if group.block_tokens % 16 == 0 else group.block_tokens,
            "null_blocks": [0],
            "layer_ids": [layer.layer_id for layer in layers],
            "max_step_rows": max_rows,
            "max_steps_in_flight": _versions.steps_in_flight(config),
        }
        arguments |= options.store
        names = [layer.name for layer in layers]
        self._stages = Stages(
            module("vllm.distributed").get_pp_group(),
            2 * _LANDING_SECONDS + _versions.late_seconds(config),
        )
        tier = None
        if options.tier:
            # With handles whoever fetches them looks rows up. Those of several stages are joined
            # here, and have to be here.
            tier = _tier.tier_of(
                options.tier, config.model_config.model, self._stages.engine,
                look_up=not options.publish or self._stages.joins,
            )  # fmt: skip
        self.store = Capture(
            ids_layout=ids_layout, layer_names=names, max_results=_MOST_RESULTS,
            engine=None, tier=tier, **arguments,
        )  # fmt: skip
        self.failure = ""
        self.steps_without_ids = 0
        self._named = 0  # the last version of weights that the tier was told of
        self.publications: Publications | None = None
        if options.publish and self._stages.returns:
            self.publications = Publications(options.publish, options.publish_seconds)
        self._answers = _Answers(self.store, self._stages, self.publications)
        self._stopped = weakref.finalize(self, self._answers.stop)
        self._schedule: Schedule | None = None
        self._slots = _versions.slots(runner, group)
        self._step = 0

    def forward(
        self, call: Function, runner: Any, scheduler_output: Any, schedule: Schedule | None
    ) -> Any:
        """Runs a forward, if the schedule has one, and reports both. schedule None: the capture has
        ended. Raises what the forward raises."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Ends the capture: later snapshots have no rows, with this reason. Any thread."""
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            logger.error("waymark: capture ends: %s", self.failure, exc_info=error)

    # -- a step -------------------------------------------------------------------------------
    @timed("message")
    def begin_schedule(self, schedule: Schedule) -> None:
        """Before the forward: the messages of a schedule without one, or with snapshots, which are
        read during the forward, and all messages but one. That is reported with its step."""
        self._schedule = schedule
        if schedule.reset and self.failure:
            self.failure = ""
            # Snapshots in front of the reset would take rows from before steps that nobody told.
            lose_rows(self.store)
            logger.warning("waymark: capture begins again, with the prefix cache")
        taken: tuple[int, ...] = ()
        why = self.failure
        if not self.failure:
            self._name_weights(schedule)
            keys = self._answers.find(schedule.by_key) if schedule.by_key else None
            for message in schedule.messages:
                try:
                    taken += self.store.report_message(message, keys)
                except WaymarkError as error:
                    self._refused(error)
                    why = f"{type(error).__name__}: {error}"
        if schedule.tags:
            refused = {tag: why or "not taken" for tag in schedule.tags if tag not in taken}
            self._answers.read(taken, refused)

    @timed("begin and submit")
    def tell_step(self, schedule: Schedule, rows: int, slots: Buffer, ids: Buffer | None) -> None:
        """The whole step, with the message that was not reported before it. ids None: they are
        lost."""
        message = schedule.messages[0] if schedule.messages else None
        if self._schedule is schedule:
            message = None
        self._step = step = self._step + 1 if schedule.step == NEXT else schedule.step
        if ids is None:
            self._without_ids(step, rows)
        self._name_weights(schedule)
        for given in (message, None):
            try:
                self.store.step(
                    step, schedule.version, slots, ids,
                    count=rows, message=given,
                )  # fmt: skip
                return
            except WaymarkError as error:
                if given is None:
                    raise
                self._refused(error)

    def _name_weights(self, schedule: Schedule) -> None:
        if schedule.weights and schedule.version != self._named:
            self._named = schedule.version
            self.store.name_weights(schedule.version, schedule.weights)

    def _without_ids(self, step: int, rows: int) -> None:
        self.steps_without_ids += 1
        if self.steps_without_ids == 1:
            logger.warning(
                "waymark: step %d of %d rows is not captured: %s", step, rows, self.why_without
            )

    def _refused(self, error: WaymarkError) -> None:
        # The store is poisoned: blocks lose their rows, and the capture goes on.
        logger.warning("waymark: a message was refused: %s", error)

    # -- rows ---------------------------------------------------------------------------------
    @property
    def expects(self) -> bool:
        """Whether rows are to be sent. Any thread."""
        return self._answers.expects

    def hear(self, schedule: Schedule) -> None:
        """What a schedule says beside its message, in front of it."""
        if schedule.ended:
            self._answers.end(schedule.ended)

    def sent(self, output: Any, idle: bool = False) -> Any:
        """The output, with what has been read. A late one gets it when its thread has waited for
        the device. idle: of a schedule without a forward. Does not raise."""
        if hasattr(output, "get_output") and self._stages.returns:
            get_output = output.get_output
            output.get_output = lambda: self._send(get_output(), idle)
            return output
        return self._send(output, idle)

    @timed("send")
    def _send(self, output: Any, idle: bool) -> Any:
        """Without a forward nobody waits for the output, so that everything is read first."""
        try:
            if not self._stages.returns:
                self._answers.take(wait=False)
                return output
            results = self._answers.take(wait=idle)
            if not results:
                return output
            if not hasattr(output, "req_ids"):
                self._answers.put_back(results)
                return output
            if not output.req_ids:  # vLLM has one for all
                output = copy.copy(output)
            output.waymark = results
        except Exception as error:
            self.fail(error)
        return output


class HostHalf(WorkerHalf):
    """Where slots and ids are in host memory when a forward returns."""

    why_without = "the routers did not choose once for each row"

    def __init__(self, runner: Any, kv_cache_config: Any, capture: Ids, options: Options) -> None:
        max_rows = runner.vllm_config.scheduler_config.max_num_batched_tokens
        super().__init__(runner, kv_cache_config, capture.layers, "LNK", max_rows, options)
        if self._slots.device.type != "cpu":
            raise Refused("waymark: slots in device memory are refused: they are read on the host")
        self.capture = capture
        self._slots_read = self.store.buffer(self._slots.numpy())
        self._buffers = Buffers(self.store, max_rows)

    def forward(
        self, call: Function, runner: Any, scheduler_output: Any, schedule: Schedule | None
    ) -> Any:
        if schedule is None:
            result = call()
            self.capture.clear()  # they are of no step
            return result
        try:
            if schedule.tags or not schedule.step or schedule.reset or len(schedule.messages) > 1:
                self.begin_schedule(schedule)
        except Exception as error:
            self.fail(error)
        result = call()
        try:
            rows = _versions.rows(runner, scheduler_output) if schedule.step else 0
            self.end_step(schedule, rows)
        except Exception as error:
            self.fail(error)
        return result

    def end_step(self, schedule: Schedule, rows: int) -> None:
        """After the forward, whose slots and ids are still there."""
        if self.failure:
            self.capture.clear()
        if not schedule.step or self.failure:
            return
        ids = self._put_ids()
        if ids is not None and self._buffers.rows < rows:
            ids = None
        self.tell_step(schedule, rows, self._slots_read, ids)

    @timed("ids")
    def _put_ids(self) -> Any:
        """A buffer with the ids of the forward, [L, rows, columns]; None: there are none."""
        ids = self.capture.take()
        try:
            return None if ids is None else self._buffers.put(ids)
        except RuntimeError:
            return None


def hook(runner: type) -> None:
    """Wraps the methods of a model runner's class, before its model is loaded."""
    wrap(runner, "load_model", around(_load_model))
    wrap(runner, "_dummy_run", around(_dummy_run))  # forwards that are no steps
    hook_steps(runner, _serve)


def hook_steps(runner: type, serve: Callable[[Any, Any, Any, Options], None]) -> None:
    """What both ways of capturing wrap. serve: of a runner that has `_waymark_ids`: gives it its
    half when its KV cache is there."""

    def initialize_kv_cache(
        call: Function, runner: Any, kv_cache_config: Any, is_profiling: bool = False
    ) -> Any:
        result = call()
        ids, options = getattr(runner, "_waymark_ids", None), of(runner.vllm_config)
        if ids is not None and options is not None and not is_profiling:
            with starting():
                serve(runner, kv_cache_config, ids, options)
        return result

    wrap(runner, "initialize_kv_cache", around(initialize_kv_cache))
    wrap(runner, "execute_model", around(_execute_model))
    wrap(runner, "sample_tokens", around(_sample_tokens))
    if hasattr(runner, "init_routed_experts_capturer"):
        wrap(runner, "init_routed_experts_capturer", around(_init_routed_experts_capturer))


# What a hook takes after `call` and the runner are arguments of vLLM's method: around().
def _load_model(call: Function, runner: Any) -> Any:
    result = call()
    if of(runner.vllm_config) is not None and stores():
        with starting():
            runner._waymark_ids = Ids(runner)
    return result


def _serve(runner: Any, kv_cache_config: Any, ids: Ids, options: Options) -> None:
    if getattr(runner, "aux_output_connector", None) is not None:
        ids.attach(runner)  # from 0.31 on vLLM's own capture has just taken the slots
    runner._waymark = HostHalf(runner, kv_cache_config, ids, options)


def _execute_model(call: Function, runner: Any, scheduler_output: Any) -> Any:
    half: WorkerHalf | None = getattr(runner, "_waymark", None)
    if half is None:
        return call()
    schedule = getattr(scheduler_output, "waymark", None)
    if schedule is not None:
        half.hear(schedule)
    result = half.forward(call, runner, scheduler_output, schedule)
    if schedule is None or result is None or not half.expects:
        return result
    return half.sent(result, not schedule.step)


def _sample_tokens(call: Function, runner: Any) -> Any:
    result = call()
    half: WorkerHalf | None = getattr(runner, "_waymark", None)
    return result if half is None or not half.expects else half.sent(result)


def _dummy_run(call: Function, runner: Any) -> Any:
    result = call()
    if ids := getattr(runner, "_waymark_ids", None):
        ids.clear()  # it was no step
    return result


def _init_routed_experts_capturer(call: Function, runner: Any) -> Any:
    result = call()
    if ids := getattr(runner, "_waymark_ids", None):
        ids.attach(runner)  # up to 0.30 vLLM's own capture takes the slots later
    return result


def stores() -> bool:
    """Whether this rank stores rows: all tensor-parallel ranks route alike."""
    return bool(module("vllm.distributed").get_tp_group().rank_in_group == 0)
