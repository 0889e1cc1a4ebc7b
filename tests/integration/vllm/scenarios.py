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
    read_late: float = 0         # seconds, before the rows of requests that ended are read
    recorded: bool = False       # compare with recorder.py instead of a recompute
    roles: tuple = ()            # of engines that run one after the other, and whose rows are joined ("ROLE" in the options)
    publishes: bool = False      # rows, whose handles outputs have; the store is the test's own
    tier: bool = False           # rows are found by key there, so that none may be missing
    loads_miss: bool = False     # every token that a connector loads has to be a missing row
    zero: tuple = ()             # counters of the store that have to be 0
    not_zero: tuple = ()         # and those that must not
    versions: tuple = ("0.30.0", "0.31.0", "0.32.0")
    runners: tuple = ("v1", "v2")  # model runners that Waymark serves
    unavailable: str = ""        # why the mode does not run on vLLM's CPU build; it is skipped unless asked for by name


ROWS = 10_000  # that a run compares at least, if no number of requests is asked for
# Of the worker's store, when everything has ended: an event or a snapshot was lost if one is not 0.
STORE_COUNTERS = ("releases_below_zero", "snapshots_lost", "snapshots_given_up")
OWN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
DRAFT = {"method": "draft_model", "num_speculative_tokens": 2, "model": "MODEL"}  # a mixture of experts, too
FEW_BLOCKS = {"num_gpu_blocks_override": 34}  # one request of max_model_len just fits
LORA = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj"]}
TOKENIZER = {"skip_tokenizer_init": False}
HITS = ("prefix_hit_tokens",)
FROM_31 = ("0.31.0", "0.32.0")  # 0.30.0 fails on a CPU without Waymark, too: drafts, GPT-OSS


def files(role):
    """KV in files, by vLLM's own connector. A prompt has to be scheduled at once to be stored:
    as many as run together have to fit in a step."""
    return {"max_num_batched_tokens": 4096, "kv_transfer_config": {
        "kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": {"shared_storage_path": "FOLDER"}}}


def loads(policy):
    """KV of a connector of the test's own. policy: what vLLM does with a request whose load failed."""
    return {"kv_transfer_config": {"kv_connector": "AsyncLoads", "kv_connector_module_path": "async_loads", "kv_role": "kv_both",
                                   "kv_load_failure_policy": policy}}


LOADS, FAILED_LOADS = loads("recompute"), loads("fail")
PRIORITY = {"scheduling_policy": "priority", "num_gpu_blocks_override": 60}
LOAD_COUNTS = ("external_hit_tokens", "preemptions", "resets", "aborts_loading", "aborts_running", "loads_later", "loads_at_once", "loads_failed_later",
               "loads_failed_at_once", "loads_of_whole_prompts", "loads_behind_hits")


def _all():
    make = functools.partial(Scenario)
    return [
        make("groups", options={"max_num_batched_tokens": 256}, promises=HITS + ("same_step_hit_tokens",)),
        make("preempt", options=FEW_BLOCKS, promises=HITS + ("preemptions",)),
        make("spec", workload="repetitive", options={"speculative_config": NGRAM}, promises=("drafts_accepted", "drafts_rejected"), versions=FROM_31),
        make("spec_preempt", workload="repetitive", options={"speculative_config": NGRAM} | FEW_BLOCKS, promises=("drafts_accepted", "preemptions"), versions=FROM_31),
        make("spec_draft_model", workload="repetitive", options={"speculative_config": DRAFT},
             promises=("drafts_accepted",), versions=FROM_31),
        make("chunked_prefill", workload="long_prompts", requests=18, options={"max_num_batched_tokens": 64}, promises=HITS),
        make("aborts", workload="aborts", requests=56, options=FEW_BLOCKS, promises=("aborts",)),
        make("fork", workload="fork", requests=36, promises=HITS + ("forks",)),
        make("reset", workload="reset", requests=21, promises=HITS + ("resets",)),
        make("weights", workload="weights", promises=HITS + ("weight_updates", "rows_old_version")),
        make("weights_preempt", workload="weights", options=FEW_BLOCKS, promises=HITS + ("weight_updates", "rows_old_version", "preemptions")),
        make("pause", workload="pause", promises=HITS + ("pauses",), read_late=0.3),
        make("not_asked", workload="not_asked", requests=48, promises=HITS + ("not_asked",)),
        make("streaming", workload="streaming", promises=HITS + ("chunks",)),
        make("streaming_late", workload="streaming_late", promises=HITS + ("merged_chunks",)),
        make("no_cache", options={"enable_prefix_caching": False}),
        # Pages for what runs at once, not for the prefix cache: no prompt comes again, so no row may be missing.
        make("few_pages", workload="unique", requests=22, options={"max_num_seqs": 8},
             environment={"WAYMARK_VLLM_OPTIONS": '{"reasons": true, "store": {"num_pages": 200}}'}),
        make("warm_up", promises=HITS, warm_up=True),
        make("own_process", environment=OWN_PROCESS, promises=HITS),
        make("own_process_preempt", environment=OWN_PROCESS, options=FEW_BLOCKS, promises=HITS + ("preemptions",)),
        make("own_process_spec", workload="repetitive", environment=OWN_PROCESS, options={"speculative_config": NGRAM}, promises=("drafts_accepted",), versions=FROM_31),
        make("tp2", environment=OWN_PROCESS, options={"tensor_parallel_size": 2}, promises=HITS),
        # vLLM's CPU worker makes the tensors that one stage sends the next in a warm-up, which it leaves out if eager.
        make("pp2", requests=33, environment=OWN_PROCESS, options={"pipeline_parallel_size": 2}, promises=HITS, warm_up=True),
        make("dp2", environment=OWN_PROCESS, promises=HITS, ranks=2,
             unavailable="the ranks share the experts, and exchange tokens by all_gatherv, which vLLM has not on the CPU"),
        make("dp2_ep", environment=OWN_PROCESS, options={"enable_expert_parallel": True}, promises=HITS, ranks=2,
             unavailable="the experts' ranks exchange tokens by all_gatherv, which vLLM has not on the CPU"),
        make("async", async_scheduling=True, promises=HITS + ("overlapped_schedules",)),
        make("async_preempt", async_scheduling=True, options=FEW_BLOCKS, promises=HITS + ("preemptions", "overlapped_schedules")),
        make("async_spec", workload="repetitive", async_scheduling=True, options={"speculative_config": DRAFT}, promises=("drafts_accepted",), versions=FROM_31),
        make("kv_offload", workload="evicted", options=FEW_BLOCKS | {"kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"num_cpu_blocks": 512, "cpu_bytes_to_use": 1 << 28}}},
             promises=("external_hit_tokens",), unavailable="vLLM's OffloadingConnector needs a GPU"),
        make("kv_files", workload="evicted", requests=48, options=FEW_BLOCKS | files("kv_both"), promises=("external_hit_tokens",), reasons=("external_kv",),
             not_zero=("hits_by_key",)),  # loaded blocks whose rows this engine has already
        make("reset_files", workload="reset_files", requests=70, options=files("kv_both"), promises=("external_hit_tokens", "resets"),
             reasons=("external_kv",), loads_miss=True, zero=("hits_by_key",)),
        make("prefill_decode", workload="prefill_decode", requests=38, options=files("ROLE"), roles=("kv_producer", "kv_consumer"),
             promises=("external_hit_tokens", "joined"), reasons=("external_kv",), loads_miss=True),
        # Loads that go on beside the forwards, of a connector of the test's own.
        make("async_loads", workload="async_loads", requests=200, options=LOADS | {"num_gpu_blocks_override": 44},
             promises=LOAD_COUNTS + ("aborts_loaded",), reasons=("external_kv",), runners=("v1",)),
        make("async_loads_priority", workload="async_loads", requests=150, options=LOADS | PRIORITY, promises=LOAD_COUNTS,
             reasons=("external_kv",), runners=("v1",)),
        make("failed_loads", workload="async_loads", requests=200, options=FAILED_LOADS | {"num_gpu_blocks_override": 44},
             promises=LOAD_COUNTS + ("aborts_loaded", "requests_failed"), reasons=("external_kv",)),
        make("async_failed_loads", workload="async_loads", requests=200, async_scheduling=True,
             options=FAILED_LOADS | {"num_gpu_blocks_override": 44}, reasons=("external_kv",),
             promises=tuple(set(LOAD_COUNTS) - {"resets"}) + ("requests_failed", "overlapped_schedules")),  # outputs are always on their way
        make("failed_loads_priority", workload="async_loads", requests=150, options=FAILED_LOADS | PRIORITY,
             promises=LOAD_COUNTS + ("requests_failed",), reasons=("external_kv",)),
        make("windows", model="gpt_oss", promises=HITS, versions=FROM_31),
        make("windows_preempt", model="gpt_oss", options={"num_gpu_blocks_override": 40}, promises=HITS + ("preemptions",), versions=FROM_31),
        # A state that is cached every 8 tokens, in blocks of 32: hits end inside a block, which is copied.
        make("copy_on_write", model="lfm2_moe", options={"prefix_match_unit": 8}, promises=HITS + ("copies",), recorded=True),
        make("mla", model="deepseek_v3", recorded=True),
        make("mixtral", model="mixtral", promises=HITS),
        make("dense_layers", model="qwen3_moe_sparse", promises=HITS),
        make("compile", options={"enforce_eager": False}, promises=HITS),
        make("lora", workload="lora", options=LORA, promises=HITS + ("lora_requests",),
             unavailable="vLLM gives every layer of experts to Triton kernels if LoRA is on, and Triton has no CPU backend on PyPI"),
        make("stop_strings", workload="stop_strings", requests=28, options=TOKENIZER, promises=HITS + ("stop_strings", "aborts")),
        make("own_process_stop_strings", workload="stop_strings", requests=28, environment=OWN_PROCESS, options=TOKENIZER, promises=HITS + ("stop_strings", "aborts")),
        make("async_stop_strings", workload="stop_strings", requests=28, async_scheduling=True, options=TOKENIZER,
             promises=HITS + ("stop_strings", "aborts", "overlapped_schedules")),
        make("spec_stop_strings", workload="repetitive_stop_strings", requests=21, options={"speculative_config": NGRAM} | TOKENIZER,
             promises=("drafts_accepted", "stop_strings"), versions=("0.32.0",)),
        make("edges", workload="edges", requests=40, promises=HITS + ("different_lengths",)),
        make("http", workload="server", requests=52, environment=OWN_PROCESS, promises=("completions", "chat", "generate", "streams", "chunks", "stop_strings")),
        make("handles", workload="handles", options=FEW_BLOCKS, publishes=True, requests=20,
             promises=HITS + ("preemptions", "forks", "chunks", "handles", "published_objects_held")),
        make("handles_async", workload="handles_stop_strings", async_scheduling=True, options=FEW_BLOCKS | TOKENIZER, publishes=True, requests=20,
             promises=HITS + ("preemptions", "stop_strings", "handles", "overlapped_schedules")),
        make("handles_pp2", requests=33, environment=OWN_PROCESS, options={"pipeline_parallel_size": 2}, promises=HITS + ("handles",), warm_up=True,
             publishes=True),
        make("handles_lost", workload="handles_lost", environment=OWN_PROCESS, publishes=True, requests=20, reasons=("capacity",),
             promises=HITS + ("handles", "handles_not_stored", "handles_stored", "store_killed", "store_frozen", "store_full")),
        make("handles_http", workload="server", requests=52, environment=OWN_PROCESS, publishes=True,
             promises=("completions", "chat", "generate", "streams", "chunks", "stop_strings", "handles", "handles_beside")),
        # Prompts whose last block is loaded, too: its rows come with the request. A fifth of the requests comes with another's.
        make("tails", workload="tails", requests=110, options={"kv_transfer_config": {
            "kv_connector": "WholePrompts", "kv_connector_module_path": "whole_prompts", "kv_role": "kv_both"}}, tier=True,
             promises=("tails", "tails_of_others", "external_hit_tokens", "resets", "tier_rows_filled"), reasons=("external_kv",)),
        # Both captures in one engine: 0.30.0 gives the routers' capture slots to its own after the KV cache was made.
        make("beside_peer", options={"enable_return_routed_experts": True}, promises=HITS, versions=("0.30.0",)),
        # The scheduler's half of it: vLLM's CPU worker ignores it, and refuses enable_sleep_mode.
        make("sleep", workload="sleep", requests=21, promises=HITS + ("sleeps", "preemptions")),
    ]


def _tiered(scenario):
    """The same with a tier: no row is missing, and nobody joins rows."""
    promises = tuple(set(scenario.promises) - {"joined"}) + ("tier_rows_filled",)
    requests = scenario.requests + 8 * len(scenario.roles)
    return dataclasses.replace(scenario, name=scenario.name + "_tier", requests=requests, tier=True, promises=promises, reasons=(), loads_miss=False,
                               zero=(), not_zero=())


def _named(scenario):
    promises = tuple(set(scenario.promises) - {"tier_rows_filled"}) + ("handles", "handle_rows_by_key")
    return dataclasses.replace(scenario, name=scenario.name.removesuffix("_tier") + "_names", publishes=True, promises=promises)


# KV comes from elsewhere in them.
TIERED = ("kv_files", "reset_files", "prefill_decode", "async_loads", "async_loads_priority", "failed_loads", "async_failed_loads",
          "failed_loads_priority")
SCENARIOS = {scenario.name: scenario for scenario in _all()}
SCENARIOS |= {name + "_tier": _tiered(SCENARIOS[name]) for name in TIERED}
# The same with handles: engines look nothing up, and who fetches the handles finds the rows.
SCENARIOS |= {f"{name}_names": _named(SCENARIOS[name + "_tier"]) for name in ("kv_files", "reset_files", "prefill_decode", "async_loads")}
