"""Runs one SGLang engine through the workload of a scenario: engine.py SPEC RESULT.

SPEC: JSON {scenario, seeds, requests, model, folder}; one engine serves the seeds one after the other. RESULT: a pickle {seed: {records,
counts}}; a record is a request that finished: its tokens, the rows of its answer, what Waymark says of them, and the rows of SGLang's own
table.
"""
import asyncio
import base64
import collections
import json
import pathlib
import pickle
import sys
import time

import numpy as np
from make_model import EXPERTS, LAYERS, TOP_K, VOCABULARY
from scenarios import COMMON, SCENARIOS


class Driver:
    """One engine, and what became of its requests."""

    def __init__(self, engine, spec, seed):
        self.engine, self.spec, self.seed = engine, spec, seed
        self.random = np.random.default_rng(seed)
        self.requests = spec["requests"]
        self.records, self.counts = [], collections.Counter()
        self.number = 0
        self.versions = False  # whether weights change

    def between(self, low, high):
        return int(self.random.integers(low, high + 1))

    def tokens(self, count):
        return self.random.integers(3, VOCABULARY, count).tolist()

    async def ask(self, prompt, new, start=0, wait=0.0, n=1, stop_after=None):
        """A request; stop_after: seconds after which it is aborted. Returns the answers."""
        self.number += 1
        name = f"request{self.seed}_{self.number}"
        await asyncio.sleep(wait)
        sampling = dict(max_new_tokens=int(new), temperature=1.0, ignore_eos=True, n=n)
        more = dict(routed_experts_start_len=start) if start else {}
        asked = asyncio.ensure_future(self.engine.async_generate(
            input_ids=list(prompt), sampling_params=sampling, rid=name if n == 1 else None, return_routed_experts=True, **more))
        if stop_after is not None:
            await asyncio.sleep(stop_after)
            self.engine.abort_request(rid=name)
        answers = await asked
        answers = answers if isinstance(answers, list) else [answers]
        for answer in answers:
            self.take(name, list(prompt), answer, start)
        return answers

    def take(self, name, prompt, answer, start):
        info = answer["meta_info"]
        self.counts["requests"] += 1
        self.counts["cached"] += info.get("cached_tokens") or 0
        self.counts["retracted"] += info.get("num_retractions") or 0
        details = info.get("cached_tokens_details") or {}
        self.counts["loaded"] += details.get("host") or 0
        self.counts["stored"] += details.get("storage") or 0
        aborted = (info.get("finish_reason") or {}).get("type") == "abort"
        self.counts["aborted"] += aborted
        if aborted and not answer["output_ids"]:
            return
        rows = info.get("routed_experts")
        if rows is not None:
            rows = np.frombuffer(base64.b64decode(rows), np.int32).reshape(-1, LAYERS, TOP_K)
        path = pathlib.Path(self.spec["folder"], f"{info['id']}.npy")
        told = info.get("waymark")
        self.records.append(dict(name=name, tokens=prompt + answer["output_ids"], rows=rows, first=start, told=told[0] if told else None,
                                 own=np.load(path) if path.exists() else None, versions=self.versions))

    async def all(self, asked):
        return [answer for answers in await asyncio.gather(*asked) for answer in answers]


async def turns(driver, each_turn=lambda: None, aborts=0.0, samples=False, count=3):
    """Groups that share a prompt, second turns, answers that begin late, and other requests, which push out what is cached."""
    first = [driver.tokens(driver.between(40, 140)) for _ in range(max(driver.requests // 4, 2))]
    size = 4 if driver.requests > 4 else 2

    def stop():
        return dict(stop_after=float(driver.random.random()) * 0.8) if driver.random.random() < aborts else {}

    for turn in range(count):
        if samples:
            asked = [driver.ask(prompt, driver.between(10, 50), n=size) for prompt in first]
        else:
            asked = [driver.ask(prompt, driver.between(10, 50), wait=float(driver.random.random()) * 0.5, **stop())
                     for prompt in first for _ in range(size)]
        answers = await driver.all(asked)
        prompts = [prompt for prompt in first for _ in range(size)]
        second = [prompt + answer["output_ids"] + driver.tokens(9) for prompt, answer in zip(prompts[::3], answers[::3])]
        await driver.all([driver.ask(prompt, driver.between(8, 40), **stop()) for prompt in second])
        await driver.all([driver.ask(prompt, 12, start=driver.between(1, 39)) for prompt in second[:3]])
        await driver.all([driver.ask(driver.tokens(driver.between(20, 150)), driver.between(5, 60), **stop()) for _ in range(6)])
        await _maybe(each_turn())


async def _maybe(result):
    if asyncio.iscoroutine(result):
        await result


async def aborts(driver):
    await turns(driver, aborts=0.3)


async def samples(driver):
    await turns(driver, samples=True)


async def flush(driver):
    async def flushed():
        found = await driver.engine.tokenizer_manager.flush_cache()
        assert found.success, found
        driver.counts["flushes"] += 1
    await turns(driver, flushed)


async def weights(driver):
    """The router of the last layer is rolled by one expert, between turns and while requests run."""
    import torch
    from safetensors import safe_open
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput  # noqa: F401, it is there
    name = f"model.layers.{LAYERS - 1}.mlp.gate.weight"
    with safe_open(pathlib.Path(driver.spec["model"], "model.safetensors"), "pt") as file:
        gate = file.get_tensor(name)
    driver.versions = True

    async def update():
        driver.counts["updates"] += 1
        version = driver.counts["updates"]
        await _paused(driver.engine, [(name, torch.roll(gate, version, 0).contiguous())], str(version))

    async def sometimes():
        while True:
            await asyncio.sleep(0.7)
            await update()

    running = asyncio.ensure_future(sometimes())
    await turns(driver)
    running.cancel()


async def _paused(engine, tensors, version):
    from sglang.srt.managers.io_struct import (
        ContinueGenerationReqInput,
        PauseGenerationReqInput,
    )
    manager = engine.tokenizer_manager
    await manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
    await _update(engine, tensors, version)
    await manager.continue_generation(ContinueGenerationReqInput())


async def _update(engine, tensors, version):
    raise NotImplementedError


def main():
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    scenario = SCENARIOS[spec["scenario"]]
    from sglang.srt.entrypoints.engine import Engine
    begin = time.monotonic()
    engine = Engine(model_path=spec["model"], random_seed=spec["seeds"][0], **COMMON | scenario.options)
    found, ready = {}, round(time.monotonic() - begin)
    for seed in spec["seeds"]:
        begin, driver = time.monotonic(), Driver(engine, spec, seed)
        engine.loop.run_until_complete(globals()[scenario.workload](driver))
        driver.counts |= {"seconds": round(time.monotonic() - begin), "seconds_to_start": ready}
        found[seed] = dict(records=driver.records, counts=dict(driver.counts))
    engine.shutdown()
    pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
