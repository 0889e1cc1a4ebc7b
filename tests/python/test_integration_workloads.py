"""The workloads of tests/integration/vllm, on an engine that only counts: what a seed decides, and how many rows come."""

import collections
import importlib
import pathlib
import random
import sys
import types

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "integration" / "vllm"
ROLES = {"prefill_decode": "kv_consumer"}


class Params(types.SimpleNamespace):
    n = 1


class Collector:
    """Outputs for a late consumer; vLLM merges them."""

    def __init__(self, kind, name):
        self.output = None

    def put(self, output):
        self.output = output

    def get_nowait(self):
        output, self.output = self.output, None
        return output


class Engine:
    """Each request has a token a step, from the step in which it comes."""

    engine_core = None

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.steps, self.running, self.plan = 0, {}, []

    def add_request(self, name, prompt, params, lora_request=None, **more):
        self.running[name] = prompt["prompt_token_ids"], params, self.steps
        self.plan.append(("add", self.steps, tuple(prompt["prompt_token_ids"]), str(params), bool(lora_request)))

    def abort_request(self, names, internal):
        self.plan += [("abort", self.steps, name) for name in names]
        for name in names:
            self.running.pop(name, None)

    def has_unfinished_requests(self):
        return bool(self.running)

    def reset_prefix_cache(self, reset_running_requests=False):
        self.plan.append(("reset", self.steps, reset_running_requests))
        return True

    def set_weight_version(self, name):
        self.plan.append(("weights", self.steps, name))

    def step(self):
        self.steps += 1
        ended = [name for name, (_, params, start) in self.running.items() if self.steps - start >= params.max_tokens]
        return [self.output(name, *self.running.pop(name)) for name in ended]

    def output(self, name, prompt, params, start):
        outputs = [types.SimpleNamespace(
            index=i, token_ids=[self.random.randrange(3, 500) for _ in range(params.max_tokens)], finish_reason="length",
            stop_reason=None) for i in range(params.n)]
        return types.SimpleNamespace(request_id=name, prompt_token_ids=prompt, outputs=outputs, finished=True, num_cached_tokens=0)


@pytest.fixture(scope="module")
def workloads():
    """The module, which imports vLLM, and those beside it."""
    stubs = {
        "vllm": types.SimpleNamespace(SamplingParams=Params), "vllm.lora": None,
        "vllm.lora.request": types.SimpleNamespace(LoRARequest=lambda *given: given),
        "vllm.sampling_params": types.SimpleNamespace(RequestOutputKind=types.SimpleNamespace(FINAL_ONLY=0, DELTA=1, CUMULATIVE=2)),
        "vllm.v1": None, "vllm.v1.engine": None,
        "vllm.v1.engine.output_processor": types.SimpleNamespace(RequestOutputCollector=Collector),
        "async_loads": types.SimpleNamespace(async_loads=None),  # workloads with connectors of vLLM
    }
    before = {name: sys.modules.get(name) for name in (*stubs, "workloads", "scenarios")}
    sys.modules.update({name: stub or types.ModuleType(name) for name, stub in stubs.items()})
    for name in ("workloads", "scenarios"):
        sys.modules.pop(name, None)
    sys.path.insert(0, str(FOLDER))
    try:
        module = importlib.import_module("workloads")
        module.SCENARIOS = importlib.import_module("scenarios").SCENARIOS
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old


def run(workloads, scenario, seed):
    """(what was asked of the engine, the driver) of a scenario with a seed."""
    engine = Engine(seed)
    llm = types.SimpleNamespace(
        llm_engine=engine, apply_model=lambda function: None, wake_up=lambda: None,
        sleep=lambda level, mode="abort": engine.plan.append(("sleep", engine.steps)))
    spec = dict(seed=seed, requests=scenario.requests, capture="none", lora="lora", role=ROLES.get(scenario.workload))
    driver = workloads.Driver(llm, spec)
    getattr(workloads, scenario.workload)(driver)
    return engine.plan, driver


def names():
    text = (FOLDER / "scenarios.py").read_text()
    found = {}
    exec(compile(text, "scenarios.py", "exec"), found)  # before the fixture, and without vLLM
    own = {scenario.workload: name for name, scenario in found["SCENARIOS"].items() if ours(scenario)}
    return sorted(own.values())


def ours(scenario):
    """Whether its workload is a function of workloads.py."""
    return f"\ndef {scenario.workload}(" in (FOLDER / "workloads.py").read_text()


def facts(plan):
    """What a plan differs in, if its tokens are left aside."""
    adds = [one for one in plan if one[0] == "add"]
    first = adds[0][1]
    return {
        "lengths of prompts": sorted(len(prompt) for _, _, prompt, _, _ in adds),
        "how many share a prompt": sorted(collections.Counter(prompt for _, _, prompt, _, _ in adds).values()),
        "outputs and sampling": sorted(params for _, _, _, params, _ in adds),
        "arrivals": [step - first for _, step, _, _, _ in adds],
        "aborts": [one[1] for one in plan if one[0] == "abort"],
        "events": [one[:2] for one in plan if one[0] in ("reset", "weights", "sleep")],
    }


# What a seed leaves as it is, by workload: a prompt is asked for once or twice there, or requests come when others end.
SAME = {
    "unique": {"how many share a prompt", "aborts"},
    "reset_files": {"how many share a prompt", "aborts"},
    "evicted": {"how many share a prompt", "aborts"},
    "prefill_decode": {"how many share a prompt", "aborts"},
    "edges": {"how many share a prompt", "aborts", "arrivals"},
    "lora": {"aborts"},
}


@pytest.mark.parametrize("name", names())
def test_a_seed_decides_more_than_tokens(workloads, name):
    scenario = workloads.SCENARIOS[name]
    plans = [run(workloads, scenario, seed)[0] for seed in (1, 2, 3, 4, 5)]
    assert run(workloads, scenario, 1)[0] == plans[0]
    for what in facts(plans[0]):
        different = {str(facts(plan)[what]) for plan in plans}
        if what == "events":
            assert len(different) > 1 or not facts(plans[0])[what] or scenario.workload == "reset_files", (what, different)
        elif what not in SAME.get(scenario.workload, ()):
            assert len(different) > 1, what


# The numbers of rows of these are not those of the plan: a string ends a request, or loaded rows are missing.
SHORTER = ("stop_strings", "repetitive_stop_strings", "evicted", "reset_files", "prefill_decode", "edges", "lora")


def test_every_seed_has_enough_rows(workloads):
    """A scenario with its own number of requests compares at least so many rows as its run asks for."""
    scenarios = sys.modules["scenarios"]
    for name, scenario in workloads.SCENARIOS.items():
        if scenario.workload in SHORTER or not ours(scenario):
            continue
        for seed in range(1, 13):
            records = run(workloads, scenario, seed)[1].records
            rows = sum(len(record["tokens"]) - 1 for record in records)
            assert scenarios.ROWS <= rows < 3 * scenarios.ROWS, (name, seed, rows)
