"""waymark.hf on look-alikes of the modules of transformers, and of the part of torch that it uses.

tests/integration/trainer/families.py runs it in real models.
"""

from __future__ import annotations

import contextlib
import copy
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import waymark
import waymark.hf
from conftest import output_of
from waymark import _hooks, trainer
from waymark.hf import Refused, _families, _replay
from waymark.trainer import Filled, Plan

K, EXPERTS, WIDTH = 4, 16, 8
LENGTHS = (9, 4, 6)


class Tensor(np.ndarray):
    """What waymark.hf uses of torch's."""

    device = "cpu"

    def float(self) -> Any:
        return self.astype(np.float32)

    def softmax(self, axis: int, dtype: Any = None) -> Any:
        e = np.exp(self - self.max(axis, keepdims=True))
        return (e / e.sum(axis, keepdims=True)).astype(dtype or self.dtype)

    def sigmoid(self) -> Any:
        return 1 / (1 + np.exp(-self))

    def gather(self, axis: int, ids: Any) -> Any:
        return np.take_along_axis(self, np.asarray(ids), axis)

    def sum(self, axis: Any = None, keepdim: bool = False, **more: Any) -> Any:
        return np.asarray(self).sum(axis, keepdims=keepdim).view(Tensor) if keepdim else np.asarray(self).sum(axis, **more)

    def to(self, *to: Any, non_blocking: bool = False) -> Any:
        return self.astype([one for one in to if one != "cpu"][0]) if to != ("cpu",) else self

    def detach(self) -> Any:
        return self

    cpu = detach

    def where(self, condition: Any, other: Any) -> Any:
        return tensor(np.where(condition, self, other))

    def numpy(self) -> Any:
        return np.asarray(self)


def tensor(values: Any) -> Any:
    return np.asarray(values).view(Tensor)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.SimpleNamespace(
        grad=True, task=-1, no_grad=contextlib.nullcontext, finfo=np.finfo, from_numpy=tensor,
        as_tensor=tensor, where=lambda *args: tensor(np.where(*args)), allclose=np.allclose,
        isfinite=np.isfinite, saved_tensors=None,
    )  # fmt: skip
    module.is_grad_enabled = lambda: module.grad
    module.compiler = types.SimpleNamespace(disable=lambda function, recursive=True: function)
    autograd = types.SimpleNamespace(_top_saved_tensors_default_hooks=lambda _: module.saved_tensors)
    module._C = types.SimpleNamespace(_current_graph_task_id=lambda: module.task, _autograd=autograd)
    monkeypatch.setattr(_replay, "module", lambda name: module)
    monkeypatch.setattr(_hooks, "module", lambda name: module)
    _hooks._class_around.cache_clear()
    monkeypatch.setattr(_replay, "_weighed", set())
    return module


class Handle:
    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        self.hooks.remove(self.hook)


class Module:
    def __init__(self, **children: Any) -> None:
        self.children, self.after = children, []
        for name, child in children.items():
            setattr(self, name, child)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Any]:
        return (module for _, module in self.named_modules())

    def register_forward_hook(self, hook: Any) -> Handle:
        return Handle(self.after, hook)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self.forward(*args, **kwargs)
        for hook in list(self.after):
            changed = hook(self, args, out)
            out = out if changed is None else changed
        return out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Qwen3MoeTopKRouter(Module):
    """States [T, WIDTH] to (logits, scores, ids)."""

    def __init__(self, rng: np.random.Generator, top_k: int = K) -> None:
        super().__init__()
        self.weight = rng.standard_normal((EXPERTS, WIDTH)).astype(np.float32)
        self.top_k, self.num_experts, self.norm_topk_prob = top_k, EXPERTS, True

    def forward(self, states: Any) -> Any:
        logits = tensor(states @ self.weight.T)
        ids = tensor(np.argsort(-logits, axis=1)[:, : self.top_k].astype(np.int64))
        scores = logits.softmax(-1).gather(1, ids)
        return logits, scores / scores.sum(-1, keepdim=True), ids


class FSDPQwen3MoeTopKRouter(Qwen3MoeTopKRouter):
    """As a sharded module is called."""


class Layer(Module):
    """What its experts were given: calls of (scores, ids)."""

    def __init__(self, **children: Any) -> None:
        super().__init__(**children)
        self.given: list[Any] = []

    def forward(self, states: Any) -> Any:
        if "gate" in self.children:
            _, scores, ids = self.gate(states)
            self.given.append((np.asarray(scores), np.asarray(ids)))
        return states


class Decoder(Module):
    """Tokens [B, S] to nothing: the states are a function of the token and the layer."""

    def __init__(self, routers: dict[int, Any]) -> None:
        layers = {
            str(i): Layer(gate=routers[i]) if i in routers else Layer() for i in range(max(routers) + 1)
        }
        super().__init__(layers=Module(**layers))
        self.layers_in_order = list(layers.values())
        self.skipped: Any = None

    def states(self, tokens: Any, layer: int) -> Any:
        turn = np.arange(WIDTH) * (layer + 1)
        return np.sin(np.asarray(tokens).reshape(-1, 1) * (turn + 1.7)).astype(np.float32)

    def forward(self, tokens: Any, attention_mask: Any = None) -> None:
        for i, layer in enumerate(self.layers_in_order):
            if i != self.skipped:
                layer(self.states(tokens, i))


class Model(Module):
    def __init__(self, routers: dict[int, Any] | None = None, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        made = routers or {1: Qwen3MoeTopKRouter(rng), 3: FSDPQwen3MoeTopKRouter(rng)}
        super().__init__(model=Decoder(made))

    def forward(self, tokens: Any, attention_mask: Any = None) -> None:
        self.model(tokens, attention_mask=attention_mask)

    @property
    def given(self) -> list[Any]:
        """Of each layer with a router, in the last call."""
        return [layer.given[-1] for layer in self.model.layers_in_order if layer.given]

    def classes(self) -> int:
        """How many of its modules have a class of waymark.hf's."""
        return sum("__call__" in vars(type(module)) for module in self.modules() if type(module) is not Module)


def batch(side: str) -> tuple[Any, Any, list[Any]]:
    """(tokens, mask, where the tokens of each sequence are in the rows)."""
    longest = max(LENGTHS) + 2
    tokens, mask, at = np.zeros((3, longest), np.int64), np.zeros((3, longest), np.int64), []
    for b, length in enumerate(LENGTHS):
        begin = {"left": longest - length, "right": 0, "both": 1}[side]
        tokens[b, begin : begin + length] = 100 * b + np.arange(length) + 1
        mask[b, begin : begin + length] = 1
        at.append(b * longest + begin + np.arange(length))
    return tokens, tensor(mask), at


def rows_of(seed: int = 5) -> list[waymark.Rows]:
    """Of each sequence all tokens but the last; one of the first sequence is missing."""
    rng = np.random.default_rng(seed)
    rows = []
    for length in LENGTHS:
        ids = rng.random((length - 1, 2, EXPERTS)).argsort(-1)[..., :K]
        valid = np.arange(length - 1) != (2 if length == LENGTHS[0] else -1)
        rows.append(waymark.Rows.from_array(ids, num_experts=EXPERTS, layer_ids=(1, 3), valid=valid))
    return rows


def planned(order: Any = "batch-major", **more: Any) -> tuple[Plan, Filled]:
    plan = trainer.Layout(order=order).plan(LENGTHS)
    return plan, plan.fill(rows_of(), (1, 3), **more)


def test_importing_it_imports_no_torch() -> None:
    output_of("import sys, waymark.hf; assert not {'torch', 'transformers'} & set(sys.modules)")


def test_the_layers_are_those_of_the_routers() -> None:
    assert waymark.hf.layer_ids(Model()) == (1, 3)
    assert waymark.hf.layer_ids(Model().model) == (1, 3)
    assert waymark.hf.layer_ids(Module(wrapped=Model())) == (1, 3)


class ModulesToSaveWrapper(Module):
    """PEFT's, around a router."""

    def __init__(self, original: Any, saved: Any) -> None:
        super().__init__(original_module=original, modules_to_save=saved)
        self.disable_adapters, self.active_adapters = False, ["default"]


def test_of_a_router_that_peft_trains_the_active_one_counts() -> None:
    """Regression: "are both routers of layer 1; give the part that is to be replayed"."""
    rng = np.random.default_rng(0)
    original, copies = Qwen3MoeTopKRouter(rng), {name: Qwen3MoeTopKRouter(rng) for name in ("default", "b")}

    class Saved(Module, dict):  # type: ignore[type-arg]
        __hash__ = object.__hash__

    saved = Saved(**copies)
    saved.update(copies)
    wrapper = ModulesToSaveWrapper(original, saved)
    model = Model({1: wrapper, 3: Qwen3MoeTopKRouter(rng)})
    for active, disabled, runs in ((["default"], False, "default"), (["b"], False, "b"), (["b"], True, ""), ([], False, "")):
        wrapper.active_adapters, wrapper.disable_adapters = active, disabled
        first = waymark.hf.record(model).routers[0].module
        assert first is copies.get(runs, original)


class Llama4Router(Module):
    pass


class JambaSparseMoeBlock(Module):
    pass


def renamed(**attributes: Any) -> Model:
    model = Model()
    for name, value in attributes.items():
        setattr(model.model.layers_in_order[3].gate, name, value)
    return model


def test_a_model_that_is_not_known_is_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    without = Model()
    del without.model.layers_in_order[3].gate.top_k
    cases = {
        "Llama4Router (model.layers.2.gate) is refused: how it weighs": Model(
            {1: Qwen3MoeTopKRouter(rng), 2: Llama4Router()}
        ),
        "JambaSparseMoeBlock has no router that is a module": Module(moe=JambaSparseMoeBlock()),
        "none of its modules routes": Module(mlp=Module()),
        "NoneType is refused: it is no module of torch": None,
        "Qwen3MoeTopKRouter (gate) is refused: its name has no layers.N": Module(
            gate=Qwen3MoeTopKRouter(rng)
        ),
        "talker.model.layers.1.gate are both routers of layer 1": Module(
            thinker=Model(), talker=Model()
        ),
        "it has no top_k": without,
        "FSDPQwen3MoeTopKRouter of layer 3 chooses 2 of 16 experts": renamed(top_k=2),
    }
    for text, model in cases.items():
        with pytest.raises(Refused, match=re.escape(text)):
            waymark.hf.layer_ids(model)


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_experts_get_the_given_rows_and_every_other_row_is_routed_as_usual(side: str) -> None:
    model, (tokens, mask, at) = Model(), batch(side)
    model(tokens, attention_mask=mask)
    usual = model.given
    plan, filled = planned()
    with waymark.hf.replay(model, plan, filled):
        model(tokens, attention_mask=mask)
    replayed = np.zeros(tokens.size, np.bool_)
    for rows, where in zip(rows_of(), at):
        where = where[:-1][rows.valid]
        replayed[where] = True
        for n, (scores, ids) in enumerate(model.given):
            assert scores.dtype == np.float32
            assert (ids[where] == rows.ids[rows.valid][:, n]).all()
            layer = (1, 3)[n]
            logits = model.model.states(tokens, layer) @ model.model.layers_in_order[layer].gate.weight.T
            chosen = np.exp(np.take_along_axis(logits, ids, 1))
            np.testing.assert_allclose(scores, chosen / chosen.sum(1, keepdims=True), rtol=1e-4)
    assert replayed.sum() == sum(LENGTHS) - 3 - 1
    for (scores, ids), (usual_scores, usual_ids) in zip(model.given, usual):
        assert (ids[~replayed] == usual_ids[~replayed]).all()
        np.testing.assert_allclose(scores[~replayed], usual_scores[~replayed], rtol=1e-6)


def test_without_a_mask_the_rows_are_those_of_the_plan() -> None:
    model = Model()
    plan, filled = planned("packed")
    for mask in (None, np.ones((1, plan.rows)), np.ones((1, 1, plan.rows, plan.rows))):
        with waymark.hf.replay(model, plan, filled):
            model(np.arange(plan.rows)[None], attention_mask=mask)
        for n, (_, ids) in enumerate(model.given):
            assert (ids[filled.mask] == filled.ids[n][filled.mask]).all()


def test_everything_is_put_back_also_after_an_error() -> None:
    model, (tokens, mask, _) = Model(), batch("left")
    plan, filled = planned()
    with waymark.hf.replay(model, plan, filled):
        assert model.classes() == 3
        for second in (waymark.hf.replay(model, plan, filled), waymark.hf.record(model.model)):
            with pytest.raises(waymark.FailedPreconditionError, match="already"):
                second.__enter__()
        assert model.classes() == 3
        model(tokens, attention_mask=mask)
    assert model.classes() == 0
    with pytest.raises(KeyError), waymark.hf.replay(model, plan, filled):
        raise KeyError
    assert model.classes() == 0
    with waymark.hf.record(model):
        model(tokens, attention_mask=mask)
    assert model.classes() == 0


def test_a_wrong_batch_is_refused_in_the_forward() -> None:
    plan, filled = planned()
    tokens, mask, _ = batch("right")
    shorter, other = mask.copy(), batch("left")[1]
    shorter[1, 3] = 0
    cases: list[tuple[str, list[Any]]] = [
        ("attention_mask: 4 tokens in sequence 1, as the plan has, got 3", [(tokens, shorter)]),
        ("attention_mask: 3 sequences, as the plan has, got 2", [(tokens[:2], mask[:2])]),
        ("Qwen3MoeTopKRouter of layer 1: got 33 rows, 27 are replayed", [(tokens, None)]),
        ("Qwen3MoeTopKRouter of layer 1: got 3 rows, 33 are replayed", [(tokens[:, :1], mask)]),
        ("the same in all forwards", [(tokens, mask), (tokens, other)]),
    ]
    for text, forwards in cases:
        with pytest.raises(waymark.InvalidArgumentError, match=re.escape(text)):
            with waymark.hf.replay(Model(), plan, filled) as replaying:
                for given, of in forwards:
                    replaying._decoder(given, attention_mask=of)


def test_a_positional_mask_counts() -> None:
    plan, filled = planned()
    tokens, mask, _ = batch("right")
    model = Model()
    with waymark.hf.replay(model, plan, filled):
        model.model(tokens, mask)
    mask[1, 3] = 0
    with pytest.raises(waymark.InvalidArgumentError, match="4 tokens in sequence 1"):
        with waymark.hf.replay(model, plan, filled):
            model.model(tokens, mask)


def test_what_is_filled_for_another_model_is_refused() -> None:
    plan, filled = planned()
    replayed = int(np.flatnonzero(filled.mask)[3])
    many, negative, twice = filled.ids.copy(), filled.ids.copy(), filled.ids.copy()
    many[1, replayed, 2], negative[1, replayed, 2] = EXPERTS, -1
    twice[1, replayed, 2] = twice[1, replayed, 0]
    unused = filled.ids.copy()
    unused[1, np.flatnonzero(~filled.mask)[0], 2] = EXPERTS
    waymark.hf.replay(Model(), plan, filled._replace(ids=unused))
    cases = {
        "filled.ids: [layers, rows, K] [2, 27, 4], of the layers [1, 3] and the rows of the plan, got "
        "[1, 27, 4]": filled._replace(ids=filled.ids[:1]),
        "got [2, 26, 4]": filled._replace(ids=filled.ids[:, 1:]),
        "filled.mask: bool [27], got int64 [27]": filled._replace(mask=filled.mask.astype(np.int64)),
        "filled.ids: ids in [0, 16), got 16": filled._replace(ids=many),
        # Regression: torch's own error, from inside of the forward.
        "filled.ids: ids in [0, 16), got -1": filled._replace(ids=negative),
        # Regression: replayed, also after they were cut to integers.
        f"filled.ids: distinct ids in a row, got {twice[1, replayed, 0]} twice in row {replayed} of "
        "layer 3": filled._replace(ids=twice),
        "filled.ids: integers [layers, rows, K], got float64": filled._replace(ids=filled.ids + 0.5),
        "filled.ids: no masked array": filled._replace(ids=np.ma.masked_array(filled.ids)),
        "filled.mask: no masked array": filled._replace(mask=np.ma.masked_array(filled.mask)),
    }
    for text, given in cases.items():
        with pytest.raises(waymark.InvalidArgumentError, match=re.escape(text)):
            waymark.hf.replay(Model(), plan, given)
    with pytest.raises(waymark.InvalidArgumentError, match="audit_rows: .*got -1"):
        waymark.hf.replay(Model(), plan, filled, audit_rows=-1)


def test_another_version_of_a_router_is_refused() -> None:
    plan, filled = planned()
    tokens, mask, _ = batch("left")
    forward = Qwen3MoeTopKRouter.forward
    nan = np.float32(np.nan)
    cases: dict[str, Callable[[Any, Any], Any]] = {
        # Regression: "this version of transformers weighs them in another way".
        "the router's scores are not finite": lambda self, states: forward(self, states * nan),
        "it returns [[33, 16], [33, 4]]": lambda self, states: forward(self, states)[::2],
        "it returns Tensor, expected logits [rows, 16]": lambda self, states: forward(self, states)[0],
        "not those of its family": lambda self, states: (
            lambda logits, scores, ids: (logits, scores * 2.5, ids)
        )(*forward(self, states)),
    }
    for text, changed in cases.items():
        model = Model()
        gate = model.model.layers_in_order[3].gate
        gate.forward = types.MethodType(changed, gate)
        text = f"FSDPQwen3MoeTopKRouter of layer 3 is refused.*{re.escape(text)}"
        with pytest.raises(Refused, match=text), waymark.hf.replay(model, plan, filled):
            model(tokens, attention_mask=mask)
        assert model.classes() == 0


def test_a_router_that_does_not_run_is_noticed() -> None:
    plan, filled = planned()
    tokens, mask, _ = batch("left")
    for context in (lambda of: waymark.hf.replay(of, plan, filled), waymark.hf.record):
        model = Model()
        model.model.skipped = 3
        with pytest.raises(waymark.FailedPreconditionError, match="1 of 2 routers ran"):
            with context(model):
                model(tokens, attention_mask=mask)


def test_a_context_without_a_forward_is_an_error() -> None:
    """Regression: a copy of the model ran, or a graph that was compiled before, and the gradients
    were those without replay."""
    plan, filled = planned()
    tokens, mask, _ = batch("left")
    for context in (lambda of: waymark.hf.replay(of, plan, filled), waymark.hf.record):
        model = Model()
        layer, before = model.model.layers_in_order[1], copy.deepcopy(model)
        for run in (
            lambda: None,
            lambda: before(tokens, attention_mask=mask),
            lambda: copy.deepcopy(model)(tokens, attention_mask=mask),
            lambda: layer(model.model.states(tokens, 1)),
        ):
            with pytest.raises(waymark.WaymarkError, match="no forward of this model|27 are replayed"):
                with context(model):
                    assert copy.deepcopy(model).classes() == 0
                    run()
            assert model.classes() == 0
        with pytest.raises(KeyError), context(model):
            raise KeyError  # is not replaced


def test_a_hook_of_another_does_not_replace_what_is_replayed() -> None:
    """Regression: a hook that was set within the context had the last word."""
    model, (tokens, mask, at) = Model(), batch("left")
    plan, filled = planned()
    model(tokens, attention_mask=mask)
    with waymark.hf.replay(model, plan, filled):
        for layer in (1, 3):
            gate = model.model.layers_in_order[layer].gate
            gate.register_forward_hook(lambda of, args, out: (out[0], out[1][:, ::-1], out[2][:, ::-1]))
        model(tokens, attention_mask=mask)
    for rows, where in zip(rows_of(), at):
        for n, (_, ids) in enumerate(model.given):
            assert (ids[where[:-1][rows.valid]] == rows.ids[rows.valid][:, n]).all()


def backward(torch: Any, model: Model, tokens: Any, number: int = 1) -> None:
    """The first layer with a router runs again in a call of backward()."""
    torch.task = number
    model.model.layers_in_order[1](model.model.states(tokens, 1))
    torch.task = -1


def checkpointed(torch: Any, model: Model) -> None:
    """The first layer with a router runs in a checkpoint that is not reentrant."""
    layer = model.model.layers_in_order[1]
    usual = layer.forward

    def pack(saved: Any) -> Any: ...

    pack.__module__ = "torch.utils.checkpoint"

    def forward(states: Any) -> Any:
        torch.saved_tensors = (pack, pack)
        try:
            return usual(states)
        finally:
            torch.saved_tensors = None

    layer.forward = forward


def test_the_second_forward_of_a_checkpoint_replays() -> None:
    model, (tokens, mask, at) = Model(), batch("left")
    plan, filled = planned()
    with waymark.hf.replay(model, plan, filled) as replaying:
        model(tokens, attention_mask=mask)
        own = replaying.own
        _replay.module("torch").task = 3  # the layers run, without the decoder around them
        for i, layer in enumerate(model.model.layers_in_order):
            layer(model.model.states(0 * tokens, i))
    assert (replaying.own == own).all(), "what is audited is of the forward"
    for rows, where in zip(rows_of(), at):
        for n, (_, ids) in enumerate(model.given):
            assert (ids[where[:-1][rows.valid]] == rows.ids[rows.valid][:, n]).all()


def test_leaving_before_the_backward_of_a_checkpoint_is_an_error(torch: Any) -> None:
    model, (tokens, mask, _) = Model(), batch("left")
    plan, filled = planned()
    checkpointed(torch, model)
    with pytest.raises(waymark.FailedPreconditionError, match=r"call backward\(\) before"):
        with waymark.hf.replay(model, plan, filled):
            model(tokens, attention_mask=mask)
    assert model.classes() == 0
    with pytest.raises(KeyError), waymark.hf.replay(model, plan, filled):
        model(tokens, attention_mask=mask)
        raise KeyError  # is not replaced
    with waymark.hf.record(model):
        model(tokens, attention_mask=mask)
    torch.grad = False  # no backward will come
    with waymark.hf.replay(model, plan, filled):
        model(tokens, attention_mask=mask)


@pytest.mark.parametrize("reentrant", [True, False])
def test_every_forward_waits_for_a_backward_of_its_own(torch: Any, reentrant: bool) -> None:
    """Regression: the first backward ended the wait of all forwards, and a router of another forward
    chose for itself behind the context, without an error."""
    model, (tokens, mask, at) = Model(), batch("left")
    plan, filled = planned()
    layers = model.model.layers_in_order
    if not reentrant:
        checkpointed(torch, model)

    def forward() -> None:
        if reentrant:  # a checkpoint of any kind, which takes the gradients away in its forward
            usual = layers[1].forward

            def without_gradients(states: Any) -> Any:
                torch.grad = False
                try:
                    return usual(states)
                finally:
                    torch.grad = True

            layers[1].forward = without_gradients
        model(tokens, attention_mask=mask)
        if reentrant:
            layers[1].forward = usual

    for forwards in range(1, 4):
        for backwards in range(forwards):
            left = forwards - backwards
            with pytest.raises(waymark.FailedPreconditionError, match=f"got {left} forwards that wait"):
                with waymark.hf.replay(model, plan, filled):
                    for _ in range(forwards):
                        forward()
                    for number in range(backwards):
                        backward(torch, model, tokens, number)
            assert model.classes() == 0
        # All of them, in turns or at the end, of several backwards or of one.
        for turns, one in ((True, False), (False, False), (False, True)):
            with waymark.hf.replay(model, plan, filled):
                for number in range(forwards):
                    forward()
                    backward(torch, model, tokens, number) if turns else None
                for number in range(0 if turns else forwards):
                    backward(torch, model, tokens, 0 if one else number)
                for rows, where in zip(rows_of(), at):
                    ids = layers[1].given[-1][1]
                    assert (ids[where[:-1][rows.valid]] == rows.ids[rows.valid][:, 0]).all()


def test_a_forward_that_failed_waits_for_nothing(torch: Any) -> None:
    model, (tokens, mask, _) = Model(), batch("left")
    checkpointed(torch, model)
    plan, filled = planned()
    with waymark.hf.replay(model, plan, filled):
        model.model.skipped = 3
        with pytest.raises(waymark.FailedPreconditionError, match="1 of 2 routers"):
            model(tokens, attention_mask=mask)
        model.model.skipped = None
        model(tokens, attention_mask=mask)
        backward(torch, model, tokens)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("order", ["batch-major", "packed", "sequence-major"])
def test_recorded_choices_are_rows_and_replay_changes_nothing(side: str, order: Any) -> None:
    model, (tokens, mask, at) = Model(), batch(side)
    plan = trainer.Layout(order=order).plan(LENGTHS)
    with waymark.hf.record(model) as recorded:
        with pytest.raises(waymark.FailedPreconditionError, match="no forward"):
            recorded.ids
        model(tokens, attention_mask=mask)
    usual, rows = model.given, recorded.rows(plan, version=7)
    assert recorded.layer_ids == (1, 3) and recorded.num_experts == EXPERTS
    for sequence, where in zip(rows, at):
        assert sequence.valid.all() and sequence.coverage()[0].version == 7
        for n in range(2):
            assert (sequence.ids[:, n] == usual[n][1][where]).all()
            assert (np.asarray(recorded.ids[n])[where] == usual[n][1][where]).all()
    filled = plan.fill(rows, recorded.layer_ids)
    with waymark.hf.replay(model, plan, filled, audit_rows=None) as replaying:
        model(tokens, attention_mask=mask)
    for (scores, ids), (usual_scores, usual_ids) in zip(model.given, usual):
        assert (ids == usual_ids).all()
        np.testing.assert_allclose(scores, usual_scores, rtol=1e-6)
    assert len(replaying.own_rows) == sum(LENGTHS)
    assert replaying.audit().agreement == 1 and not replaying.audit().alarms
    assert recorded.audit(plan, filled).agreement == 1
    with pytest.raises(waymark.InvalidArgumentError, match="attention_mask: 2 tokens in sequence 0"):
        recorded.rows(trainer.Layout().plan([2, 4, 6]))


def test_rows_of_another_order_than_those_of_a_forward_are_refused() -> None:
    """Without a mask nothing tells where the tokens are, and there are as many rows in any order."""
    model, tokens = Model(), np.arange(12).reshape(2, 6) * 7 % 83
    plans = {order: trainer.Layout(order=order).plan([6, 6]) for order in ("batch-major", "sequence-major")}  # type: ignore[arg-type]
    with waymark.hf.record(model) as recorded:
        model(tokens)
    rows = recorded.rows(plans["batch-major"])
    assert (rows[0].infos["version"] == waymark.UNKNOWN_VERSION).all()
    with pytest.raises(waymark.InvalidArgumentError, match="got 'sequence-major'"):
        recorded.rows(plans["sequence-major"])
    for order, plan in plans.items():
        refused = order == "sequence-major"
        with waymark.hf.replay(model, plan, plan.fill(rows, (1, 3))) as replaying:
            with pytest.raises(waymark.InvalidArgumentError, match=order) if refused else contextlib.nullcontext():
                model(tokens)
            model(tokens, attention_mask=tensor(np.ones((2, 6), np.int64))) if refused else None
        assert replaying.audit().agreement == 1
    one = trainer.Layout(order="sequence-major").plan([6])  # the rows of one sequence are the same
    with waymark.hf.replay(model, one, one.fill(rows[:1], (1, 3))):
        model(tokens[:1])


def test_the_audit_compares_a_sample_of_the_replayed_rows() -> None:
    model, lengths = Model(), (90, 60)
    tokens = np.arange(150)[None] * 7 % 83  # packed
    plan = trainer.Layout().plan(lengths)
    with waymark.hf.record(model) as recorded:
        model(tokens)
    filled = plan.fill(recorded.rows(plan), (1, 3))
    filled.mask[10:20] = False
    later = filled._replace(ids=np.roll(filled.ids, 1, axis=1))
    for given, alarms in ((filled, False), (later, True)):
        with waymark.hf.replay(model, plan, given, audit_rows=64) as replaying:
            with pytest.raises(waymark.FailedPreconditionError, match="no forward"):
                replaying.audit()
            model(tokens)
        assert len(replaying.own_rows) == 64 and filled.mask[replaying.own_rows].all()
        audit = replaying.audit()
        assert audit.rows == 64
        assert bool(audit.alarms) == alarms == bool(recorded.audit(plan, given).alarms)
    assert audit.alarms[0].error == waymark.Mistake.SHIFTED


@pytest.mark.parametrize("family", ["Qwen3MoeTopKRouter", "MixtralTopKRouter", "GptOssTopKRouter"])
@pytest.mark.parametrize("gap", [1, 20, 200, 2000])
def test_experts_that_the_router_would_never_choose_are_weighed(family: str, gap: int) -> None:
    """Regression: 0/0, where the probabilities of all given experts are 0 in float32."""
    rng = np.random.default_rng(gap)
    logits = np.sort(rng.standard_normal((50, EXPERTS)).astype(np.float32) * gap)
    router = types.SimpleNamespace(norm_topk_prob=True)
    for ids in (np.arange(K), np.arange(EXPERTS - K, EXPERTS)):  # the least likely, and its own
        given = np.tile(ids, (50, 1))
        scores = _families.FAMILIES[family](router, tensor(logits), tensor(given))
        exact = np.exp(logits[:, ids].astype(np.float64) - logits[:, ids].max(1, keepdims=True))
        np.testing.assert_allclose(scores, exact / exact.sum(1, keepdims=True), rtol=1e-3, atol=1e-6)


def test_how_each_family_weighs() -> None:
    """In words of the papers, by hand: three experts, of which the last two are given."""
    logits, ids = tensor(np.log(np.array([[4.0, 2.0, 1.0]]))), tensor([[2, 1]])
    router = types.SimpleNamespace(norm_topk_prob=True, routed_scaling_factor=2.5)
    plain = types.SimpleNamespace(norm_topk_prob=False, routed_scaling_factor=2.5)
    odds = np.array([1 / 2, 2 / 3])  # sigmoid of log 1 and log 2
    for family, of, scores in [
        ("Qwen3MoeTopKRouter", router, [1 / 3, 2 / 3]),
        ("Qwen3MoeTopKRouter", plain, [1 / 7, 2 / 7]),
        ("OlmoeTopKRouter", plain, [1 / 7, 2 / 7]),
        ("MixtralTopKRouter", plain, [1 / 3, 2 / 3]),
        ("GptOssTopKRouter", plain, [1 / 3, 2 / 3]),
        ("DeepseekV3TopkRouter", router, 2.5 * odds / odds.sum()),
        ("DeepseekV3TopkRouter", plain, 2.5 * odds),
    ]:
        np.testing.assert_allclose(_families.FAMILIES[family](of, logits, ids), [scores], rtol=1e-5)
