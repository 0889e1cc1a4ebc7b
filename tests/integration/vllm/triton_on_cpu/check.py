"""Compares each function of kernels.py with the kernel of an installed vLLM, which Triton interprets, on random batches.

  check.py FOLDER [ROUNDS]    FOLDER: of the package vllm; its kernels are read from their files, and vLLM is not imported

Exit status: 0 all are equal, and none is missing; 1 otherwise. A kernel with another text than the function was written
for is named: it would be interpreted.
"""
import ast
import importlib.util
import os
import pathlib
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "1"
import kernels
import numpy as np
import torch

FILES = ("block_table", "buffer_utils", "input_batch", "sample/gumbel", "sample/penalties")
REQUESTS, STATES, BLOCKS, SIZE, VOCABULARY = 5, 8, 12, 32, 96


def kernels_of(package, folder):
    """{name: interpreted kernel} of vLLM's files, without what else is in them."""
    found = {}
    header = "import torch\nimport triton\nimport triton.language as tl\n"
    for name in ("buffer_utils", *FILES):
        text = (pathlib.Path(package) / "v1/worker/gpu" / f"{name}.py").read_text()
        parts = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.decorator_list
                 or isinstance(node, ast.Assign) and "tl.constexpr" in ast.unparse(node)]
        lines = text.splitlines(True)
        first = lambda node: min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
        path = pathlib.Path(folder) / f"{name.replace('/', '_')}.py"
        path.write_text(header + "\n".join("".join(lines[first(node):node.end_lineno]) for node in parts))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        if "_load_ptr" in found:
            module._load_ptr = found["_load_ptr"]
        spec.loader.exec_module(module)
        found |= {key: value for key, value in vars(module).items() if key == "_load_ptr" or key in kernels.OWN}
    return found


class Batch:
    """Tensors of a random step."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng(seed)
        whole = lambda low, high, *shape, type=torch.int32: torch.from_numpy(random.integers(low, high, shape)).to(type)
        self.whole = whole
        self.states = torch.from_numpy(random.permutation(STATES)[:REQUESTS])
        lengths = random.integers(1, 40, REQUESTS)
        self.logits = random.integers(1, 4, REQUESTS)
        lengths = np.maximum(lengths, self.logits)
        sums = lambda of: torch.from_numpy(np.concatenate([[0], np.cumsum(of)])).int()
        self.starts, self.cu_logits = sums(lengths), sums(self.logits)
        self.tokens = int(lengths.sum())
        self.computed = whole(0, 120, STATES)
        self.prefill = whole(1, 160, STATES)
        self.prompt = torch.minimum(self.prefill, whole(1, 160, STATES))
        self.seq_lens = torch.zeros(STATES, dtype=torch.int32)
        self.seq_lens[:REQUESTS] = self.computed[self.states] + torch.from_numpy(lengths).int()
        self.all_tokens = whole(0, VOCABULARY, STATES, 400)
        self.pos = torch.zeros(512, dtype=torch.int64)
        for i in range(REQUESTS):
            self.pos[self.starts[i]:self.starts[i + 1]] = torch.arange(lengths[i]) + self.computed[self.states[i]]
        self.of_logit = torch.from_numpy(np.repeat(self.states.numpy(), self.logits))
        self.local = torch.from_numpy(np.concatenate([np.arange(n) for n in self.logits])).int()
        self.total = int(self.logits.sum())
        self.tables = [whole(0, 1000, STATES, BLOCKS) for _ in range(2)]
        self.inputs = [whole(0, 1000, STATES, BLOCKS) for _ in range(2)]

    def floats(self, *shape):
        return torch.from_numpy(self.random.standard_normal(shape).astype(np.float32))

    def pointers(self, tensors):
        return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def tables(b):
    """Launches of the block tables' kernels: (name, grid, arguments by name, tensors that are only known by their address)."""
    strides = torch.tensor([BLOCKS, BLOCKS])
    slots = dict(
        max_num_tokens=512, idx_mapping=b.states, query_start_loc=b.starts, pos=b.pos, block_table_ptrs=b.pointers(b.tables),
        block_table_strides=strides, block_sizes=torch.tensor([SIZE, SIZE // 2], dtype=torch.int32),
        kernel_block_sizes=torch.tensor([SIZE, SIZE // 2], dtype=torch.int32),
        slot_mapping_enabled=torch.tensor([True, bool(b.random.integers(2))]), dcp_sharded=torch.tensor([True, True]),
        slot_mappings_ptr=b.whole(0, 9, 2, 512, type=torch.int64), slot_mappings_stride=512, cp_rank=0, CP_SIZE=1, CP_INTERLEAVE=1,
        PAD_ID=-1, TRITON_BLOCK_SIZE=64)
    yield "_compute_slot_mappings_kernel", (2, REQUESTS + 1), slots, b.tables
    yield "_gather_block_tables_kernel", (2, REQUESTS + 2), dict(
        batch_idx_to_req_idx=b.states, src_block_table_ptrs=b.pointers(b.tables), dst_block_table_ptrs=b.pointers(b.inputs),
        block_table_strides=strides, num_blocks_ptr=b.whole(0, BLOCKS, 2, STATES), num_blocks_stride=STATES, num_reqs=REQUESTS,
        BLOCK_SIZE=8, num_computed_tokens_ptr=b.computed, sliding_window_reach_ptr=torch.zeros(2, dtype=torch.int32),
        block_sizes_ptr=slots["block_sizes"], MASK_SLIDING_WINDOW=False), b.inputs
    counts = b.random.integers(1, 6, REQUESTS)
    written = dict(
        write_indices_ptr=b.states.int(), write_starts_ptr=b.whole(0, BLOCKS - 6, REQUESTS),
        write_contents_ptr=b.whole(0, 1000, int(counts.sum())), write_cu_lens_ptr=torch.from_numpy(np.cumsum(counts)).int(),
        BLOCK_SIZE=4)
    yield "_apply_write_kernel", (REQUESTS, 2), written | dict(
        output_ptr=b.tables[0], output_stride=BLOCKS, write_group_ids_ptr=None, MULTI_GROUP=False), []
    yield "_apply_write_kernel", (REQUESTS, 2), written | dict(
        output_ptr=b.pointers(b.inputs), output_stride=strides, write_group_ids_ptr=b.whole(0, 2, REQUESTS),
        MULTI_GROUP=True), b.inputs


def inputs(b):
    """Of the batch's inputs and what is known of its requests."""
    yield "_prepare_prefill_inputs_kernel", (REQUESTS,), dict(
        input_ids_ptr=torch.zeros(512, dtype=torch.int32), next_prefill_tokens_ptr=b.whole(0, 9, 3, STATES),
        next_prefill_tokens_stride=STATES, num_lookahead=3, idx_mapping_ptr=b.states, query_start_loc_ptr=b.starts,
        all_token_ids_ptr=b.all_tokens, all_token_ids_stride=400, prefill_lens_ptr=b.prefill, num_computed_tokens_ptr=b.computed,
        BLOCK_SIZE=16, LOOKAHEAD_BLOCK=4), []
    yield "_prepare_pos_seq_lens_kernel", (REQUESTS + 1,), dict(
        pos_ptr=torch.zeros(512, dtype=torch.int64), seq_lens_ptr=b.whole(0, 9, STATES), idx_mapping_ptr=b.states,
        query_start_loc_ptr=b.starts, num_computed_tokens_ptr=b.computed, max_num_reqs=STATES, BLOCK_SIZE=16), []
    yield "_combine_sampled_and_draft_tokens_kernel", (REQUESTS,), dict(
        input_ids_ptr=b.whole(0, 9, 512), idx_mapping_ptr=b.states,
        last_sampled_tokens_ptr=b.whole(0, 90, STATES, 1, type=torch.int64), query_start_loc_ptr=b.starts, seq_lens_ptr=b.seq_lens,
        prefill_len_ptr=b.prefill, draft_tokens_ptr=b.whole(0, 90, STATES, 3, type=torch.int64), draft_tokens_stride=3,
        cu_num_logits_ptr=b.cu_logits, logits_indices_ptr=torch.zeros(b.total, dtype=torch.int64), BLOCK_SIZE=4,
        NUM_NEW_SAMPLED_TOKENS=1), []
    sampled = torch.from_numpy(b.random.integers(0, b.logits + 1)).int()
    yield "_get_num_sampled_and_rejected_kernel", (REQUESTS,), dict(
        num_sampled_ptr=sampled, num_rejected_ptr=torch.zeros(REQUESTS, dtype=torch.int32), seq_lens_ptr=b.seq_lens,
        cu_num_logits_ptr=b.cu_logits, idx_mapping_ptr=b.states, prefill_len_ptr=b.prefill), []
    update = dict(
        idx_mapping_ptr=b.states, num_computed_tokens_ptr=b.computed,
        last_sampled_tokens_ptr=b.whole(0, 90, STATES, 1, type=torch.int64), output_bin_counts_stride=VOCABULARY,
        sampled_tokens_ptr=b.whole(0, VOCABULARY, REQUESTS, 4, type=torch.int64), sampled_tokens_stride=4, num_sampled_ptr=sampled,
        num_rejected_ptr=torch.from_numpy(b.logits).int() - sampled, all_token_ids_ptr=b.all_tokens, all_token_ids_stride=400,
        total_len_ptr=b.whole(1, 300, STATES), draft_tokens_ptr=b.whole(0, 90, REQUESTS, 3, type=torch.int64),
        draft_tokens_out_ptr=b.whole(0, 90, STATES, 3, type=torch.int64), num_draft_tokens=3)
    yield "_post_update_kernel", (REQUESTS,), update | dict(
        query_start_loc_ptr=b.starts, output_bin_counts_ptr=b.whole(0, 9, STATES, VOCABULARY)), []
    yield "_post_update_kernel", (REQUESTS,), update | dict(query_start_loc_ptr=None, output_bin_counts_ptr=None), []
    yield "_post_update_num_computed_tokens_kernel", (REQUESTS,), dict(
        idx_mapping_ptr=b.states, num_computed_tokens_ptr=b.computed, query_start_loc_ptr=b.starts), []
    yield "_expand_idx_mapping_kernel", (REQUESTS,), dict(
        idx_mapping_ptr=b.states, expanded_idx_mapping_ptr=torch.zeros(b.total, dtype=torch.int64),
        expanded_local_pos_ptr=torch.zeros(b.total, dtype=torch.int32), cu_num_logits_ptr=b.cu_logits, BLOCK_SIZE=4), []


def sampling(b):
    chosen = lambda *values: torch.tensor(b.random.choice(values, STATES), dtype=torch.float32)
    heat = chosen(0.0, 1.0, 0.6)
    yield "_temperature_kernel", (b.total, 1), dict(
        logits_ptr=b.floats(b.total, VOCABULARY), logits_stride=VOCABULARY, expanded_idx_mapping_ptr=b.of_logit, temperature_ptr=heat,
        vocab_size=VOCABULARY, BLOCK_SIZE=128), []
    for drafting, again in ((False, False), (True, True)):
        yield "_gumbel_sample_kernel", (b.total, 2), dict(
            local_argmax_ptr=torch.zeros(b.total, 2, dtype=torch.int64), local_argmax_stride=2, local_max_ptr=torch.zeros(b.total, 2),
            local_max_stride=2, logits_cache_ptr=None, logits_cache_stride_0=0, logits_cache_stride_1=0, logits_cache_col_ptr=None,
            logits_cache_source_ptr=None, logits_cache_source_stride=0, logits_ptr=b.floats(b.total, VOCABULARY),
            logits_stride=VOCABULARY, expanded_idx_mapping_ptr=b.of_logit,
            seeds_ptr=b.whole(-2 ** 62, 2 ** 62, STATES, type=torch.int64), pos_ptr=b.whole(0, 900, b.total, type=torch.int64),
            temp_ptr=heat, vocab_size=VOCABULARY, BLOCK_SIZE=64, IS_DRAFTING=drafting, APPLY_TEMPERATURE=again, USE_FP64=False,
            PER_TOKEN_COL=False), []
    counts, mask = b.whole(0, 2, STATES, VOCABULARY), b.whole(-2**31, 2**31, STATES, VOCABULARY // 32)
    yield "_penalties_kernel", (b.total, 1), dict(
        logits_ptr=b.floats(b.total, VOCABULARY), logits_stride=VOCABULARY, expanded_idx_mapping_ptr=b.of_logit,
        token_ids_ptr=b.whole(0, VOCABULARY, b.total), expanded_local_pos_ptr=b.local, repetition_penalty_ptr=chosen(1.0, 1.2),
        frequency_penalty_ptr=chosen(0.0, 0.3), presence_penalty_ptr=chosen(0.0, 0.5), prompt_bin_mask_ptr=mask,
        prompt_bin_mask_stride=VOCABULARY // 32, output_bin_counts_ptr=counts, output_bin_counts_stride=VOCABULARY,
        vocab_size=VOCABULARY, BLOCK_SIZE=128), []
    yield "_bincount_kernel", (REQUESTS, 3), dict(
        expanded_idx_mapping_ptr=b.states, all_token_ids_ptr=b.all_tokens, all_token_ids_stride=400, prompt_len_ptr=b.prompt,
        prefill_len_ptr=b.prefill, prompt_bin_mask_ptr=mask, prompt_bin_mask_stride=VOCABULARY // 32, output_bin_counts_ptr=counts,
        output_bin_counts_stride=VOCABULARY, BLOCK_SIZE=64), []


def compare(kernel, grid, given, hidden):
    """The tensors that the interpreter and the function leave different."""
    given = {name: value for name, value in given.items() if name in kernel.arg_names}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)} | {f"table {i}": one for i,
    one in enumerate(hidden)}
    before = {name: value.clone() for name, value in tensors.items()}
    kernel[grid](**given)
    right = {name: value.clone() for name, value in tensors.items()}
    for name, value in tensors.items():
        value.copy_(before[name])
    if not kernels.run_own(kernels.OWN[kernel.__name__][1], kernel.arg_names, grid, (), given):
        return ["it was left to the interpreter"]
    found = [name for name, value in tensors.items() if not np.allclose(value.numpy(), right[name].numpy(), rtol=1e-5, atol=1e-6)]
    for name, value in tensors.items():
        value.copy_(before[name])
    return found


def main():
    failed, compared = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        found = kernels_of(sys.argv[1], folder)
        for name, (digests, _) in kernels.OWN.items():
            if name not in found or kernels.digest(found[name].fn) not in digests:
                print(f"{name} has another text: {kernels.digest(found[name].fn) if name in found else 'it is not there'}")
        for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
            for make in (tables, inputs, sampling):
                for name, grid, given, hidden in make(Batch(seed)):
                    compared.add(name)
                    if different := compare(found[name], grid, given, hidden):
                        failed.setdefault(name, (seed, different))
    for name, (seed, different) in failed.items():
        print(f"{name}, batch {seed}: {', '.join(different)}")
    print(f"{len(compared)} kernels of {len(kernels.OWN)} compared, {len(failed)} different")
    return int(bool(failed) or len(compared) < len(kernels.OWN))


if __name__ == "__main__":
    sys.exit(main())
