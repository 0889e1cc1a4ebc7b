#!/usr/bin/env python3
"""The patches and the hook of docs/examples/glue, in the trainers that they are for.

Rows of two turns, with a prefix hit, new weights in between and missing rows, go as the adapter of
vLLM returns them through a trainer's own functions to what its routers replay: in the released
package and, where there is a patch, in a patched copy. What needs the patch has to go wrong without
it. Options, output and exit status are those of doors.py.
"""
import asyncio
import subprocess
import sys
import tempfile
from types import SimpleNamespace as Some
from unittest.mock import AsyncMock, MagicMock, patch

sys.dont_write_bytecode = True

import doors
import numpy as np
import torch
import trainers
import waymark
from doors import K, LAYER_IDS, MOE, NUM_LAYERS, Cases
from place import HERE
from waymark import Rows, trainer

EXAMPLES = HERE.parents[2] / "docs/examples/glue"
FAULTS = ("shifted", "not_missing", "other_weights", "no_patch")


def returned(rows, layers):
    """As routed_experts of vLLM's outputs. layers: of the model, dense ones too; 0: those with experts."""
    ids = rows.ids if rows.valid.all() else rows.astype(np.int16, fill="minus_one")
    if not layers:
        return np.array(ids)
    every = np.zeros((len(ids), layers, K), ids.dtype)
    every[:, list(LAYER_IDS)] = ids
    return every


class Talk:
    """Two requests. The second hits 16 rows of the first, and computes the rest with new weights.
    lossy: 1, a row that it hits is missing; 2, one that it computes alone."""

    def __init__(self, rng, experts, lossy):
        prompt = int(rng.integers(18, 28))
        self.prompts, self.lengths = (prompt, prompt + 9), (prompt + 6, prompt + 16)
        self.tokens = rng.integers(1, 999, prompt + 16).tolist()
        self.mask = [1] * 6 + [0] * 3 + [1] * 7  # of an answer, a tool's result, an answer
        first, ids = rng.random((2, prompt + 15, len(LAYER_IDS), experts)).argsort(-1)[..., :K]
        ids[:16] = first[:16]
        valid = np.arange(len(ids)) != (None, 3, prompt + 7)[lossy]
        told = (np.roll(array, Cases.fault == "shifted", 0) for array in (first, ids))
        def rows(array):  # with what `valid` is then
            return Rows.from_array(array, num_experts=experts, layer_ids=LAYER_IDS, valid=valid)
        self.rows = [rows(array)[: n - 1] for array, n in zip(told, self.lengths)]
        valid |= Cases.fault == "not_missing"
        self.second, kept = rows(ids), 0 if Cases.fault == "other_weights" else prompt + 5
        self.joined = rows(np.concatenate([first[:kept], ids[kept:]]))
        self.loss = self.mask * np.logical_and.accumulate(valid)[prompt - 1 :]  # attends to valid rows


def verl_replayed(cases, name, made):
    """What every router on every rank replays of jagged and padded samples, or chooses itself."""
    loop = trainers.module("verl", "verl.experimental.agent_loop.agent_loop")
    utils = trainers.module("verl", "verl.utils.megatron.router_replay_utils")
    utils.device_name, arrays = "cpu", []
    for talk, routes, _ in made:  # the third: the right rows
        prompt, answer = talk.tokens[:-16], talk.tokens[-16:]
        output = loop.AgentLoopOutput(prompt_ids=prompt, response_ids=answer, metrics={},
                                      response_mask=talk.mask, routed_experts=routes)
        padded = doors.verl_padded(loop, output, 50, 20).numpy()[50 - len(prompt) :]
        arrays += output.as_dict()["routed_experts"].numpy(), padded[: len(talk.tokens)]
    wanted = [rows for *_, rows in made for _ in range(2)]
    lengths = [len(rows) + 1 for rows in wanted]
    config = Some(fp8=None, num_layers=NUM_LAYERS, moe_layer_freq=MOE)
    tokens = doors.jagged([np.zeros(n, np.int64) for n in lengths])
    routes = utils.align_r3_router_replay_data(doors.jagged(arrays), tokens)
    mask = utils.build_r3_replay_mask(tokens, torch.ones(len(lengths), 1))
    for mesh in doors.MESHES:
        filled = doors.packed(mesh).plan(lengths).fill(wanted, LAYER_IDS)
        model = doors.Model(LAYER_IDS, utils.RouterReplay)
        with trainers.megatron_rank(*mesh):
            utils.set_router_replay_data(routes, None, config, replay_mask=mask, model=model)
        for replay, ids in zip(model.replays, filled.ids):
            replay.set_router_replay_action(utils.RouterReplayAction.REPLAY_FORWARD)
            scores = torch.rand(len(ids), wanted[0].shape.num_experts)
            own = MagicMock(return_value=scores.topk(K))
            _, got = replay.get_replay_topk(scores, K, default_compute_topk=own)
            cases.rows(name, got, np.where(filled.mask[:, None], ids, own()[1]))


def verl_sample(cases, name, talks):
    """A request, and one that was aborted, of which Waymark returns no rows, and resumed."""
    server, made = trainers.module("verl", "verl.workers.rollout.llm_server"), []
    server.normalize_token_ids, server.asyncio = list, AsyncMock()
    for talk in talks:
        whole = returned(talk.rows[1], 0)
        outputs = [server.TokenOutput(token_ids=talk.tokens[-7:-5], stop_reason="aborted"),
                   server.TokenOutput(token_ids=talk.tokens[-5:], routed_experts=whole)]
        client = server.FullyAsyncLLMServerClient(Some())
        with patch.object(server.LLMServerClient, "generate", AsyncMock(side_effect=outputs)):
            done = asyncio.run(client.generate("", prompt_ids=[], sampling_params={}))
        made += (talk, whole, talk.second), (talk, done.routed_experts, talk.second)
    verl_replayed(cases, name, made)


def verl_turns(cases, name, talks):
    """The tool agent loop. Its second request has other rows of the first one's tokens."""
    tools = trainers.module("verl", "verl.experimental.agent_loop.tool_agent_loop")
    tools.simple_timer, made = MagicMock(), []
    merged = AsyncMock(side_effect=lambda a, b, *_, **more: (Some(token_ids=a + b), [], None))
    for talk in talks:
        data = tools.AgentData([], [], [], None, None, {}, "", {})
        for rows, a, b in zip(talk.rows, talk.prompts, talk.lengths):
            data.prompt_ids = talk.tokens[:a]
            done = tools.TokenOutput(token_ids=talk.tokens[a:b], routed_experts=returned(rows, 0))
            loop = MagicMock(response_length=0, ct_merge_assistant_token=merged,
                             server_manager=AsyncMock(**{"generate.return_value": done}))
            asyncio.run(tools.ToolAgentLoop._handle_generating_state(loop, data, {}))
        made.append((talk, data.routed_experts, talk.joined))
    verl_replayed(cases, name, made)


def skyrl_turns(cases, name, talks):
    """Rows on the wire, of which the second request leaves out those that the first one had."""
    wire = trainers.module("skyrl", "skyrl.backends.skyrl_train.inference_servers.generate_wire")
    routes = trainers.module("skyrl", "skyrl.backends.skyrl_train.utils.routed_experts")
    preprocess, batch = trainers.module("skyrl", "skyrl.train.dataset.preprocess"), []
    for talk in talks:
        trace, at = routes.RoutedExpertTrace(), talk.prompts[0]
        for rows, a, b in zip(talk.rows, talk.prompts, talk.lengths):
            packed = wire.pack_routed_experts(returned(rows, NUM_LAYERS)[trace.prompt_start :])
            trace.record_generation(prompt_token_count=a, generated_token_count=b - a,
                                    routed_experts=wire.decode_packed_routed_experts(packed))
        rows = trace.finalize(token_count=b, loss_mask=[0] * at + talk.mask)
        batch.append((talk.tokens[:at], talk.tokens[at:], [0.0] * 16, talk.mask, rows))
    *lists, rows = map(list, zip(*batch))
    made = preprocess.convert_prompts_responses_to_batch_tensors(0, *lists, None, rows)
    plan = trainer.Layout().plan([len(talk.tokens) for talk in talks])
    filled = plan.fill([talk.joined for talk in talks], LAYER_IDS)  # other rows have SkyRL's fillers
    cases.rows(name, made[6].values[:, LAYER_IDS], filled.ids.swapaxes(0, 1), filled.mask)
    cases.rows(name, made[4], [talk.loss for talk in talks])


def slime_hook(cases, name, talks):
    """The sample hook, of a document and a handle; then slime's checks."""
    hooks = trainers.module("slime", "slime.rollout.sample_hooks")
    checks = trainers.module("slime", "slime.observability.rollout_data_utils")
    args = Some(num_layers=NUM_LAYERS, moe_router_topk=K, moe_layer_freq=MOE,
                rollout_sample_hook_path=["slime_hook.replay"] * (Cases.fault != "no_patch"))
    source, routes = waymark.MemorySource(), []
    for talk in talks:
        publisher = waymark.Publisher(source, talk.joined.shape)
        handle = publisher.publish(talk.rows[1], sequence="").wait(timeout=10)
        kept = [waymark.from_bytes(talk.rows[0].to_bytes()), (waymark.Fetcher(source), handle)]
        parts = [*map(trainer.Part, kept, (talk.tokens[:n] for n in talk.lengths), talk.prompts)]
        sample = hooks.Sample(tokens=talk.tokens, response_length=16, loss_mask=talk.mask)
        for status, has in (("ABORTED", parts[:1]), ("COMPLETED", parts)):  # it is resumed
            cases.true(name, sample.rollout_routed_experts is None, "set too early")
            sample.status, sample.metadata["waymark"] = hooks.Sample.Status[status], has
            asyncio.run(hooks.apply_rollout_sample_hooks(args, sample))
        cases.rows(name, sample.loss_mask, talk.loss)
        routes.append(sample.rollout_routed_experts)
    checks.validate_rollout_routed_experts_for_replay(routes, args)
    checks.tensorize_rollout_data_for_training(batch := {"rollout_routed_experts": routes})
    plan = trainer.Layout().plan([len(one) for one in routes])  # doors.py cuts them for ranks
    filled = plan.fill([talk.joined for talk in talks], LAYER_IDS, dtype=np.int32)
    cases.same(name, torch.cat(batch["rollout_routed_experts"])[:, LAYER_IDS], filled.ids.swapaxes(0, 1), filled.mask)


PARTS = {"verl": ((verl_sample, 0, 0), (verl_sample, 1, 1), (verl_turns, 0, 1), (verl_turns, 1, 1)),
         "skyrl": ((skyrl_turns, 0, 0), (skyrl_turns, 1, 1)), "slime": ((slime_hook, 1, 0),)}


def run(seed, fault, only):
    cases, released, Cases.fault = Cases(), trainers.root(), fault
    with tempfile.TemporaryDirectory() as copies:
        cases.left_out = [name for name in PARTS if not trainers.is_here(name)]
        for name in [name for name in [only] * bool(only) or PARTS if trainers.is_here(name)]:
            subprocess.run(["cp", "-rL", released / name, copies], check=True)
            for file in EXAMPLES.glob(f"{name}-*.patch") if fault != "no_patch" else ():
                subprocess.run(["patch", "-sp1", "-d", f"{copies}/{name}", "-i", file], check=True)
            for part, lossy, needs in PARTS[name]:
                title = part.__name__ + ", rows missing" * lossy + ", patched" * needs
                for folder in (released, copies)[: 1 + needs]:
                    found = Cases() if needs and folder is released else cases
                    run_part(found, title, name, folder, part, seed, lossy)
                    if found is not cases:
                        cases.true(title, found.cases[title]["rows_wrong"], "right without a patch")
    return cases


def run_part(cases, title, name, folder, part, seed, lossy):
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]
    with patch.dict("os.environ", WAYMARK_TRAINERS=str(folder)):
        for experts in (32, 300):
            rng = np.random.default_rng([seed, experts])
            try:
                part(cases, title, [Talk(rng, experts, i * lossy) for i in range(3)])
            except Exception as error:  # a trainer that refuses the rows
                cases.true(title, False, f"{type(error).__name__}: {str(error)[:200]}")


if __name__ == "__main__":
    sys.path += [str(EXAMPLES), str(trainers.root() / "light")]
    sys.exit(doors.main("glue", run, PARTS, FAULTS, __doc__))
