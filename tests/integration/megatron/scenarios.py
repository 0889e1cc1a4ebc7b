"""The scenarios: which engine does what, and what has to happen for the run to count."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Spec:
    """An engine and its requests. Sizes in tokens, pools in blocks."""
    cache: str = "lru"        # prefix cache: lru, ref_zero, off
    blocks: int = 96          # of the pool, the dummy block included
    block: int = 16
    running: int = 16         # requests at once
    tokens: int = 512         # of a forward
    paused: int = 0           # blocks for paused requests
    chunked: bool = False     # chunked prefill
    drafts: int = 0           # of speculative decoding
    suspend: str = ""         # every 25 to 55 steps: PERSIST, OFFLOAD, RECOMPUTE
    new_weights: bool = False # every 40 to 80 steps
    resets: bool = False      # the engine, every 60 to 120 steps; weights begin again at 0
    requests: int = 200
    group: int = 8            # requests with one prompt: half as many to half as many again
    prompt: int = 72          # at least; groups differ by up to 2 blocks
    output: int = 40          # mean; exponential
    ends: bool = False        # sequences end by themselves, too
    stop_words: bool = False  # some end at a pair of tokens
    longer: bool = False      # groups have whole blocks, and one prompt in four goes on after them
    layers: int = 4
    top_k: int = 2
    experts: int = 64
    mtp_router: bool = False  # a router of an MTP layer, that does not run in the forward
    mtp_first: bool = False   # made before the decoder's
    noisy: bool = False       # a token has other routes in another forward, in its last layer
    static_buffers: bool = False  # routers record to the buffers that CUDA graphs write to, in steps that fit one
    idle: bool = False        # every 60 to 120 steps all requests end; dummy forwards, and CUDA graphs are captured
    aborts: float = 0.04      # in a step: a request that waits is given up, and its number comes again with other tokens
    seed: int = 2             # of prompts, lengths, groups, arrivals, aborts, and the steps of what is above


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    spec: dict
    promises: tuple = ()      # counters that have to be above 0
    reader_ms: int = 0        # rows are read by another thread that takes so long for a request
    store: dict = dataclasses.field(default_factory=dict)  # further arguments of the store
    versions: tuple = ("0.18.2", "0.19.2", "main")

    def options(self, version):
        """Those of Spec. The LRU cache of 0.18.2 evicts parents before children, and then fails by itself (KeyError in
        _find_kv_match_count): there the scenarios in which it evicts have the other policy."""
        evicts = self.program == "engine.py" and self.spec.get("blocks", 96) < 400 and self.spec.get("cache", "lru") == "lru"
        return self.spec | ({"cache": "ref_zero"} if version == "0.18.2" and evicts else {})

    peer: bool = True         # whether Megatron's own store runs at all
    program: str = "engine.py"  # or real_model.py, which has its own few options
    may_be: tuple = ()        # counters of the store that need not be 0
    context_only: bool = False  # attach(context), not attach(engine)
    tier: dict | None = None  # arguments of a waymark.Tier
    # All requests come twice: "pages": the rows of the first time are evicted meanwhile; "attach": another capture has them;
    # "process": a process before this one had the same requests and was captured, and this one is captured the second time.
    twice: str = ""
    may_miss: tuple = ()      # reasons of missing rows


FEW = dict(blocks=60, paused=12, running=8)
EVICTS = ("evictions", "same_step_reuses")


def _all():
    make = Scenario
    return [
        make("lru", {}, EVICTS + ("hits",), versions=("0.19.2", "main")),
        make("ref_zero", dict(cache="ref_zero"), EVICTS + ("hits",)),
        make("off", dict(cache="off", blocks=128), EVICTS),
        # LRU with chunked prefill fails by itself in 0.19.2 where it evicts ("parent graph is not a forest").
        make("chunked", dict(cache="ref_zero", chunked=True, tokens=64), EVICTS + ("hits", "chunks", "aborts")),
        make("chunked_lru", dict(chunked=True, tokens=64, blocks=2000), ("hits", "chunks")),
        # 0.18.2 fails by itself: "active_request_count == 0 with no hidden chunked prefill".
        make("paused", FEW, EVICTS + ("pauses",), versions=("0.19.2", "main")),
        make("roomy", dict(blocks=2000, requests=256), ("same_step_reuses", "hits")),
        # A full hit computes its last block again. Requests that run keep the rows that their tokens were sampled with.
        make("noisy", dict(blocks=2000, requests=256, noisy=True), ("same_step_reuses", "hits"), may_be=("audit_disagreements",)),
        # Pages for what runs, less than blocks: those of released blocks are taken again.
        make("few_pages", dict(blocks=400), ("same_step_reuses", "hits"), store={"num_pages": 200}),
        make("context_only", dict(blocks=2000, requests=256), ("same_step_reuses", "hits"), context_only=True),
        make("roomy_64", dict(blocks=2000, requests=256, running=64), ("same_step_reuses", "hits")),
        make("big_blocks", dict(blocks=400, block=64, running=64, tokens=2048, prompt=128, output=150), ("same_step_reuses", "hits")),
        make("drafts", dict(drafts=2), EVICTS + ("hits", "drafts_accepted", "drafts_rejected")),
        make("drafts_chunked", dict(cache="ref_zero", drafts=2, chunked=True, tokens=128), EVICTS + ("chunks", "drafts_accepted")),
        make("drafts_mtp", dict(drafts=1, mtp_router=True, mtp_first=True), EVICTS + ("drafts_accepted",), peer=False),
        make("mtp_router", dict(mtp_router=True), EVICTS, peer=False),
        make("static_buffers", dict(static_buffers=True), EVICTS + ("hits",)),
        make("static_buffers_mtp", dict(static_buffers=True, mtp_router=True, mtp_first=True), EVICTS, peer=False),
        # From the first such moment on they are captured at each resume, too, before requests begin again.
        make("graphs", dict(cache="ref_zero", static_buffers=True, idle=True, suspend="RECOMPUTE", new_weights=True),
             EVICTS + ("idle", "captures", "replays", "recomputed", "rows_of_older_weights")),
        make("ends", dict(ends=True, stop_words=True, output=120), ("hits", "stop_words")),
        make("suspend", dict(suspend="PERSIST"), EVICTS + ("suspends",)),
        make("suspend_offload", dict(suspend="OFFLOAD"), EVICTS + ("suspends",)),
        make("suspend_recompute", dict(suspend="RECOMPUTE"), EVICTS + ("suspends", "recomputed")),
        # A request that has outgrown a forward fails when it is resumed, and its number comes again with other tokens.
        make("outgrown", dict(suspend="RECOMPUTE", tokens=128, blocks=2000), ("hits", "suspends", "failed")),
        make("resets", dict(resets=True, new_weights=True), EVICTS + ("resets", "new_weights", "rows_of_older_weights", "aborts")),
        make("resets_context", dict(resets=True), EVICTS + ("resets",), context_only=True),
        make("new_weights", dict(new_weights=True), EVICTS + ("new_weights", "rows_of_older_weights")),
        make("older_hits", dict(new_weights=True, longer=True, requests=400, group=400, prompt=80, blocks=400), ("hits", "new_weights", "rows_of_older_weights")),
        make("new_weights_suspend", dict(new_weights=True, suspend="RECOMPUTE"), EVICTS + ("new_weights", "rows_of_older_weights", "recomputed")),
        make("real_model", {}, ("hits",), program="real_model.py"),
        make("real_model_evicts", dict(blocks=20, cache="ref_zero"), ("hits", "evictions"), program="real_model.py"),
        make("real_model_chunked", dict(chunked=True, cache="ref_zero"), ("hits",), program="real_model.py"),
        make("real_model_suspend", dict(suspend="RECOMPUTE"), ("hits", "suspends"), program="real_model.py"),
        make("attaching", {}, ("refused", "missing", "compiled"), program="attaching.py", peer=False),
        # KV is there, and its rows are not. Pages for what runs, and not for what is cached:
        make("tier_few_pages", dict(blocks=2000), ("hits", "rows_filled"), store={"num_pages": 160}, tier={"lost": True},
             twice="pages", peer=False),
        # KV of two versions of the weights, or behind KV of another, is not looked up.
        make("tier_new_weights", dict(blocks=2000, new_weights=True, longer=True), ("hits", "new_weights", "rows_filled", "rows_of_older_weights"),
             store={"num_pages": 160}, tier={"lost": True}, twice="pages", may_miss=("capacity",), peer=False),
        make("tier_chunked", dict(blocks=2000, chunked=True, tokens=64, new_weights=True), ("hits", "chunks", "rows_filled"),
             store={"num_pages": 160}, tier={"lost": True}, twice="pages", may_miss=("capacity",), peer=False),
        make("tier_attach", dict(blocks=2000), ("hits", "rows_filled"), tier={}, twice="attach", peer=False),
        make("tier_offload", dict(blocks=2000, suspend="OFFLOAD"), ("hits", "suspends", "rows_filled"), tier={}, twice="attach", peer=False),
        make("tier_process", dict(blocks=2000), ("hits", "rows_filled"), tier={}, twice="process", peer=False),
        make("slow_reader", {}, EVICTS + ("hits",), reader_ms=20),
        make("slow_reader_off", dict(cache="off", blocks=128), EVICTS, reader_ms=20),
    ]


SCENARIOS = {scenario.name: scenario for scenario in _all()}
