"""A KV connector that gives the KV of whole prompts to other requests, with that of the last block, which is not
full: as NIXL does from engine to engine, here in one process. And what it is put through."""
import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclasses.dataclass
class Metadata(KVConnectorMetadata):
    loads: list = dataclasses.field(default_factory=list)  # (name, first block, blocks)


class WholePrompts(KVConnectorBase_V1):
    """Both halves. A request whose parameters name another one loads what that one has computed."""

    layers = {}
    kv = {}  # by request: {layer: keys and values of its blocks}

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.tokens = vllm_config.cache_config.block_size
        self.next = Metadata()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        source = (request.kv_transfer_params or {}).get("from")
        return (max(request.num_tokens - 1 - num_computed_tokens, 0) if source in self.kv else 0), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            first = (request.num_tokens - 1 - num_external_tokens) // self.tokens
            last = -(-(request.num_tokens - 1) // self.tokens)
            self.next.loads.append((request.kv_transfer_params["from"], first, list(blocks.get_block_ids()[0])[first:last]))

    def build_connector_meta(self, scheduler_output):
        made, self.next = self.next, Metadata()
        return made

    def request_finished(self, request, block_ids):
        if "keep" not in (request.kv_transfer_params or {}):
            return False, None
        self.kv[request.request_id] = {name: cache[list(block_ids)].clone() for name, cache in self.layers.items()}
        return False, {"from": request.request_id}

    def register_kv_caches(self, kv_caches):
        self.layers.update(kv_caches)

    def start_load_kv(self, forward_context, **more):
        for source, first, blocks in self._get_connector_metadata().loads:
            for name, cache in self.layers.items():
                cache[blocks] = self.kv[source][name][first:first + len(blocks)]

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **more):
        pass

    def wait_for_save(self):
        pass


def tails(driver):
    """Prompts are computed, and computed on by other requests after the prefix cache was reset: with the parameters that
    the first ones returned, and with those of others, which must give nothing."""
    prompts = [driver.tokens(driver.between(35, 150)) for _ in range(max(driver.requests, 8))]
    of = {driver.add(prompt, 1, extra_args={"kv_transfer_params": {"keep": True}}): prompt for prompt in prompts}
    given = {output.request_id: output.kv_transfer_params for output in driver.run()}
    driver.counts["tails"] += sum("waymark_tail" in params for params in given.values())
    driver.counts["resets"] += bool(driver.engine.reset_prefix_cache())
    names = list(of)
    for name, other in zip(names, names[1:] + names[:1]):
        lied = driver.chance(0.2)
        params = given[name] | ({"waymark_tail": given[other].get("waymark_tail")} if lied else {})
        driver.counts["tails_of_others"] += lied
        driver.add(of[name], driver.between(4, 30), extra_args={"kv_transfer_params": params})
        if driver.chance(0.5):
            driver.run()
    driver.run()
