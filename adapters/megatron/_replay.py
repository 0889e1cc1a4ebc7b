"""Replay and recording of routing in the routers of a Megatron-Core model, through its
RouterReplay."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from .._arrays import array_of, check_choices, truths
from .._compare import evenly
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._rows import Rows
from .._types import UNKNOWN_VERSION
from ..trainer import Audit, Filled, Layout, Plan
from ..trainer import audit as audit_of
from ..trainer._plan import Source, part_of
from . import _versions
from ._hooks import Refused, keep_choice, module

Missing = Literal["fill", "live"]

AUDIT_ROWS = 256
# What a RouterReplay remembers; it is put back at the end of replay.
STATE = ("target_topk_idx", "recorded_topk_idx", "router_replay_action", "replay_backward_list",
         "get_replay_topk")  # fmt: skip


class _Choice(NamedTuple):
    """A router chooses the experts of the rows of a forward: a call of
    RouterReplay.get_replay_topk."""

    megatron: Callable[..., Any]
    """Megatron's get_replay_topk, which does what the RouterReplay's action says."""
    scores: Any
    """[rows, experts]"""
    topk: int
    num_groups: Any
    group_topk: Any
    top: Callable[..., Any]
    """The router's own choice."""

    def run(self, replay: Any, action: str) -> Any:
        """(probabilities, ids) of the experts, [rows, K] each."""
        actions = module("megatron.core.transformer.moe.router_replay").RouterReplayAction
        replay.set_router_replay_action(getattr(actions, action))
        return self.megatron(*self[1:])

    def own(self, rows: Any = None) -> Any:
        """The ids that the router would choose itself, for some rows. (Megatron's choice by groups
        takes all rows of the forward.)"""
        scores = self.scores.detach()
        if rows is not None and not self.group_topk:
            return self.top(scores[rows], self.topk, self.num_groups, self.group_topk)[1]
        ids = self.top(scores, self.topk, self.num_groups, self.group_topk)[1]
        return ids if rows is None else ids[rows]


class _Layer:
    """A router of this process."""

    def __init__(self, router: Any, place: int) -> None:
        self.layer_id, self.place = int(router.layer_number) - 1, place  # place: in its chunk
        self.router, self.replay = router, router.router_replay
        self.waiting: deque[_Step] = deque()  # micro-batches that it will compute again
        self.last_backward = -1  # the call of backward() in which it did so last
        self.ran = False  # in the forward that runs

    def forget(self, step: _Step) -> None:
        """The forward of a micro-batch failed: no backward of it will come."""
        if self.waiting and self.waiting[-1] is step:
            self.waiting.pop()
        del self.replay.replay_backward_list[len(self.waiting) :]

    def __str__(self) -> str:
        return f"the router of layer {self.layer_id}"


class _Chunk:
    """A model of this process: all of its layers, or a virtual pipeline stage's."""

    def __init__(self, model: Any) -> None:
        self.model = _versions.inner_model(model)
        self.config: Any = getattr(self.model, "config", None)
        if self.config is None:
            inside = hasattr(self.model, "language_model")
            raise Refused(
                f"waymark: {type(self.model).__name__} is refused: "
                + ("give its language_model" if inside else "it is no model of Megatron")
            )
        _versions.check_replay(self.config)
        self.routers = _versions.routers(self.model)
        found = sorted(self.routers, key=lambda router: int(router.layer_number))
        self.layers = [_Layer(router, place) for place, router in enumerate(found)]
        self.layer_ids = tuple(layer.layer_id for layer in self.layers)
        # The last call of backward() that computed a micro-batch again, and which.
        self.again: tuple[int, _Step | None] = (-1, None)


class _Step:
    """The forward of a micro-batch through a chunk."""

    def __init__(self, plan: Plan, chunk: _Chunk) -> None:
        self.plan = plan
        self.layer_ids = chunk.layer_ids
        self._chunk = chunk

    def _route(self, layer: _Layer, choice: _Choice) -> Any:
        raise NotImplementedError

    def _route_again(self, layer: _Layer, choice: _Choice) -> Any:
        return choice.run(layer.replay, "REPLAY_BACKWARD")


class Replayed(_Step):
    """The forward of a micro-batch that replays its rows; ``Replay.forward()`` makes it.
    ``filled``: the ids, the mask and the report, as of ``Plan.fill()``; a chunk without MoE layers
    has no ids."""

    def __init__(
        self,
        plan: Plan,
        chunk: _Chunk,
        filled: Filled,
        targets: Any,
        live: bool,
        audited: npt.NDArray[np.int64] | None,
    ) -> None:
        super().__init__(plan, chunk)
        self.filled = filled
        as_tensor = module("torch").as_tensor
        self._targets = targets
        self._live = as_tensor(~filled.mask[:, None]) if live else None
        self._rows = audited
        self._places = None if audited is None else as_tensor(audited)
        # The routers' own choices for _rows, of each layer: of the forward, and of what
        # was recomputed.
        none: list[Any] = [None] * len(chunk.layers)
        self._own = none, none.copy()

    def audit(self, *, recomputed: bool = False, least_agreement: float = 0.8) -> Audit:
        """Compares the ids with those that the routers would have chosen themselves
        (``trainer.audit()``), on at most 256 rows. After the forward; recomputed: after the
        backward, of what it computed again. Megatron gives that the ids of another micro-batch if
        backwards do not have the order of their forwards. Layers of an alarm: by their place in
        layer_ids; of those that were recomputed, if not all were. Waits for the device.

        FailedPreconditionError without ``forward(audit=True)``, or before it has run."""
        if self._rows is None:
            raise FailedPreconditionError("audit: after forward(audit=True), got audit=False")
        own, ids = self._own[recomputed], np.asarray(self.filled.ids)
        ran = [place for place, chosen in enumerate(own) if chosen is not None]
        if not ran or (len(ran) < len(own) and not recomputed):
            when = "the forward of MoE layers"
            if recomputed:
                when = "a backward that recomputes routers"
            raise FailedPreconditionError(
                f"audit: after {when}, got {len(ran)} of {len(own)} layers"
            )
        return audit_of(
            self.plan,
            ids if len(ran) == len(own) else ids[ran],
            np.asarray(module("torch").stack([own[place] for place in ran]).cpu()),
            num_experts=self._chunk.config.num_moe_experts,
            mask=self.filled.mask,
            rows=self._rows,
            least_agreement=least_agreement,
        )

    def _route(self, layer: _Layer, choice: _Choice) -> Any:
        target = self._targets[layer.place]
        if self._live is not None:
            own = choice.own().to(target.dtype)
            self._live = self._live.to(own.device)
            target = module("torch").where(self._live, own, target.to(own.device))
        self._remember(layer, choice, False)
        layer.replay.set_target_indices(target)
        return choice.run(layer.replay, "REPLAY_FORWARD")

    def _route_again(self, layer: _Layer, choice: _Choice) -> Any:
        self._remember(layer, choice, True)
        return super()._route_again(layer, choice)

    def _remember(self, layer: _Layer, choice: _Choice, recomputed: bool) -> None:
        if self._places is not None:
            self._places = self._places.to(choice.scores.device)
            self._own[recomputed][layer.place] = choice.own(self._places)


class Recorded(_Step):
    """The forward of a micro-batch that routes as usual, and whose choices are kept for replay
    (R2); ``Replay.record()`` makes it."""

    def __init__(self, plan: Plan, chunk: _Chunk) -> None:
        super().__init__(plan, chunk)
        self._ids: list[Any] = [None] * len(chunk.layers)

    def rows(self, *, version: int = UNKNOWN_VERSION) -> list[Rows]:
        """Rows of each sequence (``Plan.collect()``), of this rank's tokens and layers; the rest is
        missing. version: of the weights, if you know it. Copies from the device."""
        if not self._ids or any(ids is None for ids in self._ids):
            raise FailedPreconditionError("rows: after the forward of a chunk with MoE layers")
        return self.plan.collect(
            np.asarray(module("torch").stack(self._ids).cpu()),
            num_experts=self._chunk.config.num_moe_experts,
            layer_ids=self.layer_ids,
            version=version,
        )

    def _route(self, layer: _Layer, choice: _Choice) -> Any:
        replay = layer.replay
        result = choice.run(replay, "RECORD")
        ids = replay.get_recorded_indices()
        if getattr(replay, "static_buffer", None) is not None:
            ids = ids.clone()  # a view of the buffer, which the next forward writes over
        self._ids[layer.place] = ids
        replay.set_target_indices(ids)
        return result


class Replay:
    """Replays and records the routing of a Megatron-Core model; ``replay()`` makes it. One thread,
    and those on which its backward runs.

    ``with replay:`` around the schedule, so that what is recomputed in the backward pass is
    replayed as well. It puts everything back at its end, and can be entered again."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        """As replay()."""
        self._chunks = [_Chunk(model) for model in chunks]
        layers = [layer.layer_id for layer in self._layers()]
        twice = sorted({layer for layer in layers if layers.count(layer) > 1})
        if twice:
            raise Refused(
                f"waymark: the model is refused: two of its routers are of layer {twice[0]}"
            )
        if not layers and all(one.config.pipeline_model_parallel_size == 1 for one in self._chunks):
            raise Refused("waymark: the model is refused: no layer of its decoder has a router")
        self._audits = 0
        self._step: _Step | None = None
        self._grad = False
        self._ends: contextlib.ExitStack | None = None  # within the context

    def layer_ids(self, chunk: Any = None) -> tuple[int, ...]:
        """The layers of a chunk's routers, by the model's numbers counted from 0, as
        ``Plan.fill()`` takes them. chunk: as in forward()."""
        return self._chunk(chunk).layer_ids

    def layout(self, **more: Any) -> Layout:
        """The ``trainer.Layout`` of this rank: its place in context and tensor parallelism, from
        parallel_state, and whether that is sequence parallel. more: the other fields, and those
        that are to differ."""
        sequence_parallel = bool(self._chunks[0].config.sequence_parallel)
        return Layout(**{**_ranks(), "sequence_parallel": sequence_parallel, **more})

    # -- the forward of a micro-batch ---------------------------------------------------------
    @contextlib.contextmanager
    def forward(
        self,
        plan: Plan,
        rows: Union[Sequence[Source], Filled],
        *,
        chunk: Any = None,
        missing: Missing = "fill",
        audit: bool = False,
    ) -> Iterator[Replayed]:
        """The forward of one micro-batch inside ``with`` replays its rows.

        plan: of the micro-batch on this rank. rows: of each sequence, as ``Plan.fill()`` takes
        them, or what it returned for ``layer_ids(chunk)``, which is checked again (filled ahead,
        for instance in pinned memory, which the device then copies from without waiting). chunk: of
        a virtual pipeline the model that the forward runs, or its number; None: the only one.
        missing: what becomes of rows without routing, such as padding and last tokens, for which
        Megatron has no mask. "fill": the experts that ``Plan.fill()`` spreads over them, which load
        every rank alike; keep these rows out of the loss. "live": the router chooses, whatever the
        fill. audit: keeps the routers' own choices for ``Replayed.audit()``.

        InvalidArgumentError, before anything is changed, for rows that do not fit plan or model.
        FailedPreconditionError from the forward for a router that runs twice, outside, or with
        another number of rows; from the end of ``with`` for one that did not run."""
        if missing not in ("fill", "live"):
            raise InvalidArgumentError(f"missing: 'fill' or 'live', got {missing!r}")
        of = self._checked(plan, chunk)
        if isinstance(rows, Filled):
            _check_filled(rows, plan, of, missing == "live")
            filled = rows
        else:
            filled = self._fill(plan, rows, of)
        targets = module("torch").as_tensor(filled.ids)
        if of.routers:  # all layers in one copy
            targets = targets.to(of.routers[0].weight.device, non_blocking=True, copy=True)
        audited = None
        if audit:
            audited = _sample(filled.mask, self._audits)
            self._audits += 1
        step = Replayed(plan, of, filled, targets, missing == "live", audited)
        with self._running(step):
            yield step

    @contextlib.contextmanager
    def record(self, plan: Plan, *, chunk: Any = None) -> Iterator[Recorded]:
        """The forward of one micro-batch inside ``with`` routes as usual, and keeps what its
        routers choose (R2). plan, chunk, errors: as in forward()."""
        step = Recorded(plan, self._checked(plan, chunk))
        with self._running(step):
            yield step

    def _fill(self, plan: Plan, rows: Sequence[Source], chunk: _Chunk) -> Filled:
        config = chunk.config
        wanted = config.moe_router_topk, config.num_moe_experts
        shapes = [part_of(source, f"rows[{i}]").shape for i, source in enumerate(rows)]
        for i, shape in enumerate(shapes):
            if (shape.top_k, shape.num_experts) != wanted:
                raise InvalidArgumentError(
                    f"rows[{i}]: K = {wanted[0]} and E = {wanted[1]} as the model has, got "
                    f"{shape.top_k} and {shape.num_experts}"
                )
        if chunk.layers or not shapes:
            return plan.fill(rows, chunk.layer_ids)
        # A stage whose layers are all dense: the mask is another layer's.
        filled = plan.fill(rows, shapes[0].layer_ids[:1])
        return filled._replace(ids=filled.ids[:0])

    def _checked(self, plan: Plan, chunk: Any) -> _Chunk:
        if self._step is not None:
            raise FailedPreconditionError(
                "forward: one micro-batch at a time, got one inside of another"
            )
        if not isinstance(plan, Plan):
            raise InvalidArgumentError(f"plan: a Plan, got {type(plan).__name__}")
        if plan.layout.order == "batch-major" and len(plan.lengths) > 1:
            raise InvalidArgumentError(
                "plan: 'packed' or 'sequence-major', as the rows of Megatron's routers, got "
                "'batch-major'"
            )
        # The rows of another rank are as many. (Other sizes have other numbers of rows.)
        for name, (rank, size) in _ranks().items():
            cut = name == "context" or plan.layout.sequence_parallel
            of_plan = getattr(plan.layout, name)
            if cut and of_plan[1] == size and of_plan[0] != rank:
                raise InvalidArgumentError(
                    f"plan: of {name} rank {rank}, as this process is, got that of {of_plan[0]}"
                )
        return self._chunk(chunk)

    def _chunk(self, chunk: Any) -> _Chunk:
        if chunk is None and len(self._chunks) == 1:
            return self._chunks[0]
        if isinstance(chunk, int) and 0 <= chunk < len(self._chunks):
            return self._chunks[chunk]
        inner = _versions.inner_model(chunk)
        for one in self._chunks:
            if one.model is inner:
                return one
        raise InvalidArgumentError(
            f"chunk: one of the {len(self._chunks)} models, or its number, got "
            + (repr(chunk) if chunk is None or isinstance(chunk, int) else type(chunk).__name__)
        )

    @contextlib.contextmanager
    def _running(self, step: _Step) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._ends is None:
                stack.enter_context(self)
            self._grad = module("torch").is_grad_enabled()
            self._step = step
            for layer in step._chunk.layers:
                layer.ran = False
            try:
                yield
                _check_ran(step._chunk)
            except BaseException:
                for layer in step._chunk.layers:
                    layer.forget(step)
                raise
            finally:
                self._step = None

    # -- the schedule -------------------------------------------------------------------------
    def __enter__(self) -> Replay:
        if self._ends is not None:
            raise FailedPreconditionError("replay: entered once at a time, got twice")
        with contextlib.ExitStack() as ends:
            for layer in self._layers():
                replay = layer.replay
                ends.callback(keep_choice(layer.router, str(layer)))
                ends.callback(_put_back, replay, dict(vars(replay)))
                replay.clear_indices()
                replay.get_replay_topk = self._hook(layer, replay.get_replay_topk)
                layer.waiting.clear()
                layer.last_backward = -1
            self._ends = ends.pop_all()
        for chunk in self._chunks:
            chunk.again = (-1, None)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        left = [layer for layer in self._layers() if layer.waiting]
        self._ends, ends = None, self._ends
        if ends is not None:
            ends.close()
        if left and error is None:
            raise FailedPreconditionError(
                f"replay: the backward of every micro-batch runs before its end, got {left[0]} "
                f"with {len(left[0].waiting)} that it has not computed again; a forward without "
                "one belongs under torch.no_grad()"
            )

    def _hook(self, layer: _Layer, megatron: Callable[..., Any]) -> Callable[..., Any]:
        def get_replay_topk(
            scores: Any, topk: int, num_groups: Any = None, group_topk: Any = None,
            default_compute_topk: Any = None,
        ) -> Any:  # fmt: skip
            choice = _Choice(megatron, scores, topk, num_groups, group_topk, default_compute_topk)
            backward: int = module("torch")._C._current_graph_task_id()  # of the call of backward()
            if backward >= 0:
                return self._recompute(layer, choice, backward)
            return self._route(layer, choice)

        return get_replay_topk

    def _route(self, layer: _Layer, choice: _Choice) -> Any:
        step = self._step
        if step is None or layer not in step._chunk.layers:
            raise FailedPreconditionError(
                f"replay: forwards run inside of forward() or record() of their chunk, got {layer} "
                "outside"
            )
        if layer.ran:
            raise FailedPreconditionError(
                f"forward: every router of the chunk runs once, got {layer} twice: one forward() "
                "is of one micro-batch"
            )
        rows = choice.scores.shape[0]
        if rows != step.plan.rows:
            raise FailedPreconditionError(
                f"plan: of as many rows as {layer} has, {rows}, got {step.plan.rows}"
            )
        layer.ran = True
        result = step._route(layer, choice)
        if self._grad and not module("torch").is_grad_enabled():
            layer.waiting.append(step)  # a checkpoint: it runs again in the backward
        else:
            layer.replay.replay_backward_list.pop()
        return result

    def _recompute(self, layer: _Layer, choice: _Choice, backward: int) -> Any:
        if not layer.waiting:
            raise FailedPreconditionError(
                f"replay: what is recomputed ran before without gradients, got {layer}, which kept "
                "no ids: a checkpoint with use_reentrant=False is not served"
            )
        if backward == layer.last_backward:
            raise FailedPreconditionError(
                f"replay: each micro-batch has a backward() of its own, got {layer} twice in one, "
                "which does not tell whose ids it needs"
            )
        step = layer.waiting[0]
        if choice.scores.shape[0] != step.plan.rows:
            raise FailedPreconditionError(
                f"replay: backwards in the order of their forwards, got {layer} with "
                f"{choice.scores.shape[0]} rows for a micro-batch of {step.plan.rows}"
            )
        chunk = step._chunk
        if chunk.again[0] == backward and chunk.again[1] is not step:
            raise FailedPreconditionError(
                f"replay: a backward computes the layers of one micro-batch again, got {layer} "
                "with another than those before it: the backward of an earlier micro-batch has "
                "not ended"
            )
        chunk.again = backward, step
        layer.last_backward = backward
        layer.waiting.popleft()
        return step._route_again(layer, choice)

    def _layers(self) -> Iterator[_Layer]:
        return (layer for chunk in self._chunks for layer in chunk.layers)

    def __repr__(self) -> str:
        return f"Replay(layers={[list(chunk.layer_ids) for chunk in self._chunks]})"


def replay(model: Any) -> Replay:
    """Replays routing in the routers of a Megatron-Core model (0.18 and later), and records it.

        replay = waymark.megatron.replay(model)
        layout = replay.layout(order="packed", sequence_multiple=16)

        def forward_step(batches, model):
            batch = next(batches)
            with replay.forward(layout.plan(batch.lengths), batch.rows, chunk=model):
                output = model(batch.tokens, ...)
            return output, loss

        with replay:
            get_forward_backward_func()(forward_step_func=forward_step, ...)

    model: of this process, with ``moe_enable_routing_replay``; of a virtual pipeline the list of
    its chunks. It may be wrapped (``Float16Module``, ``DistributedDataParallel``). Routers of MTP
    layers are left out.

    Refused, by the name of the option, if its routers do not follow their RouterReplay: fused
    routers, sinkhorn, quantile balancing, a capacity of the experts; and if no router is found."""
    return Replay(model if isinstance(model, (list, tuple)) else [model])


def _put_back(replay: Any, before: dict[str, Any]) -> None:
    vars(replay).pop("get_replay_topk", None)
    vars(replay).update({name: before[name] for name in STATE if name in before})


def _check_ran(chunk: _Chunk) -> None:
    silent = [str(layer.layer_id) for layer in chunk.layers if not layer.ran]
    if silent:
        raise FailedPreconditionError(
            f"forward: every router of the chunk runs once, got none of layers "
            f"{', '.join(silent)}: "
            "they are bypassed (a CUDA graph, a fused kernel), or the forward was another chunk's"
        )


def _ranks() -> dict[str, tuple[int, int]]:
    """This process in context and tensor parallelism, (rank, size) each, as in Layout; nothing if
    Megatron's groups are not parallel_state's."""
    parallel = module("megatron.core.parallel_state")
    if not parallel.model_parallel_is_initialized():
        return {}
    return {
        "context": (
            parallel.get_context_parallel_rank(),
            parallel.get_context_parallel_world_size(),
        ),
        "tensor": (
            parallel.get_tensor_model_parallel_rank(),
            parallel.get_tensor_model_parallel_world_size(),
        ),
    }


def _sample(mask: npt.NDArray[np.bool_], turn: int) -> npt.NDArray[np.int64]:
    """At most AUDIT_ROWS of the rows that are replayed, evenly; others in the next turn, so that no
    sequence is always left out."""
    rows = np.flatnonzero(mask)
    return evenly(np.roll(rows, -turn), AUDIT_ROWS)


def _check_filled(filled: Filled, plan: Plan, chunk: _Chunk, live: bool) -> None:
    """InvalidArgumentError for what Megatron would take without a word."""
    ids = array_of("rows", filled.ids)
    shape = (len(chunk.layers), plan.rows, chunk.config.moe_router_topk)
    if ids.shape != shape or ids.dtype not in (np.int32, np.int64):
        raise InvalidArgumentError(
            f"rows: int32 or int64 {list(shape)}, got {ids.dtype} {list(ids.shape)}"
        )
    mask = truths("rows.mask", filled.mask, plan.rows)
    name, of = ("rows", mask) if live else ('rows (of fill="spread")', None)
    check_choices(name, ids, chunk.config.num_moe_experts, chunk.layer_ids, of)
