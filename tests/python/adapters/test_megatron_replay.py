"""waymark.megatron.replay on look-alikes of Megatron's routers, without torch and megatron-core.

tests/integration/trainer runs it in the real ones.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import waymark
import waymark.megatron
from waymark import FailedPreconditionError, InvalidArgumentError, Rows, _hooks, trainer
from waymark.megatron import Refused, _replay

K, EXPERTS = 4, 32
LENGTHS = (9, 6, 12)


class Tensor(np.ndarray):
    """What replay uses of torch's."""

    device, _version = "cpu", 0

    def is_inference(self) -> bool:
        return False

    def to(self, *args: Any, non_blocking: bool = False, copy: bool = False) -> Tensor:
        return self.copy() if copy else self

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self.copy()


def tensor(values: Any) -> Any:
    return np.asarray(values).view(Tensor)


class Unread(Tensor):
    def __getitem__(self, index: Any) -> Any:
        raise IndexError


class Action(enum.Enum):
    RECORD = "record"
    REPLAY_FORWARD = "replay_forward"
    REPLAY_BACKWARD = "replay_backward"


class RouterReplay:
    """Of one router: targets, what was recorded, and what it does."""

    def __init__(self) -> None:
        self.target_topk_idx: Any = None
        self.recorded_topk_idx: Any = None
        self.router_replay_action: Any = None
        self.replay_backward_list: list[Any] = []
        self.static_buffer: Any = None

    def set_target_indices(self, ids: Any) -> None:
        self.target_topk_idx = ids
        self.replay_backward_list.append(ids)

    def get_recorded_indices(self) -> Any:
        return self.recorded_topk_idx

    def clear_indices(self) -> None:
        self.target_topk_idx = self.recorded_topk_idx = None
        self.replay_backward_list = []

    def set_router_replay_action(self, action: Any) -> None:
        self.router_replay_action = action

    def get_replay_topk(self, scores: Any, topk: int, num_groups: Any, group_topk: Any, top: Any) -> Any:
        action = self.router_replay_action
        if action in (None, Action.RECORD):
            probs, ids = top(scores, topk, num_groups, group_topk)
            if action is Action.RECORD:
                if self.static_buffer is not None:
                    self.static_buffer[: len(ids)] = ids
                    ids = self.static_buffer[: len(ids)]
                self.recorded_topk_idx = ids
            return probs, ids
        back = action is Action.REPLAY_BACKWARD
        ids = self.replay_backward_list.pop(0) if back else self.target_topk_idx
        return np.take_along_axis(scores, ids, 1), ids


class Torch:
    """The state of torch that replay reads."""

    def __init__(self) -> None:
        self.grad, self.task, self.tasks = True, -1, 0
        self.ranks = True  # whether parallel_state knows them
        self._C = types.SimpleNamespace(_current_graph_task_id=lambda: self.task)

    def is_grad_enabled(self) -> bool:
        return self.grad

    as_tensor = staticmethod(tensor)
    compiler = types.SimpleNamespace(disable=lambda function, recursive=True: function)
    where = staticmethod(lambda condition, a, b: np.where(condition, a, b).view(Tensor))

    @staticmethod
    def stack(tensors: Any) -> Any:
        return np.stack(tensors).view(Tensor)


class TopKRouter:
    """Its choice depends on the token and on the layer."""

    config = types.SimpleNamespace(num_moe_experts=EXPERTS)

    def __init__(self, layer_number: int, groups: bool = False) -> None:
        self.layer_number, self.router_replay = layer_number, RouterReplay()
        self.weight, self.hooks = tensor(np.zeros((EXPERTS, 8))), []
        self.groups, self.rows_of_top = 2 if groups else None, 0
        self.bypassed = False

    def scores(self, tokens: Any) -> Any:
        numbers = [np.random.default_rng(int(token) * 1000 + self.layer_number) for token in tokens]
        return tensor([one.random(EXPERTS) for one in numbers])

    def top(self, scores: Any, topk: int, num_groups: Any = None, group_topk: Any = None) -> Any:
        if group_topk:  # Megatron's knows the number of rows of the forward
            assert len(scores) == self.rows_of_top
        ids = tensor((-scores).argsort(-1)[:, :topk])
        return np.take_along_axis(scores, ids, 1), ids

    def routing(self, scores: Any) -> Any:
        self.rows_of_top = len(scores)
        if self.bypassed:
            return self.top(scores, K)
        return self.router_replay.get_replay_topk(scores, K, self.groups, self.groups, self.top)

    def forward(self, tokens: Any) -> Any:
        return self.routing(self.scores(tokens))

    def __call__(self, tokens: Any) -> Any:
        out = self.forward(tokens)
        for hook in self.hooks:
            out = hook(out)
        return out


class OtherRouter(TopKRouter):
    def routing(self, scores: Any) -> Any:
        return self.top(scores, K)


class Decoder:
    def __init__(self, routers: list[Any]) -> None:
        self.routers = routers

    def modules(self) -> list[Any]:
        return [object(), *self.routers]


class Model:
    """A GPTModel: routers of the decoder, and of an MTP layer."""

    def __init__(self, layer_numbers: tuple[int, ...] = (4, 2, 3), **changed: Any) -> None:
        values = dict(moe_enable_routing_replay=True, num_moe_experts=EXPERTS, moe_router_topk=K, moe_router_fusion=False,
                      moe_router_load_balancing_type="none", moe_expert_capacity_factor=None, pipeline_model_parallel_size=1,
                      moe_layer_freq=[0, 1, 1, 1], num_layers=4, sequence_parallel=True)  # fmt: skip
        self.config = types.SimpleNamespace(**values | changed)
        self.decoder = Decoder([TopKRouter(number) for number in layer_numbers])
        self.mtp = TopKRouter(1)

    def __call__(self, tokens: Any) -> dict[int, Any]:
        """What the routers use, {layer: ids}."""
        self.mtp(tokens)
        return {router.layer_number - 1: router(tokens)[1] for router in self.decoder.routers}


LAYOUT = trainer.Layout(order="sequence-major")
PLAN = LAYOUT.plan(LENGTHS)


def tokens_of(batch: int = 0, plan: trainer.Plan = PLAN) -> Any:
    """Of the rows of a plan: as many as it has sequences and positions."""
    sequences, positions = plan.places()
    return (sequences + 1) * 100 + positions + 1 + batch * 10_000


def other_rank(**fields: Any) -> trainer.Plan:
    return trainer.Layout(order="sequence-major", sequence_multiple=4, **fields).plan(LENGTHS)


def rows_of(model: Any, batch: int = 0, plan: trainer.Plan = PLAN, shift: int = 0) -> list[Rows]:
    """What an engine returns: other ids than the model would choose now, shifted by `shift` experts."""
    routers = sorted(model.decoder.routers, key=lambda router: router.layer_number)
    found = []
    for sequence, length in enumerate(plan.lengths):
        tokens = [(sequence + 1) * 100 + position + 1 + batch * 10_000 for position in range(length - 1)]
        ids = np.stack([router.top(router.scores(tokens), K)[1] for router in routers], 1)
        found.append(
            Rows.from_array((ids + shift) % EXPERTS, num_experts=EXPERTS,
                            layer_ids=[router.layer_number - 1 for router in routers])
        )  # fmt: skip
    return found


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    fake = Torch()
    ranks = {"context_parallel": (1, 2), "tensor_model_parallel": (0, 4)}
    parallel = {f"get_{name}_{what}": (lambda value: lambda: value)(value)
                for name, values in ranks.items() for what, value in zip(("rank", "world_size"), values)}  # fmt: skip
    modules = {
        "torch": fake,
        "megatron.core.transformer.moe.router_replay": types.SimpleNamespace(RouterReplayAction=Action),
        "megatron.core.parallel_state": types.SimpleNamespace(model_parallel_is_initialized=lambda: fake.ranks, **parallel),
    }
    monkeypatch.setattr(_replay, "module", modules.__getitem__)
    monkeypatch.setattr(_hooks, "module", modules.__getitem__)
    _hooks._class_around.cache_clear()
    yield fake


def checkpointed(torch: Torch, model: Model, tokens: Any) -> dict[int, Any]:
    """The forward of layers that will run again."""
    torch.grad = False
    try:
        return model(tokens)
    finally:
        torch.grad = True


def backward(torch: Torch, model: Model, *batches: Any) -> list[dict[int, Any]]:
    """One call of backward(), which computes the batches again."""
    torch.tasks += 1
    torch.task = torch.tasks
    try:
        return [model(tokens) for tokens in batches]
    finally:
        torch.task = -1


def replayed(
    torch: Torch, replay: Any, model: Model, batch: int = 0, shift: int = 0, **more: Any
) -> Any:
    """A forward of a batch whose layers will run again."""
    with replay.forward(PLAN, rows_of(model, batch, shift=shift), **more) as step:
        checkpointed(torch, model, tokens_of(batch))
    return step


def runs_again(torch: Torch, model: Model, batch: int, step: Any) -> None:
    """Its backward has the ids of this forward."""
    (again,) = backward(torch, model, tokens_of(batch))
    assert same(again, step.filled)


def not_entered(replay: Any, error: type[Exception], match: str, *given: Any, **more: Any) -> None:
    with pytest.raises(error, match=match), replay.forward(*given, **more):
        pytest.fail("it was entered")


def same(chosen: dict[int, Any], filled: trainer.Filled, layers: tuple[int, ...] = (1, 2, 3)) -> bool:
    return all((chosen[layer] == filled.ids[at]).all() for at, layer in enumerate(layers))


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def replay(model: Model) -> Any:
    return waymark.megatron.replay(model)


def state(model: Model) -> list[dict[str, Any]]:
    return [dict(vars(router.router_replay)) for router in [*model.decoder.routers, model.mtp]]


def test_a_forward_replays_and_everything_is_put_back(model: Model) -> None:
    ours = model.decoder.routers[0].router_replay
    ours.router_replay_action, ours.recorded_topk_idx, ours.replay_backward_list = "an action", "ids", ["a target"]
    before = state(model)
    replay = waymark.megatron.replay(model)
    assert replay.layer_ids() == (1, 2, 3) and state(model) == before
    with replay.forward(PLAN, rows_of(model, shift=5)) as step:
        chosen = model(tokens_of())
    assert same(chosen, step.filled) and step.filled.report.replayed == sum(LENGTHS) - len(LENGTHS)
    assert state(model) == before, "something was left behind"
    ours.router_replay_action = None
    assert (model(tokens_of())[3] != step.filled.ids[2]).any(), "the router does not route by itself"


def test_what_fills_ahead_is_taken_and_checked_again(model: Model, replay: Any) -> None:
    filled = PLAN.fill(rows_of(model, shift=3), replay.layer_ids(), dtype=np.int32)
    with replay.forward(PLAN, filled) as step:
        assert same(model(tokens_of()), filled)
    assert step.filled is filled
    wrong = {
        "distinct ids in a row, got 7 twice in row 4 of layer 2": (1, 4, [7, 7, 1, 2]),
        r"ids in \[0, 32\), got -1": (2, 0, [-1, 0, 1, 2]),
        r"ids in \[0, 32\), got 32": (0, 35, [32, 0, 1, 2]),
    }
    before = state(model)
    for text, (layer, row, ids) in wrong.items():
        other = filled.ids.copy()
        other[layer, row] = ids
        not_entered(replay, InvalidArgumentError, text, PLAN, filled._replace(ids=other))
    for ids in (filled.ids[:, :-1], filled.ids[1:], filled.ids[..., 1:], filled.ids.astype(np.int16)):
        text = r"int32 or int64 \[3, 36, 4\], got int"
        not_entered(replay, InvalidArgumentError, text, PLAN, filled._replace(ids=ids))
    for mask in (filled.mask[1:], filled.mask.astype(np.int8)):
        text = r"rows.mask: bool \[36\]"
        not_entered(replay, InvalidArgumentError, text, PLAN, filled._replace(mask=mask))
    not_entered(replay, InvalidArgumentError, "plan: a Plan, got NoneType", None, filled)
    assert state(model) == before, "a refused call changed something"


def test_the_memory_of_what_was_filled_may_be_written_again(
    torch: Torch, model: Model, replay: Any
) -> None:
    filled = PLAN.fill(rows_of(model, shift=3), replay.layer_ids())
    wanted = filled.ids.copy()
    with replay:
        with replay.forward(PLAN, filled):
            checkpointed(torch, model, tokens_of())
        filled.ids[:] = 0
        (again,) = backward(torch, model, tokens_of())
    assert same(again, filled._replace(ids=wanted))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"moe_enable_routing_replay": False}, "moe_enable_routing_replay is refused: it is off"),
        ({"moe_router_fusion": True}, "moe_router_fusion is refused: the fused router chooses"),
        ({"moe_router_load_balancing_type": "sinkhorn"}, "load_balancing_type is refused: sinkhorn chooses"),
        ({"moe_router_load_balancing_type": ["quantile_balancing"]}, "refused: quantile_balancing chooses"),
        ({"moe_expert_capacity_factor": 1.5}, "moe_expert_capacity_factor is refused: tokens beyond"),
        ({"overlap_moe_expert_parallel_comm": True}, "overlap_moe_expert_parallel_comm is refused"),
    ],
)
def test_options_that_are_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused, match=text):
        waymark.megatron.replay(Model(**changed))


def test_models_that_are_refused(model: Model) -> None:
    with pytest.raises(Refused, match="no layer of its decoder has a router"):
        waymark.megatron.replay(Model(()))
    with pytest.raises(Refused, match="no layer of its decoder has a router"):
        waymark.megatron.replay([])
    with pytest.raises(Refused, match="two of its routers are of layer 2"):
        waymark.megatron.replay([Model((2, 3)), Model((3, 4))])
    model.decoder.routers = [OtherRouter(1)]
    with pytest.raises(Refused, match="OtherRouter of layer 0 is refused: that its RouterReplay shows"):
        waymark.megatron.replay(model)
    with pytest.raises(Refused, match="is refused: give its language_model"):
        waymark.megatron.replay(types.SimpleNamespace(language_model=Model()))
    with pytest.raises(Refused, match="it is no model of Megatron"):
        waymark.megatron.replay(object())


def test_rows_that_are_refused(model: Model, replay: Any) -> None:
    rows, before = rows_of(model), state(model)
    experts = Rows.from_array(rows[1].ids, num_experts=64, layer_ids=(1, 2, 3))
    fewer = Rows.from_array(rows[0].ids[..., 1:], num_experts=EXPERTS, layer_ids=(1, 2, 3))

    def assembled(part: Rows) -> trainer.Trajectory:
        tokens = list(range(LENGTHS[0]))
        return trainer.Trajectory(tokens, [trainer.Part(part, tokens)])

    of_64 = assembled(Rows.from_array(rows[0].ids, num_experts=64, layer_ids=(1, 2, 3)))
    refused: list[tuple[Any, Any, dict[str, Any], str]] = [
        (PLAN, [of_64, *rows[1:]], {}, r"rows\[0\]: K = 4 and E = 32 as the model has, got 4 and 64"),
        (PLAN, [assembled(fewer), *rows[1:]], {}, r"rows\[0\]: K = 4 and E = 32 as the model has, got 3 and 32"),
        (PLAN, [rows[0], experts, rows[2]], {}, r"rows\[1\]: K = 4 and E = 32 as the model has, got 4 and 64"),
        (PLAN, [fewer, *rows[1:]], {}, r"rows\[0\]: K = 4 and E = 32 as the model has, got 3 and 32"),
        (PLAN, [one.of_layers((1, 2)) for one in rows], {}, "must be a layer of sources"),
        (PLAN, rows[:2], {}, "one for each of 3 sequences, got 2"),
        (PLAN, [rows[0][:-1], *rows[1:]], {}, r"sources\[0\]: must have rows"),
        (PLAN, rows, {"missing": "zeros"}, "missing: 'fill' or 'live', got 'zeros'"),
        (PLAN, rows, {"chunk": 1}, "chunk: one of the 1 models, or its number, got 1"),
        (PLAN, rows, {"chunk": Model()}, "chunk: one of the 1 models, or its number, got Model"),
        (trainer.Layout(order="batch-major").plan(LENGTHS), rows, {}, "as the rows of Megatron's routers, got 'batch-major'"),
        (other_rank(context=(0, 2)), rows, {}, "plan: of context rank 1, as this process is, got that of 0"),
        (other_rank(tensor=(3, 4), sequence_parallel=True), rows, {}, "plan: of tensor rank 0, as this process is, got that of 3"),
    ]
    for plan, sources, more, text in refused:
        not_entered(replay, InvalidArgumentError, text, plan, sources, **more)
    not_entered(replay, TypeError, "Rows, Document", PLAN, ["rows"] * 3)
    assert state(model) == before, "a refused call changed something"


def test_forwards_that_are_refused(torch: Torch, model: Model, replay: Any) -> None:
    rows = rows_of(model)
    before = state(model)
    with pytest.raises(FailedPreconditionError, match="the router of layer 3 twice: one forward"), replay.forward(PLAN, rows):
        model(tokens_of())
        model(tokens_of(1))
    with pytest.raises(FailedPreconditionError, match="got none of layers 1, 2, 3: they are bypassed"), replay.forward(PLAN, rows):
        pass
    model.decoder.routers[0].bypassed = True  # by a CUDA graph, or a kernel that asks nobody
    with pytest.raises(FailedPreconditionError, match="got none of layers 3: they are bypassed"), replay.forward(PLAN, rows):
        model(tokens_of())
    model.decoder.routers[0].bypassed = False
    # Regression: a hook that was set later replaced the experts of 51 of 52 rows, and nobody said so.
    model.decoder.routers[1].hooks = [lambda out: (out[0], out[1].copy())]
    with pytest.raises(FailedPreconditionError, match="goes to its experts, got the router of layer 1"), replay.forward(PLAN, rows):
        model(tokens_of())
    model.decoder.routers[1].hooks = [lambda out: out]  # reads only
    with replay.forward(PLAN, rows):
        model(tokens_of())
    with pytest.raises(FailedPreconditionError, match="plan: of as many rows as the router of layer 3 has, 35, got 36"), \
            replay.forward(PLAN, rows):  # fmt: skip
        model(tokens_of()[:-1])
    with pytest.raises(FailedPreconditionError, match="the router of layer 3 outside"), replay:
        model(tokens_of())
    with pytest.raises(FailedPreconditionError, match="got one inside of another"), replay.forward(PLAN, rows):
        with replay.record(PLAN):
            pytest.fail("it was entered")
    with pytest.raises(FailedPreconditionError, match="entered once at a time, got twice"), replay, replay:
        pytest.fail("it was entered")
    with pytest.raises(KeyError, match="of the model"), replay.forward(PLAN, rows):
        raise KeyError("of the model")
    assert state(model) == before, "something was left behind"
    with replay.forward(PLAN, rows) as step:
        assert same(model(tokens_of()), step.filled)


def test_recompute_takes_the_ids_of_its_micro_batch(torch: Torch, model: Model) -> None:
    """As in 1F1B: the forward of the next micro-batch is before the backward of this one."""
    for router in model.decoder.routers:  # of an earlier schedule, whose lists were not cleared
        router.router_replay.replay_backward_list = [tensor(np.tile(np.arange(K), (PLAN.rows, 1)))]
    replay = waymark.megatron.replay(model)
    steps: list[Any] = []
    for _ in range(2):
        steps.clear()
        with replay:
            for batch in range(3):
                with replay.forward(PLAN, rows_of(model, batch, shift=batch)) as step:
                    assert same(checkpointed(torch, model, tokens_of(batch)), step.filled)
                steps.append(step)
                if batch:
                    runs_again(torch, model, batch - 1, steps[batch - 1])
            runs_again(torch, model, 2, steps[2])


def test_a_forward_that_failed_leaves_no_ids_to_the_next_backward(
    torch: Torch, model: Model, replay: Any
) -> None:
    """A caller that skips a micro-batch (no memory, bad data): its ids were replayed in the backward of
    the next one, in the layers that had run."""
    last = model.decoder.routers[-1]
    with replay:
        with pytest.raises(MemoryError), replay.forward(PLAN, rows_of(model, 0, shift=7)):
            checkpointed(torch, model, tokens_of(0))
            raise MemoryError
        with pytest.raises(FailedPreconditionError, match="as many rows"), replay.forward(PLAN, rows_of(model, 0, shift=7)):
            torch.grad = False
            model.decoder.routers[0](tokens_of(0))
            model.decoder.routers[1](tokens_of(0)[1:])
        torch.grad = True
        last.bypassed = True
        with pytest.raises(FailedPreconditionError, match="got none of layers 2"), replay.forward(PLAN, rows_of(model)):
            checkpointed(torch, model, tokens_of(0))
        last.bypassed = False
        runs_again(torch, model, 1, replayed(torch, replay, model, 1, shift=3))
    with replay:  # Megatron's own replay failed: of a router whose target is kept already
        rows = rows_of(model, 0, shift=7)
        scores, last.scores = last.scores, lambda tokens: np.zeros((PLAN.rows, EXPERTS)).view(Unread)
        with pytest.raises(IndexError), replay.forward(PLAN, rows):
            checkpointed(torch, model, tokens_of(0))
        last.scores = scores
        runs_again(torch, model, 1, replayed(torch, replay, model, 1, shift=3))


def test_a_backward_that_failed_leaves_no_ids_to_the_next(
    torch: Torch, model: Model, replay: Any
) -> None:
    """Its first layers had not run again: the next backward gave them its ids."""
    with pytest.raises(FailedPreconditionError, match="layer 1 with another than those before it"), replay:
        for batch in range(2):
            replayed(torch, replay, model, batch, shift=batch)
            if batch == 0:
                torch.task = torch.tasks = torch.tasks + 1
                model.decoder.routers[0](tokens_of(batch))
                torch.task = -1
        backward(torch, model, tokens_of(1))
    longer = LAYOUT.plan((9, 6, 14))
    with replay:  # a backward that is refused changes nothing
        step = replayed(torch, replay, model, shift=1)
        with pytest.raises(FailedPreconditionError, match="in the order of their forwards"):
            backward(torch, model, tokens_of(1, longer))
        runs_again(torch, model, 0, step)


def test_without_recompute_nothing_waits(torch: Torch, model: Model, replay: Any) -> None:
    """Megatron keeps a target of each layer for a backward that does not ask for it."""
    with replay:
        for grad in (True, False, True):
            torch.grad = grad
            with replay.forward(PLAN, rows_of(model)):
                model(tokens_of())
            assert not any(router.router_replay.replay_backward_list for router in model.decoder.routers)
        torch.grad = True


def test_backwards_that_are_refused(torch: Torch, model: Model, replay: Any) -> None:
    longer = LAYOUT.plan((9, 6, 14))

    def forwards(plan: trainer.Plan = PLAN) -> None:
        for batch, of in enumerate((PLAN, plan)):
            with replay.forward(of, rows_of(model, batch, of)):
                checkpointed(torch, model, tokens_of(batch, of))

    before = state(model)
    with pytest.raises(FailedPreconditionError, match="the router of layer 1 with 2 that it has not computed again"), replay:
        forwards()
    with pytest.raises(FailedPreconditionError, match=r"each micro-batch has a backward\(\) of its own, got the router of layer 3"), replay:
        forwards()
        backward(torch, model, tokens_of(1), tokens_of(0))
    with pytest.raises(FailedPreconditionError, match="in the order of their forwards, got the router of layer 3 with 42 rows"), replay:
        forwards(longer)
        backward(torch, model, tokens_of(1, longer))
    with pytest.raises(FailedPreconditionError, match="got the router of layer 3, which kept no ids"), replay:
        with replay.forward(PLAN, rows_of(model)):
            model(tokens_of())  # a checkpoint that keeps gradients
        backward(torch, model, tokens_of())
    assert state(model) == before, "something was left behind"


@pytest.mark.parametrize("ahead", [False, True])
def test_rows_without_routing_are_left_to_the_router(
    torch: Torch, model: Model, replay: Any, ahead: bool
) -> None:
    own, rows = model(tokens_of()), rows_of(model, shift=1)
    given: Any = PLAN.fill(rows, (1, 2, 3), fill="minus_one") if ahead else rows
    if ahead:
        text = r'rows \(of fill="spread"\): ids in \[0, 32\), got -1'
        not_entered(replay, InvalidArgumentError, text, PLAN, given)
    with replay:
        with replay.forward(PLAN, given, missing="live") as step:
            chosen = checkpointed(torch, model, tokens_of())
        (again,) = backward(torch, model, tokens_of())
    mask = step.filled.mask
    assert 0 < mask.sum() < len(mask)
    for at, layer in enumerate((1, 2, 3)):
        assert (chosen[layer][mask] == step.filled.ids[at][mask]).all()
        assert (chosen[layer][~mask] == own[layer][~mask]).all()
        assert (again[layer] == chosen[layer]).all()
    with replay.forward(PLAN, rows):
        chosen = model(tokens_of())
    assert (chosen[1][~mask] == PLAN.fill(rows, (1,)).ids[0][~mask]).all()


@pytest.mark.parametrize("static", [False, True])
def test_recorded_rows_are_those_of_the_routers(torch: Torch, model: Model, static: bool) -> None:
    if static:  # of CUDA graphs, which the next forward writes over
        for router in model.decoder.routers:
            router.router_replay.static_buffer = tensor(np.zeros((64, K), np.int64))
    replay = waymark.megatron.replay(model)
    with replay:
        with replay.record(PLAN) as step:
            chosen = {layer: ids.copy() for layer, ids in checkpointed(torch, model, tokens_of()).items()}
        with pytest.raises(FailedPreconditionError, match="the router of layer 3 outside"):
            model(tokens_of(1))
        with replay.record(PLAN) as other:
            model(tokens_of(1))
        (again,) = backward(torch, model, tokens_of())
    assert all((again[layer] == chosen[layer]).all() for layer in chosen)
    for recorded, wanted in ((step, chosen), (other, model(tokens_of(1)))):
        filled = PLAN.fill(recorded.rows(version=7), (1, 2, 3))
        assert filled.mask.sum() == sum(LENGTHS) and filled.report.padding == 36 - sum(LENGTHS)
        for at, layer in enumerate((1, 2, 3)):
            assert (filled.ids[at][filled.mask] == wanted[layer][filled.mask]).all()
    assert (step.rows(version=7)[0].infos["version"] == 7).all()
    assert (step.rows()[0].infos["version"] == waymark.UNKNOWN_VERSION).all()
    with replay.record(PLAN) as step:
        with pytest.raises(FailedPreconditionError, match="rows: after the forward"):
            step.rows()
        model(tokens_of())


@pytest.mark.parametrize("groups", [False, True])
def test_the_audit_names_swapped_layers_and_another_order_of_backwards(
    torch: Torch, model: Model, groups: bool
) -> None:
    model.decoder.routers = [TopKRouter(number, groups) for number in (2, 3, 4)]
    replay = waymark.megatron.replay(model)
    filled = PLAN.fill(rows_of(model), (1, 2, 3))
    for ids, wanted in ((filled.ids, []), (filled.ids[[1, 0, 2]].copy(), [waymark.Mistake.LAYERS] * 2)):
        with replay.forward(PLAN, filled._replace(ids=ids), audit=True) as step:
            with pytest.raises(FailedPreconditionError, match="got 0 of 3 layers"):
                step.audit()
            model(tokens_of())
        audit = step.audit()
        assert [alarm.error for alarm in audit.alarms] == wanted, audit.alarms
        assert audit.rows == filled.mask.sum()
    with replay:
        steps = [replayed(torch, replay, model, batch, audit=True) for batch in (0, 1)]
        for batch in (1, 0):
            backward(torch, model, tokens_of(batch))
    for step in steps:
        assert not step.audit().alarms
        errors = {alarm.error for alarm in step.audit(recomputed=True).alarms}
        assert errors == {waymark.Mistake.OTHER_SEQUENCE}
    with replay.forward(PLAN, filled) as step:
        model(tokens_of())
    with pytest.raises(FailedPreconditionError, match=r"after forward\(audit=True\)"):
        step.audit()


def test_an_audit_looks_at_256_rows_at_most(model: Model, replay: Any) -> None:
    plan = trainer.Layout().plan((400, 200, 3))
    rows, seen = rows_of(model, plan=plan), np.zeros(3, bool)
    for _ in range(3):
        with replay.forward(plan, rows, audit=True) as step:
            model(tokens_of(plan=plan))
        audit = step.audit()
        assert audit.rows == 256 and not audit.alarms and audit.agreement == 1
        assert (audit.sequences[:2] == 1).all()
        seen |= audit.sequences == 1
    assert seen.all(), "a sequence is always left out"


def test_chunks_of_a_virtual_pipeline(torch: Torch) -> None:
    """Each has micro-batches of its own; one has dense layers only."""
    more: dict[str, Any] = {"num_layers": 8, "moe_layer_freq": 3, "pipeline_model_parallel_size": 2}
    chunks = [Model((), **more), Model((4,), **more), Model((7,), **more)]
    wrapped = [types.SimpleNamespace(module=types.SimpleNamespace(module=chunk)) for chunk in chunks]
    replay = waymark.megatron.replay(wrapped)
    whole = Model((1, 4, 7))
    assert [replay.layer_ids(chunk) for chunk in range(3)] == [(), (3,), (6,)]
    assert replay.layer_ids(wrapped[2]) == replay.layer_ids(chunks[2]) == (6,)
    with pytest.raises(InvalidArgumentError, match="one of the 3 models, or its number, got None"):
        replay.layer_ids()
    steps: dict[Any, Any] = {}
    with replay:
        for batch in (0, 1):
            for chunk, model in enumerate(chunks):
                with replay.forward(PLAN, rows_of(whole, batch, shift=2), chunk=wrapped[chunk]) as step:
                    chosen = checkpointed(torch, model, tokens_of(batch))
                assert same(chosen, step.filled, step.layer_ids)
                steps[batch, chunk] = step
        with pytest.raises(FailedPreconditionError, match="the router of layer 6 outside"), \
                replay.forward(PLAN, rows_of(whole), chunk=1):  # fmt: skip
            chunks[2](tokens_of())
        for batch in (0, 1):
            for chunk in (2, 1):
                (again,) = backward(torch, chunks[chunk], tokens_of(batch))
                assert same(again, steps[batch, chunk].filled, replay.layer_ids(chunk))
    assert steps[0, 0].filled.ids.shape == (0, 36, K)
    assert (steps[0, 0].filled.mask == steps[0, 1].filled.mask).all(), "a chunk of dense layers has no mask"
    with replay.record(PLAN, chunk=0) as recorded:
        chunks[0](tokens_of())
    with pytest.raises(FailedPreconditionError, match="of a chunk with MoE layers"):
        recorded.rows()


def test_the_layout_of_a_rank(torch: Torch) -> None:
    replay = waymark.megatron.replay(Model())
    layout = replay.layout(sequence_multiple=16)
    assert layout == trainer.Layout(context=(1, 2), tensor=(0, 4), sequence_parallel=True, sequence_multiple=16)
    assert replay.layout(context=(0, 1), order="sequence-major").context == (0, 1)
    torch.ranks = False  # groups of its own
    assert replay.layout() == trainer.Layout(sequence_parallel=True)
    assert repr(replay) == "Replay(layers=[[1, 2, 3]])"
