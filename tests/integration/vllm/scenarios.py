"""The scenarios: which model in which engine does what, and what has to happen for the run to count."""
import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    workload: str = "turns"      # function of workloads.py; "server": server.py
    model: str = "qwen3_moe"     # of make_model.py
    options: dict = dataclasses.field(default_factory=dict)  # of vllm.LLM
    environment: dict = dataclasses.field(default_factory=dict)
    requests: int = 30           # a turn: ROWS rows, if no number is asked for
    promises: tuple = ()         # counters that have to be above 0
    reasons: tuple = ()          # why rows may be missing; for anything else the run fails
    async_scheduling: bool = False
    ranks: int = 1               # of data parallelism, a process each
    warm_up: bool = False        # one dummy forward first
    recorded: bool = False       # compare with recorder.py instead of a recompute
    roles: tuple = ()            # of engines that run one after the other, and whose rows are joined ("ROLE" in the options)
    tier: bool = False           # rows are found by key there, so that none may be missing
    loads_miss: bool = False     # every token that a connector loads has to be a missing row
    versions: tuple = ("0.32.0", "0.33.0")
    runners: tuple = ("v1", "v2")  # model runners that Waymark serves
    unavailable: str = ""        # why the mode does not run on vLLM's CPU build; it is skipped unless asked for by name


ROWS = 10_000  # that a run compares at least, if no number of requests is asked for
# Of the worker's store, when everything has ended: an event or a snapshot was lost if one is not 0.
LOADED = "external_kv"  # why rows of tokens are missing that a connector has loaded
STORE_COUNTERS = ("releases_below_zero", "binds_with_users", "snapshots_lost")
OWN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
DRAFT = {"method": "draft_model", "num_speculative_tokens": 2, "model": "MODEL"}  # a mixture of experts, too
FEW_BLOCKS = {"num_gpu_blocks_override": 34}  # one request of max_model_len just fits
LORA = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj"]}
TOKENIZER = {"skip_tokenizer_init": False}
HITS = ("prefix_hit_tokens",)


def files(role):
    """KV in files, by vLLM's own connector. A prompt has to be scheduled at once to be stored:
    as many as run together have to fit in a step."""
    return {"max_num_batched_tokens": 4096, "kv_transfer_config": {
        "kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": {"shared_storage_path": "FOLDER"}}}


FAILED_LOADS = {"kv_transfer_config": {"kv_connector": "AsyncLoads", "kv_connector_module_path": "async_loads", "kv_role": "kv_both",
                                       "kv_load_failure_policy": "fail"}}  # "recompute" is refused
# Without a tier nobody has the rows of what is loaded; vLLM 0.33 loads nothing then.
LOADS = {"reasons": (LOADED,), "loads_miss": True, "versions": ("0.32.0",)}
PRIORITY = {"scheduling_policy": "priority", "num_gpu_blocks_override": 60}
LOAD_COUNTS = ("external_hit_tokens", "preemptions", "resets", "aborts_loading", "aborts_running", "loads_later", "loads_at_once", "loads_failed_later",
               "loads_failed_at_once", "loads_of_whole_prompts", "loads_behind_hits")


def _all():
    make = functools.partial(Scenario)
    return [
        make("groups", options={"max_num_batched_tokens": 256}, promises=HITS + ("same_step_hit_tokens",)),
        make("preempt", options=FEW_BLOCKS, promises=HITS + ("preemptions",)),
        make("spec", workload="repetitive", options={"speculative_config": NGRAM}, promises=("drafts_accepted", "drafts_rejected")),
        make("spec_preempt", workload="repetitive", options={"speculative_config": NGRAM} | FEW_BLOCKS, promises=("drafts_accepted", "preemptions")),
        make("spec_draft_model", workload="repetitive", options={"speculative_config": DRAFT}, promises=("drafts_accepted",)),
        make("chunked_prefill", workload="long_prompts", requests=18, options={"max_num_batched_tokens": 64}, promises=HITS),
        make("aborts", workload="aborts", requests=56, options=FEW_BLOCKS, promises=("aborts",)),
        make("fork", workload="fork", requests=36, promises=HITS + ("forks",)),
        make("reset", workload="reset", requests=21, promises=HITS + ("resets",)),
        make("weights", workload="weights", promises=HITS + ("weight_updates", "rows_old_version")),
        make("weights_preempt", workload="weights", options=FEW_BLOCKS, promises=HITS + ("weight_updates", "rows_old_version", "preemptions")),
        make("not_asked", workload="not_asked", requests=48, promises=HITS + ("not_asked",)),
        make("streaming", workload="streaming", promises=HITS + ("chunks",)),
        make("streaming_late", workload="streaming_late", promises=HITS + ("merged_chunks",)),
        make("no_cache", options={"enable_prefix_caching": False}),
        # Pages for what runs at once, not for the prefix cache: no prompt comes again, so no row may be missing.
        make("few_pages", workload="unique", requests=22, options={"max_num_seqs": 8},
             environment={"WAYMARK_TEST_OPTIONS": '{"reasons": true, "store": {"num_pages": 200}}'}),
        make("warm_up", promises=HITS, warm_up=True),
        make("own_process", environment=OWN_PROCESS, promises=HITS),
        make("own_process_preempt", environment=OWN_PROCESS, options=FEW_BLOCKS, promises=HITS + ("preemptions",)),
        make("own_process_spec", workload="repetitive", environment=OWN_PROCESS, options={"speculative_config": NGRAM}, promises=("drafts_accepted",)),
        make("tp2", environment=OWN_PROCESS, options={"tensor_parallel_size": 2}, promises=HITS),
        make("dp2", environment=OWN_PROCESS, promises=HITS, ranks=2,
             unavailable="the ranks share the experts, and exchange tokens by all_gatherv, which vLLM has not on the CPU"),
        make("dp2_ep", environment=OWN_PROCESS, options={"enable_expert_parallel": True}, promises=HITS, ranks=2,
             unavailable="the experts' ranks exchange tokens by all_gatherv, which vLLM has not on the CPU"),
        make("async", async_scheduling=True, promises=HITS + ("overlapped_schedules",)),
        make("async_preempt", async_scheduling=True, options=FEW_BLOCKS, promises=HITS + ("preemptions", "overlapped_schedules")),
        make("async_spec", workload="repetitive", async_scheduling=True, options={"speculative_config": DRAFT}, promises=("drafts_accepted",)),
        make("kv_offload", workload="evicted", options=FEW_BLOCKS | {"kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"num_cpu_blocks": 512, "cpu_bytes_to_use": 1 << 28}}},
             promises=("external_hit_tokens",), unavailable="vLLM's OffloadingConnector needs a GPU"),
        make("kv_files", workload="evicted", requests=48, options=FEW_BLOCKS | files("kv_both"), promises=("external_hit_tokens",), **LOADS),
        make("reset_files", workload="reset_files", requests=70, options=files("kv_both"), promises=("external_hit_tokens", "resets"),
             **LOADS),
        make("prefill_decode", workload="prefill_decode", requests=38, options=files("ROLE"), roles=("kv_producer", "kv_consumer"),
             promises=("external_hit_tokens", "joined"), **LOADS),
        # Loads that go on beside the forwards, of a connector of the test's own.
        make("failed_loads", workload="async_loads", requests=200, options=FAILED_LOADS | {"num_gpu_blocks_override": 44},
             promises=LOAD_COUNTS + ("aborts_loaded", "requests_failed"), **LOADS | {"loads_miss": False}),
        make("async_failed_loads", workload="async_loads", requests=200, async_scheduling=True,
             options=FAILED_LOADS | {"num_gpu_blocks_override": 44}, **LOADS | {"loads_miss": False},
             promises=tuple(set(LOAD_COUNTS) - {"resets"}) + ("requests_failed", "overlapped_schedules")),  # outputs are always on their way
        make("failed_loads_priority", workload="async_loads", requests=150, options=FAILED_LOADS | PRIORITY,
             promises=LOAD_COUNTS + ("requests_failed",), **LOADS | {"loads_miss": False}),
        make("windows", model="gpt_oss", promises=HITS),
        make("windows_preempt", model="gpt_oss", options={"num_gpu_blocks_override": 40}, promises=HITS + ("preemptions",)),
        # A state that is cached every 8 tokens, in blocks of 32: hits end inside a block, which is copied.
        make("copy_on_write", model="lfm2_moe", options={"prefix_match_unit": 8}, promises=HITS + ("copies",), recorded=True),
        make("mla", model="deepseek_v3", recorded=True),
        make("mixtral", model="mixtral", promises=HITS),
        make("dense_layers", model="qwen3_moe_sparse", promises=HITS),
        make("lora", workload="lora", options=LORA, promises=HITS + ("lora_requests",),
             unavailable="vLLM gives every layer of experts to Triton kernels if LoRA is on, and Triton has no CPU backend on PyPI"),
        make("stop_strings", workload="stop_strings", requests=28, options=TOKENIZER, promises=HITS + ("stop_strings", "aborts")),
        make("own_process_stop_strings", workload="stop_strings", requests=28, environment=OWN_PROCESS, options=TOKENIZER, promises=HITS + ("stop_strings", "aborts")),
        make("async_stop_strings", workload="stop_strings", requests=28, async_scheduling=True, options=TOKENIZER,
             promises=HITS + ("stop_strings", "aborts", "overlapped_schedules")),
        make("spec_stop_strings", workload="repetitive_stop_strings", requests=21, options={"speculative_config": NGRAM} | TOKENIZER,
             promises=("drafts_accepted", "stop_strings")),
        make("edges", workload="edges", requests=40, promises=HITS + ("different_lengths",)),
        make("http", workload="server", requests=52, environment=OWN_PROCESS, promises=("completions", "chat", "generate", "streams", "chunks", "stop_strings")),
        # The scheduler's half of it: vLLM's CPU worker ignores it, and refuses enable_sleep_mode.
        make("sleep", workload="sleep", requests=21, promises=HITS + ("sleeps", "preemptions")),
    ]


def _tiered(scenario):
    """The same with a tier: no row is missing, and nobody joins rows."""
    promises = tuple(set(scenario.promises) - {"joined"}) + ("tier_rows_filled",)
    requests = scenario.requests + 8 * len(scenario.roles)
    # An engine core in this process does nothing behind its last output, and what it would seal is not told.
    environment = OWN_PROCESS if scenario.roles else scenario.environment
    return dataclasses.replace(scenario, name=scenario.name + "_tier", requests=requests, environment=environment, tier=True, promises=promises, reasons=(), loads_miss=False,
                               versions=Scenario.versions)


# KV comes from elsewhere in them.
TIERED = ("kv_files", "reset_files", "prefill_decode", "failed_loads", "async_failed_loads", "failed_loads_priority")
SCENARIOS = {scenario.name: scenario for scenario in _all()}
SCENARIOS |= {name + "_tier": _tiered(SCENARIOS[name]) for name in TIERED}
