"""Routing: from router logits to the experts of every token, recorded or replayed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Union

import numpy as np

from . import _core
from ._core import View
from ._errors import InvalidArgumentError
from ._types import RoutingMethod, number_of

Method = Union[
    RoutingMethod,
    Literal[
        "default", "renormalize", "renormalize_naive", "deepseek_v3", "llama4", "top_k",
        "sigmoid_renorm", "minimax2", "sigmoid", "top_k_sigmoid",
    ],
]  # fmt: skip
_METHODS = {method.name.lower(): method.value for method in RoutingMethod}


class Routing(NamedTuple):
    """The experts of N tokens: the arrays that were written, given or new."""

    topk_ids: Any
    """int32 [N, K]: by selection key, greatest first; of equal keys the lowest id."""
    topk_weights: Any
    """float32 or bfloat16 [N, K]: what each expert's output is multiplied by."""
    routed: Any
    """uint8 [N], 1 where a row of replay_in was not usable and was routed; None without
    replay_in."""


def route(
    logits: object,
    *,
    top_k: int,
    method: Method = "renormalize",
    bias: object | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
    normalize: bool = True,
    topk_ids: object | None = None,
    topk_weights: object | None = None,
    replay_in: object | None = None,
    routed: object | None = None,
    replay_out: object | None = None,
    view: View | None = None,
    layer: int | None = None,
    stream: object | None = None,
) -> Routing:
    """Selects ``top_k`` of E experts for each of N tokens, with their weights. The engine uses the
    ids that come back, so what is recorded is what was used.

    Arrays are numpy, or anything with DLPack, __cuda_array_interface__ or data_ptr(); all lie on
    one device, and elements of a row are adjacent. On a device nothing is allocated, so ``topk_ids``,
    ``topk_weights`` (and ``routed`` with replay_in) must be given there; numpy arrays are made where
    they are not given. Outputs may have more than N rows.

    logits: float32, float16 or bfloat16 [N, E], E <= 1024. top_k: 1 ... min(E, 32). bias: float32
    [E], of the methods "deepseek_v3" and "minimax2", as is scale. num_groups, topk_groups:
    "deepseek_v3" keeps topk_groups of num_groups groups of experts. normalize: "sigmoid_renorm".

    replay_in: int16 [N, K], recorded ids: a row of K distinct ids in [0, E) is used as it is, and
    only its weights are computed; any other row is routed, and ``routed`` says so. replay_out:
    int16 [N, K], the ids again.

    view, layer: records the ids in rows [0, N) of a captured layer of a CaptureSession's view,
    which is bound as "routing_kernel". N is at most max_rows; E and K are the store's. Engine's
    thread; on a device in order with the session's stream (set_stream). Without a view: any thread,
    in order with ``stream`` (an int, an object with cuda_stream or __cuda_stream__(), or None: the
    default stream) of the current device. Nothing is synchronised, so a graph can capture the call.

    InvalidArgumentError names the argument, the rule and the value; nothing was written then.
    UnimplementedError for arrays of a device where CUDA was not built in.
    """
    number = number_of("method", method, _METHODS) if isinstance(method, str) else int(method)
    if num_groups < 1 or topk_groups < 1:
        raise InvalidArgumentError(
            f"num_groups, topk_groups: at least 1, got {num_groups}, {topk_groups}"
        )
    if scale == 0:
        raise InvalidArgumentError("scale: not 0, got 0")
    if (view is None) != (layer is None):
        raise InvalidArgumentError("view, layer: both or neither")
    if view is not None and stream is not None:
        raise InvalidArgumentError("stream: not with a view, which has its session's stream")
    if isinstance(logits, np.ndarray) and logits.ndim == 2:
        shape = (len(logits), min(max(top_k, 0), 32))
        topk_ids = np.empty(shape, np.int32) if topk_ids is None else topk_ids
        topk_weights = np.empty(shape, np.float32) if topk_weights is None else topk_weights
        if replay_in is not None and routed is None:
            routed = np.empty(len(logits), np.uint8)
    _core.route(
        logits, topk_ids, topk_weights, bias, replay_in, routed, replay_out, number, top_k,
        num_groups, topk_groups, scale, normalize, view, -1 if layer is None else layer, stream,
    )  # fmt: skip
    return Routing(topk_ids, topk_weights, routed)
