"""What is run: a scenario is options of an SGLang engine, a workload, and what it has to reach to prove something."""
import dataclasses

COMMON = dict(skip_tokenizer_init=True, device="cpu", dtype="float32", attention_backend="torch_native", sampling_backend="pytorch",
              disable_cuda_graph=True, max_total_tokens=2048, max_running_requests=12, chunked_prefill_size=64, log_level="warning",
              enable_return_routed_experts=True, mem_fraction_static=0.5)
HICACHE = dict(enable_hierarchical_cache=True, hicache_ratio=8.0, hicache_io_backend="direct", hicache_mem_layout="layer_first",
               hicache_write_policy="write_through")
EXTERNAL = "external KV"


@dataclasses.dataclass(frozen=True)
class Scenario:
    options: dict
    model: str = "qwen3_moe"
    workload: str = "turns"
    reaches: tuple = ("cached",)  # figures that must not be 0
    environment: dict = dataclasses.field(default_factory=dict)
    reasons: tuple = ()           # of rows that may be missing
    own_is_wrong: bool = False    # SGLang's own table is, in 0.5.23


def _all():
    page16 = dict(page_size=16)
    small, small16 = dict(max_total_tokens=520), dict(max_total_tokens=528)
    retract = dict(schedule_conservativeness=0.01)
    forced = {"SGLANG_TEST_RETRACT": "1"}
    hicache, hicache16 = HICACHE | dict(max_total_tokens=600), HICACHE | dict(max_total_tokens=608) | page16
    loads = ("cached", "loaded")
    storage = dict(hicache_ratio=1.2, hicache_storage_backend="file", hicache_storage_prefetch_policy="wait_complete",
                   hicache_storage_backend_extra_config='{"prefetch_threshold": 16}')
    return {
        "plain": Scenario(dict(disable_overlap_schedule=True)),
        "overlap": Scenario({}),
        "no_cache": Scenario(dict(disable_radix_cache=True), reaches=()),
        "page16": Scenario(page16),
        "page16_plain": Scenario(page16 | dict(disable_overlap_schedule=True)),
        "small_pool": Scenario(small),
        "retract": Scenario(small | retract, environment=forced, reaches=("cached", "retracted")),
        "hicache": Scenario(hicache, reaches=loads, own_is_wrong=True),
        "hicache16": Scenario(hicache16, reaches=loads, own_is_wrong=True),
        "retract16": Scenario(small16 | retract | page16, environment=forced, reaches=("cached", "retracted")),
        "samples": Scenario(page16, workload="samples"),
        "aborts": Scenario(small, workload="aborts", reaches=("cached", "aborted")),
        "aborts_hicache": Scenario(hicache, workload="aborts", reaches=loads + ("aborted",), own_is_wrong=True),
        "weights": Scenario(page16, workload="weights", reaches=("cached", "updates", "rows_old_version")),
        "flush": Scenario(page16, workload="flush", reaches=("cached", "flushes")),
        "flush_hicache": Scenario(hicache16, workload="flush", reaches=loads + ("flushes",), own_is_wrong=True),
        "write_back": Scenario(hicache16 | dict(hicache_write_policy="write_back"), reaches=loads, own_is_wrong=True),
        "small_host": Scenario(hicache16 | dict(hicache_ratio=1.2), reaches=loads, own_is_wrong=True),
        "storage": Scenario(hicache16 | storage, reaches=loads + ("stored",), reasons=(EXTERNAL,), own_is_wrong=True),
        "storage_flush": Scenario(hicache16 | storage, workload="flush", reaches=("cached", "stored", "flushes"), reasons=(EXTERNAL,), own_is_wrong=True),
        "mixtral": Scenario(hicache16, model="mixtral", reaches=loads, own_is_wrong=True),
        "dense_layers": Scenario(hicache16, model="dense_layers", reaches=loads, own_is_wrong=True),
        "deepseek": Scenario(page16, model="deepseek_v3"),
    }


SCENARIOS = _all()
