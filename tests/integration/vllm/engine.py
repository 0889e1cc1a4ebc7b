"""The engine under test: one scenario in one process.

  engine.py SPEC RESULT    SPEC: JSON {scenario, model, lora, capture, seed, requests, folder}; RESULT: pickle

RESULT is {"records": [...], "counts": {...}}; see workloads.py for the records.
"""
import collections
import json
import os
import pickle
import socket
import subprocess
import sys
import time

import report
import store
from scenarios import SCENARIOS, STORE_COUNTERS


def switch_async_scheduling_on():
    """vLLM's CPU platform always switches it off; this asks again afterwards."""
    from vllm.platforms.cpu import CpuPlatform
    check = CpuPlatform.check_and_update_config.__func__

    def wrapped(cls, vllm_config):
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(wrapped)


def put(value, spec):
    """The placeholders of scenarios.py, replaced."""
    if isinstance(value, dict):
        return {key: put(entry, spec) for key, entry in value.items()}
    return {"MODEL": spec["model"], "FOLDER": spec["folder"], "ROLE": spec.get("role")}.get(value, value) if isinstance(value, str) else value


def warm_up(worker):
    """One forward of no request, on every rank."""
    worker.worker.model_runner.profile_run()


def metrics(llm):
    values = {}
    for metric in llm.get_metrics():
        if hasattr(metric, "value"):
            values[metric.name] = values.get(metric.name, 0) + metric.value
    return values


def watch_scheduler(llm, counts):
    """Counts, if the engine core is in this process, tokens of hits on blocks that another request fills in the same
    step, and schedules that were made before the output of the last one was there."""
    scheduler = getattr(getattr(llm.llm_engine.engine_core, "engine_core", None), "scheduler", None)
    if scheduler is None:
        return
    schedule, update, open_schedules = scheduler.schedule, scheduler.update_from_output, []

    def scheduled(*args, **more):
        output = schedule(*args, **more)
        filled = set()
        for new in output.scheduled_new_reqs:
            block = scheduler.block_size
            counts["same_step_hit_tokens"] += block * len(filled.intersection(new.block_ids[0][:new.num_computed_tokens // block]))
            filled.update(new.block_ids[0][new.num_computed_tokens // block:])
        if output.total_num_scheduled_tokens:
            counts["overlapped_schedules"] += len(open_schedules) > 0
            open_schedules.append(output)
        return output

    def updated(output, *args, **more):
        open_schedules[:] = [other for other in open_schedules if other is not output]
        return update(output, *args, **more)

    scheduler.schedule, scheduler.update_from_output = scheduled, updated


def watch_copies(llm, counts):
    """Counts blocks of full attention that are copied on write, if the engine core is in this process."""
    scheduler = getattr(getattr(llm.llm_engine.engine_core, "engine_core", None), "scheduler", None)
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers if scheduler else ()
    for manager in managers:
        if "FullAttention" in type(manager).__name__ and hasattr(manager, "_apply_cow"):
            def copied(*args, copy=manager._apply_cow):
                counts["copies"] += 1
                return copy(*args)

            manager._apply_cow = copied


def write(found, path):
    with open(path, "wb") as file:
        pickle.dump(found, file)
    with open(path + ".json", "w") as file:  # of a run without a capture nothing else is read
        json.dump(found["counts"], file)


def run_all(environments):
    """Runs this script once in each environment, all at once; returns what they found."""
    paths = [f"{sys.argv[2]}.{i}" for i in range(len(environments))]
    processes = [subprocess.Popen([sys.executable, __file__, sys.argv[1], path], env=os.environ | environment)
                 for path, environment in zip(paths, environments)]
    if any([process.wait() for process in processes]):
        sys.exit(1)
    return [pickle.load(open(path, "rb")) for path in paths]


def put_together(parts):
    """The counts of several engines."""
    counts = collections.Counter()
    lists = {}
    for part in parts:
        for key, value in part["counts"].items():
            if isinstance(value, list):
                lists[key] = lists.get(key, []) + value
            else:
                counts[key] += value
    return {"counts": dict(counts) | lists}


def run_ranks(ranks):
    """Runs data-parallel ranks, a process each, and puts their results together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parts = run_all([{"VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), "VLLM_DP_SIZE": str(ranks), "VLLM_DP_MASTER_IP": "127.0.0.1",
                      "VLLM_DP_MASTER_PORT": str(port)} for rank in range(ranks)])
    write(put_together(parts) | {"records": sum((part["records"] for part in parts), [])}, sys.argv[2])


def run_roles(roles, waymark):
    """Runs engines one after the other; adds a record for each request with the rows of all of them."""
    parts = [run_all([{"WAYMARK_TEST_ROLE": role}])[0] for role in roles]
    found = put_together(parts) | {"records": []}
    named = [{record["name"]: record for record in part["records"]} for part in parts]
    for name in named[-1]:  # they end in another order in each engine
        records = [part[name] for part in named]
        for record in records[:-1]:  # computed as a whole: nothing may be missing
            record["reasons"] = None
        found["records"] += records
        if waymark:
            found["records"].append(joined(records))
            found["counts"]["joined"] = found["counts"].get("joined", 0) + 1
    write(found, sys.argv[2])


def joined(records):
    """The rows of a request that two engines returned, as a user joins them: the last one's, and for those that it lacks the first one's."""
    import numpy as np
    first, rows = (record["rows"] for record in records)
    rows, lacks = np.array(rows), np.flatnonzero((rows < 0).any((1, 2)))
    lacks = lacks[lacks < len(first)]
    rows[lacks] = first[lacks]
    reasons = ["not joined" if row.min() < 0 else None for row in rows]
    return records[-1] | {"name": records[-1]["name"] + " joined", "rows": rows, "reasons": reasons}


def main():
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    scenario = SCENARIOS[spec["scenario"]]
    if scenario.ranks > 1 and "VLLM_DP_RANK" not in os.environ:
        return run_ranks(scenario.ranks)
    rows_by_key = store.environment(scenario) if spec["capture"] == "waymark" else None
    try:
        run_scenario(spec, scenario)
    finally:
        if rows_by_key is not None:
            rows_by_key.stop()


def run_scenario(spec, scenario):
    if scenario.workload == "server":
        import server
        return write(server.run(spec, spec["capture"]), sys.argv[2])
    spec["role"] = os.environ.get("WAYMARK_TEST_ROLE")
    if scenario.roles and not spec["role"]:
        return run_roles(scenario.roles, spec["capture"] == "waymark" and not scenario.tier)
    spec["seed"] += 1000 * int(os.environ.get("VLLM_DP_RANK", 0))  # every rank has requests of its own
    if scenario.async_scheduling:
        switch_async_scheduling_on()
    import recorder
    import vllm
    import workloads
    if spec["capture"] != "waymark":
        # Nothing of the plugin may help or disturb.
        assert "waymark" not in sys.modules, "the plugin is loaded"
    options = dict(model=spec["model"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=1024, seed=spec["seed"],
                   enable_prefix_caching=True, block_size=32, enable_chunked_prefill=True, max_num_batched_tokens=128, max_num_seqs=16,
                   num_gpu_blocks_override=1024, disable_log_stats=False)
    options |= put(scenario.options, spec)
    if scenario.async_scheduling:
        options["async_scheduling"] = True
    if spec["capture"] == "peer":
        options["enable_return_routed_experts"] = True
    elif spec["capture"] == "waymark":
        options["additional_config"] = {"waymark": json.loads(os.environ["WAYMARK_TEST_OPTIONS"])}
    llm = vllm.LLM(**options)
    if scenario.warm_up:
        llm.collective_rpc(warm_up)
    driver = workloads.Driver(llm, spec, recorder.Recorder(llm) if scenario.recorded else None)
    watch_scheduler(llm, driver.counts)
    watch_copies(llm, driver.counts)
    try:
        getattr(workloads, scenario.workload)(driver)
    except workloads.Stuck:
        pass
    driver.counts["rows_never_returned"] = sum(driver.running.values())
    values = metrics(llm)
    driver.counts.update(
        prefix_hit_tokens=int(values.get("vllm:prefix_cache_hits", 0)), external_hit_tokens=int(values.get("vllm:external_prefix_cache_hits", 0)),
        preemptions=int(values.get("vllm:num_preemptions", 0)), drafts_accepted=int(values.get("vllm:spec_decode_num_accepted_tokens", 0)),
        drafts_rejected=int(values.get("vllm:spec_decode_num_draft_tokens", 0) - values.get("vllm:spec_decode_num_accepted_tokens", 0)),
        unfinished=len(driver.running), steps=driver.steps)
    found = {"records": driver.records, "counts": dict(driver.counts)}
    if spec["capture"] == "waymark":
        reports = [one for one in llm.collective_rpc(report.of_worker) if one]
        tiers = [report["tier"] for report in reports]
        for counter in tiers[0] if scenario.tier else ():
            found["counts"]["tier_" + counter] = sum(tier[counter] for tier in tiers)
        for counter in STORE_COUNTERS:
            found["counts"][counter] = sum(report["store"][counter] for report in reports)
        found["counts"] |= {"findings": sum((report["findings"] for report in reports), []),
                            "failures": [report["failure"] for report in reports if report["failure"]]}
    write(found, sys.argv[2])


if __name__ == "__main__":
    main()
