"""While a context lasts, the routers of a model replay given ids, or theirs are recorded: around
every call of a router, and of the decoder around them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import trainer
from .._arrays import check_choices, integers, truths
from .._compare import evenly
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._hooks import Refused, module, put_around
from .._rows import Rows
from .._types import UNKNOWN_VERSION
from ..trainer import Filled, Plan
from ._families import Router, decoder_of, routers_of
from ._place import Place, place_of, rows_of, same

_weighed: weakref.WeakSet[Any] = weakref.WeakSet()  # routers whose scores were compared once


_Self = TypeVar("_Self", bound="_Hooked")


class _Hooked:
    """The routers of a model, and its decoder around them, from ``__enter__`` to ``__exit__``."""

    def __init__(self, model: Any) -> None:
        self.routers = routers_of(model)
        self._decoder = decoder_of(model, self.routers)
        self._grad = False  # whether this forward began with gradients
        self._forwards = 0
        # Routers that ran in this forward, and whether its backward runs them again.
        self._ran: list[tuple[int, bool]] = []
        # Of each router: forwards that wait for their backward, which runs it again.
        self._waiting = [0] * len(self.routers)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model's numbers of the layers, from 0."""
        return tuple(router.layer_id for router in self.routers)

    @property
    def num_experts(self) -> int:
        """Of each layer."""
        return self.routers[0].num_experts

    def __enter__(self: _Self) -> _Self:
        self._forwards = 0
        with contextlib.ExitStack() as ends:
            for n, router in enumerate(self.routers):
                ends.callback(put_around(router.module, functools.partial(self._router, n)))
            ends.callback(put_around(self._decoder, self._forward_ends, self._forward_begins))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._ends.close()
        waiting, self._waiting = max(self._waiting), [0] * len(self.routers)
        if error is None and not self._forwards:
            raise FailedPreconditionError(
                "no forward of this model ended within the context: what ran, if anything, was a "
                "copy of the model, its layers without the model around them, or a graph that was "
                "made of it before (a CUDA graph, an export)"
            )
        if error is None and waiting:
            self._left_before_backward(waiting)

    def _left_before_backward(self, waiting: int) -> None:
        """A checkpoint will run the routers again, without this context. waiting: forwards."""

    def _forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        if mask is None and args:
            parameters = inspect.signature(self._decoder.forward)
            mask = parameters.bind_partial(*args, **kwargs).arguments.get("attention_mask")
        self._grad, self._ran = bool(module("torch").is_grad_enabled()), []
        self._begin(mask)

    def _forward_ends(self, out: Any) -> Any:
        if len(self._ran) != len(self.routers):
            raise FailedPreconditionError(
                f"{len(self._ran)} of {len(self.routers)} routers ran in a forward: another kernel "
                "has taken the place of the others, or their layers were skipped"
            )
        for n, again in self._ran:
            self._waiting[n] += again
        self._forwards += 1
        return out

    def _checkpointed(self) -> bool:
        """Whether what runs in a forward runs again in its backward: under a checkpoint that is
        reentrant, which takes the gradients away, or not."""
        torch = module("torch")
        if not self._grad or not torch.is_grad_enabled():
            return self._grad
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return any(one.__module__ == "torch.utils.checkpoint" for one in hooks or ())

    def _router(self, n: int, out: Any) -> Any:
        again = bool(module("torch")._C._current_graph_task_id() != -1)  # in a backward
        if not again:
            self._ran.append((n, self._checkpointed()))
        elif self._waiting[n]:
            self._waiting[n] -= 1
        router = self.routers[n]
        changed = self._routed(n, router, _checked(router, out), again)
        return out if changed is None else changed

    def _begin(self, attention_mask: Any) -> None:
        raise NotImplementedError

    def _routed(self, n: int, router: Router, out: Any, again: bool) -> Any:
        raise NotImplementedError


def _checked(router: Router, out: Any) -> Any:
    """What a router returned, if it is (logits, scores, ids)."""
    shapes = [list(getattr(one, "shape", ())) for one in out] if isinstance(out, tuple) else []
    rows = shapes[0][:1] if shapes else []
    if shapes != [rows + [router.num_experts], rows + [router.top_k], rows + [router.top_k]]:
        raise Refused(
            f"waymark: {router} is refused: it returns {shapes or type(out).__name__}, expected "
            f"logits [rows, {router.num_experts}], scores and ids [rows, {router.top_k}]"
        )
    return out


def _check_scores(router: Router, logits: Any, scores: Any, ids: Any) -> None:
    """Refused if the router weighs its own experts in another way than its family does."""
    if router.module in _weighed:
        return
    torch = module("torch")
    with torch.no_grad():
        expected, scores = router.weigh(router.module, logits, ids).float(), scores.float()
        finite = torch.isfinite(scores).all(-1)
        tolerance = 8 * float(torch.finfo(logits.dtype).eps)
        if not finite.any():
            raise Refused(f"waymark: {router} is refused: the router's scores are not finite")
        if not torch.allclose(expected[finite], scores[finite], tolerance, tolerance):
            raise Refused(
                f"waymark: {router} is refused: the scores of its own choices are not those of its "
                "family"
            )
    _weighed.add(router.module)


class Replaying(_Hooked):
    """Routers that replay; ``replay()`` makes it. One thread."""

    def __init__(self, model: Any, plan: Plan, filled: Filled, audit_rows: int | None) -> None:
        super().__init__(model)
        router = self.routers[0]
        self._plan, self._filled = plan, filled
        ids = integers("filled.ids", filled.ids, "layers", "rows", "K")
        wanted = (len(self.routers), plan.rows, router.top_k)
        if ids.shape != wanted:
            raise InvalidArgumentError(
                f"filled.ids: [layers, rows, K] {list(wanted)}, of the layers "
                f"{list(self.layer_ids)} and the rows of the plan, got {list(ids.shape)}"
            )
        mask = truths("filled.mask", filled.mask, plan.rows)
        # Other rows may have any fill.
        check_choices("filled.ids", ids, router.num_experts, self.layer_ids, mask)
        if audit_rows is not None and audit_rows < 0:
            raise InvalidArgumentError(f"audit_rows: at least 0, or None for all, got {audit_rows}")
        most = plan.rows if audit_rows is None else audit_rows
        self.own_rows: npt.NDArray[np.int64] = evenly(np.flatnonzero(mask), most)
        """int64 [n]: the replayed rows of the plan whose own choices are kept."""
        self._place: Place = None
        self._placed = False  # whether a forward has begun
        self._on: dict[Any, tuple[Any, ...]] = {}  # per device
        self._own: list[Any] = [None] * len(self.routers)

    @property
    def own(self) -> npt.NDArray[np.int64]:
        """int64 [layers, n, K]: what the routers would have chosen themselves for ``own_rows`` in
        the last forward. FailedPreconditionError before it."""
        if any(ids is None for ids in self._own):
            raise FailedPreconditionError("no forward has been replayed yet")
        return np.stack([ids.cpu().numpy() for ids in self._own])

    def audit(self, *, least_agreement: float = 0.8, max_rows: int = 256) -> trainer.Audit:
        """``trainer.audit()`` of the ids that were given and ``own``: are they of these tokens?
        Afterwards as well as within the context."""
        return trainer.audit(
            self._plan,
            self._filled,
            self.own,
            num_experts=self.num_experts,
            rows=self.own_rows,
            least_agreement=least_agreement,
            max_rows=max_rows,
        )

    def _left_before_backward(self, waiting: int) -> None:
        raise FailedPreconditionError(
            "replay: gradient checkpointing runs the forward again in backward(), and the routers "
            "would then choose for themselves: call backward() before the context is left, got "
            f"{waiting} forwards that wait for theirs"
        )

    def _begin(self, attention_mask: Any) -> None:
        place = place_of(self._plan, attention_mask)
        if self._placed and not same(place, self._place):
            raise InvalidArgumentError(
                "attention_mask: the same in all forwards of one replay, got one that is padded "
                "otherwise"
            )
        self._place, self._placed = place, True

    def _prepared(self, device: Any) -> tuple[Any, ...]:
        """(rows of the plan or None, mask, forward rows of own_rows) on a device."""
        if device not in self._on:
            torch, place = module("torch"), self._place
            mask = np.asarray(self._filled.mask)
            own = rows_of(self._plan, place)[self.own_rows]
            index: Any = None
            if place is not None:
                mask = mask[place] & (place >= 0)
                index = torch.from_numpy(place.clip(0)).to(device)
            mask = torch.from_numpy(mask).to(device)
            self._on[device] = index, mask[:, None], torch.from_numpy(own).to(device)
        return self._on[device]

    def _routed(self, n: int, router: Router, out: Any, again: bool) -> Any:
        logits, scores, own = out
        index, mask, sample = self._prepared(own.device)
        if len(own) != len(mask):
            raise InvalidArgumentError(
                f"{router}: got {len(own)} rows, {len(mask)} are replayed: a plan of other "
                "sequences, or a forward with a KV cache"
            )
        _check_scores(router, logits, scores, own)
        target = module("torch").as_tensor(self._filled.ids[n])
        target = target.to(own.device, own.dtype, non_blocking=True)
        if index is not None:
            target = target[index]
        if not again:
            self._own[n] = own.detach()[sample]
        # Rows that are not replayed have a fill, which need not be the id of an expert.
        ids = module("torch").where(mask, target, own)
        return logits, router.weigh(router.module, logits, ids).to(scores.dtype), ids


class Recording(_Hooked):
    """Routers whose choices are recorded; ``record()`` makes it. One thread."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._mask: Any = None
        self._ids: list[Any] = [None] * len(self.routers)

    @property
    def ids(self) -> Sequence[Any]:
        """The choices in the last forward: a tensor int64 [rows of the forward, K] of each layer,
        in the order of layer_ids, where the router is. FailedPreconditionError before a forward."""
        if any(ids is None for ids in self._ids):
            raise FailedPreconditionError("no forward has been recorded yet")
        return list(self._ids)

    def rows(self, plan: Plan, *, version: int = UNKNOWN_VERSION) -> list[Rows]:
        """The choices in the last forward as rows of each sequence (R2). plan: of its batch; where
        the tokens are, the attention mask of the forward says. version: of the weights, if you know
        it."""
        return plan.collect(
            self._planned(plan),
            num_experts=self.num_experts,
            layer_ids=self.layer_ids,
            version=version,
        )

    def audit(
        self, plan: Plan, filled: Filled, *, least_agreement: float = 0.8, max_rows: int = 256
    ) -> trainer.Audit:
        """``trainer.audit()`` of ids that might be replayed and the choices in the last forward. It
        names an error more surely than an audit while wrong ids are replayed, because those change
        what the routers of later layers see."""
        return trainer.audit(
            plan,
            filled,
            self._planned(plan),
            num_experts=self.num_experts,
            least_agreement=least_agreement,
            max_rows=max_rows,
        )

    def _planned(self, plan: Plan) -> npt.NDArray[np.int64]:
        """The choices in the last forward, in the rows of a plan."""
        ids = np.stack([layer.cpu().numpy() for layer in self.ids])
        place = place_of(plan, self._mask)
        if ids.shape[1] != (plan.rows if place is None else len(place)):
            raise InvalidArgumentError(
                f"plan: of the {ids.shape[1]} rows of the forward, got {plan.rows}"
            )
        if place is None:
            return ids
        planned = np.full((len(ids), plan.rows, ids.shape[2]), -1)  # padding
        planned[:, place[place >= 0]] = ids[:, place >= 0]
        return planned

    def _begin(self, attention_mask: Any) -> None:
        self._mask = attention_mask
        self._ids = [None] * len(self.routers)

    def _routed(self, n: int, router: Router, out: Any, again: bool) -> Any:
        if not again:
            self._ids[n] = out[2].detach()


def replay(model: Any, plan: Plan, filled: Filled, *, audit_rows: int | None = 256) -> Replaying:
    """A context in which the routers of a model take the experts of the rows of ``filled``. They
    weigh these experts by their own logits, so that gradients reach the gates. Rows whose mask is
    False are routed as usual.

    model: a model of transformers, or the part of it that has the routers; wrappers that keep its
    modules may be around it. plan: of the tokens of the batch. The attention mask of the forward
    says where they are, and so the batch may be padded on any side; without a mask the rows of the
    routers are the plan's, ``order="batch-major"`` for [B, S]. filled: ``plan.fill(rows,
    layer_ids(model))``, in host memory. audit_rows: of how many rows the routers' own choices are
    kept for ``Replaying.audit()``; None: of all.

    Forwards and backwards within it are of this batch, and so ``generate()`` cannot be. With
    gradient checkpointing, which runs the layers again in the backward, the backward of every
    forward has to be within it, too. The model may be compiled (torch.compile), also before.

    Refused for a model whose routers are not known. InvalidArgumentError, in the forward, for a
    batch that has other tokens than the plan. FailedPreconditionError on entering if the routers
    are replayed or recorded already, after a forward in which one of them did not run, and on
    leaving if no forward has ended, or before the backward of every checkpointed forward; forwards
    without a backward belong under ``torch.no_grad()``. InvalidArgumentError if rows to be replayed
    have an id out of range, or one twice."""
    return Replaying(model, plan, filled, audit_rows)


def record(model: Any) -> Recording:
    """A context in which the routers' choices are recorded: as tensors (``Recording.ids``), for
    example of an engine's step, or as rows of sequences (``Recording.rows()``). Errors as of
    replay()."""
    return Recording(model)
