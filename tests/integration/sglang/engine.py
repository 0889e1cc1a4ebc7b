"""Runs SGLang engines, one after the other: engine.py JOBS, a JSON list of {scenario, seeds, requests, turns, folder, model, environment, seconds, spawn}.

One engine serves the seeds one after the other. Its result is FOLDER/result.pickle, {seed: {records, counts}}; a record is a request that
finished: its tokens, the rows of its answer, what Waymark says of them, and the rows of SGLang's own table. spawn: whether SGLang's processes
import everything by themselves, as they do in use, or are forked.
"""
import asyncio
import base64
import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import sys
import time

import no_gpu
import numpy as np
from make_model import EXPERTS, LAYERS, TOP_K, VOCABULARY, write_model
from scenarios import COMMON, SCENARIOS


class Driver:
    """One engine, and what became of its requests."""

    def __init__(self, engine, spec, seed):
        self.engine, self.spec, self.seed = engine, spec, seed
        self.random = np.random.default_rng(seed)
        self.requests, self.turns = spec["requests"], spec["turns"]
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
        asked = asyncio.ensure_future(self.generate(
            input_ids=list(prompt), sampling_params=sampling, rid=name if n == 1 else None, return_routed_experts=True, **more))
        if stop_after is not None:
            await asyncio.sleep(stop_after)
            self.engine.abort_request(rid=name)
        answers = await asked
        answers = answers if isinstance(answers, list) else [answers]
        for answer in answers:
            self.take(name, list(prompt), answer, start)
        return answers

    async def generate(self, **given):
        """The last output, of a stream too."""
        stream = given["sampling_params"]["n"] == 1 and self.random.random() < 0.2
        found = await self.engine.async_generate(stream=stream, **given)
        if stream:
            async for last in found:
                pass
            self.counts["streams"] += 1
            return last
        return found

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
        path = pathlib.Path(self.spec["folder"], "rows", f"{info['id']}.npy")
        told = info.get("waymark")
        self.records.append(dict(name=name, tokens=prompt + answer["output_ids"], rows=rows, first=start, told=told[-1] if told else None,
                                 own=np.load(path) if path.exists() else None, versions=self.versions))

    async def all(self, asked):
        return [answer for answers in await asyncio.gather(*asked) for answer in answers]


async def turns(driver, each_turn=lambda: None, aborts=0.0, samples=False):
    """Groups that share a prompt, second turns, answers that begin late, and other requests, which push out what is cached."""
    first = [driver.tokens(driver.between(40, 140)) for _ in range(max(driver.requests // 4, 2))]
    size = 4 if driver.requests > 4 else 2

    def stop():
        return dict(stop_after=float(driver.random.random()) * 0.8) if driver.random.random() < aborts else {}

    for _ in range(driver.turns):
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
    from safetensors.torch import load_file, save_file
    from sglang.srt.managers.io_struct import (
        ContinueGenerationReqInput,
        PauseGenerationReqInput,
        UpdateWeightFromDiskReqInput,
    )
    manager, folder = driver.engine.tokenizer_manager, pathlib.Path(driver.spec["model"])
    tensors, name = load_file(folder / "model.safetensors"), f"model.layers.{LAYERS - 1}.mlp.gate.weight"
    gate, driver.versions = tensors[name], True

    async def update(version, flush=False):
        other = folder.with_name(f"{folder.name}_{driver.seed}_{version}")
        shutil.copytree(folder, other)
        save_file(tensors | {name: gate.roll(version, 0).contiguous()}, other / "model.safetensors", {"format": "pt"})
        await manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
        done = await manager.update_weights_from_disk(UpdateWeightFromDiskReqInput(
            model_path=str(other), flush_cache=flush, weight_version=f"{driver.seed}:{version}"))
        assert done[0], done
        await manager.continue_generation(ContinueGenerationReqInput())

    async def sometimes():
        for version in range(1, EXPERTS):
            await asyncio.sleep(1.5)
            await update(version)
            driver.counts["updates"] += 1

    await update(0, flush=True)  # after another seed
    running = asyncio.ensure_future(sometimes())
    await turns(driver)
    running.cancel()


def run_job(job):
    """One engine; its output goes to files. In a process of its own, whose group ends with it."""
    os.setsid()
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(job["folder"] + "/" + name, os.O_CREAT | os.O_WRONLY), stream)
    os.environ.update(job["environment"])
    scenario = SCENARIOS[job["scenario"]]
    write_model(scenario.model, job["model"])
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers import scheduler
    scheduler.TEST_RETRACT = scheduler.envs.SGLANG_TEST_RETRACT.get()  # was read when it was imported
    if job["spawn"] is False:
        multiprocessing.set_start_method("fork", force=True)
        multiprocessing.set_start_method = lambda *args, **more: None
    begin = time.monotonic()
    engine = Engine(model_path=job["model"], random_seed=job["seeds"][0], **COMMON | scenario.options)
    found, ready = {}, round(time.monotonic() - begin)
    for seed in job["seeds"]:
        begin, driver = time.monotonic(), Driver(engine, job, seed)
        engine.loop.run_until_complete(globals()[scenario.workload](driver))
        driver.counts.update({"seconds": round(time.monotonic() - begin), "seconds_to_start": ready})
        found[seed] = dict(records=driver.records, counts=dict(driver.counts))
    pathlib.Path(job["folder"], "result.pickle").write_bytes(pickle.dumps(found))
    engine.shutdown()


def main():
    """Imports SGLang once, and forks for each engine: the imports take longer than most scenarios."""
    jobs = json.loads(pathlib.Path(sys.argv[1]).read_text())
    no_gpu.install()
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401
    fork = multiprocessing.get_context("fork")
    for job in jobs:
        process = fork.Process(target=run_job, args=(job,))
        process.start()
        process.join(job["seconds"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        print("ENDED", job["folder"], flush=True)


if __name__ == "__main__":
    main()
