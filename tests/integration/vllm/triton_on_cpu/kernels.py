"""In numpy, what the kernels of vLLM's step path do: the interpreter takes a second for a step of sixteen requests.

OWN: {name of a kernel: (digests of the texts that the function was written for, function)}. A kernel with another text is
interpreted, and so is one whose function returns NotImplemented. A function gets the number of programs in each
direction and the kernel's arguments by name, with arrays in place of tensors. What a kernel calls is not in its digest:
check.py notices if that has changed.
WAYMARK_TEST_KERNELS=interpret leaves all of it to the interpreter; =compare runs both and compares what they wrote.
"""
import atexit
import collections
import ctypes
import functools
import hashlib
import inspect
import os
import types

import numpy as np

MODE = os.environ.get("WAYMARK_TEST_KERNELS", "own")


def table(addresses, group, rows, columns):
    """The int32 table of a group, of which only the address is known."""
    memory = (ctypes.c_int32 * int(rows * columns)).from_address(int(addresses[group]))
    return np.frombuffer(memory, np.int32).reshape(int(rows), int(columns))


def compute_slot_mappings(programs, a):
    if a.CP_SIZE != 1:
        return NotImplemented
    requests = programs[1] - 1
    starts = a.query_start_loc[:requests + 1]
    first, end = int(starts[0]), int(starts[-1])
    states = np.repeat(a.idx_mapping[:requests], np.diff(starts)).astype(np.int64)
    positions = a.pos[first:end]
    for group in range(programs[0]):
        slots = a.slot_mappings_ptr[group]
        slots[end:a.max_num_tokens] = a.PAD_ID
        slots[first:end] = a.PAD_ID
        real = states >= 0
        if a.slot_mapping_enabled[group] and real.any():
            size = int(getattr(a, "kernel_block_sizes", a.block_sizes)[group])
            blocks = table(a.block_table_ptrs, group, states.max() + 1, a.block_table_strides[group])
            at = positions[real]
            slots[first:end][real] = blocks[states[real], at // size].astype(np.int64) * size + at % size


def gather_block_tables(programs, a):
    for group in range(programs[0]):
        columns = a.block_table_strides[group]
        states = a.batch_idx_to_req_idx[:a.num_reqs]
        if (states < 0).any() or getattr(a, "MASK_SLIDING_WINDOW", False):
            return NotImplemented
        target = table(a.dst_block_table_ptrs, group, programs[1], columns)
        target[a.num_reqs:] = 0
        if a.num_reqs:
            source = table(a.src_block_table_ptrs, group, states.max() + 1, columns)
            for row, state in enumerate(states):
                count = a.num_blocks_ptr[group, state]
                target[row, :count] = source[state, :count]


def apply_write(programs, a):
    begin = 0
    for i in range(programs[0]):
        end, row, start = int(a.write_cu_lens_ptr[i]), int(a.write_indices_ptr[i]), int(a.write_starts_ptr[i])
        if a.MULTI_GROUP:
            group = int(a.write_group_ids_ptr[i])
            target = table(a.output_ptr, group, row + 1, a.output_stride[group])[row]
        else:
            target = a.output_ptr[row] if a.output_ptr.ndim > 1 else a.output_ptr[row:]
        target[start:start + end - begin] = a.write_contents_ptr[begin:end]
        begin = end


def prepare_prefill_inputs(programs, a):
    for i in range(programs[0]):
        state = a.idx_mapping_ptr[i]
        length, computed = int(a.prefill_lens_ptr[state]), int(a.num_computed_tokens_ptr[state])
        if computed >= length:
            continue
        first, end = a.query_start_loc_ptr[i:i + 2]
        tokens = a.all_token_ids_ptr[state]
        a.input_ids_ptr[first:end] = tokens[computed:computed + end - first]
        ahead = computed + int(end - first) + np.arange(a.num_lookahead)
        a.next_prefill_tokens_ptr[:a.num_lookahead, state] = np.where(ahead < length, tokens[np.minimum(ahead, length - 1)], 0)


def prepare_pos_seq_lens(programs, a):
    requests = programs[0] - 1
    starts = a.query_start_loc_ptr[:requests + 1]
    lengths = np.diff(starts)
    computed = a.num_computed_tokens_ptr[a.idx_mapping_ptr[:requests]]
    a.seq_lens_ptr[:requests] = computed + lengths
    a.seq_lens_ptr[requests:a.max_num_reqs] = 0
    first, end = starts[0], starts[-1]
    a.pos_ptr[first:end] = np.arange(first, end) - np.repeat(starts[:-1] - computed, lengths)


def combine_sampled_and_draft_tokens(programs, a):
    new = getattr(a, "NUM_NEW_SAMPLED_TOKENS", 1)
    for i in range(programs[0]):
        state, end = a.idx_mapping_ptr[i], int(a.query_start_loc_ptr[i + 1])
        first, last = a.cu_num_logits_ptr[i:i + 2].tolist()
        logits, drafts = last - first, last - first - new
        a.logits_indices_ptr[first:last] = np.arange(end - logits, end)
        length, prefill = int(a.seq_lens_ptr[i]), int(a.prefill_len_ptr[state])
        if length <= prefill:
            continue
        if new > 0 and length - logits >= prefill:
            a.input_ids_ptr[end - logits] = a.last_sampled_tokens_ptr[state].item()
        if drafts > 0:
            a.input_ids_ptr[end - drafts:end] = a.draft_tokens_ptr[state, :drafts]


def get_num_sampled_and_rejected(programs, a):
    count = programs[0]
    chunk = a.seq_lens_ptr[:count] < a.prefill_len_ptr[a.idx_mapping_ptr[:count]]
    sampled = np.where(chunk, 0, a.num_sampled_ptr[:count])
    a.num_sampled_ptr[:count] = sampled
    a.num_rejected_ptr[:count] = np.where(chunk, 0, np.diff(a.cu_num_logits_ptr[:count + 1]) - sampled)


def post_update(programs, a):
    for i in range(programs[0]):
        state = int(a.idx_mapping_ptr[i])
        if state < 0:
            continue
        if getattr(a, "draft_tokens_ptr", None) is not None:
            a.draft_tokens_out_ptr[state, :a.num_draft_tokens] = a.draft_tokens_ptr[i, :a.num_draft_tokens]
        count, length = int(a.num_sampled_ptr[i]), int(a.total_len_ptr[state])
        if count > 0:
            tokens = a.sampled_tokens_ptr[i, :count]
            a.last_sampled_tokens_ptr[state] = tokens[-1]
            a.total_len_ptr[state] = length + count
            a.all_token_ids_ptr[state, length:length + count] = tokens
            if a.output_bin_counts_ptr is not None:
                np.add.at(a.output_bin_counts_ptr[state], tokens, 1)
        computed = 0 if a.query_start_loc_ptr is None else int(a.query_start_loc_ptr[i + 1] - a.query_start_loc_ptr[i])
        a.num_computed_tokens_ptr[state] += computed - int(a.num_rejected_ptr[i])


def post_update_num_computed_tokens(programs, a):
    count = programs[0]
    a.num_computed_tokens_ptr[a.idx_mapping_ptr[:count]] += np.diff(a.query_start_loc_ptr[:count + 1])


def expand_idx_mapping(programs, a):
    for i in range(programs[0]):
        first, last = a.cu_num_logits_ptr[i:i + 2]
        a.expanded_idx_mapping_ptr[first:last] = a.idx_mapping_ptr[i]
        a.expanded_local_pos_ptr[first:last] = np.arange(last - first)


def temperature(programs, a):
    for i in range(programs[0]):
        value = a.temperature_ptr[a.expanded_idx_mapping_ptr[i]]
        if value not in (0.0, 1.0):
            a.logits_ptr[i, :a.vocab_size] /= value


def mixed(hash, key):
    """A round of MurmurHash3 with 32 bits."""
    key = key * np.uint32(0xCC9E2D51)
    key = (key << 15 | key >> 17) * np.uint32(0x1B873593)
    hash = hash ^ key
    return (hash << 13 | hash >> 19) * np.uint32(5) + np.uint32(0xE6546B64)


def gumbel_noise(seeds, positions, size):
    """float32 [rows, size]: minus the logarithm of minus the logarithm of 1 - u, where u comes from a hash."""
    hash = np.zeros((len(seeds), 1), np.uint32)
    for key in (seeds, seeds >> 32, positions):
        hash = mixed(hash, (key & 0xFFFFFFFF).astype(np.uint32)[:, None])
    hash = mixed(hash, np.arange(size, dtype=np.uint32)[None]) ^ np.uint32(16)
    hash = (hash ^ hash >> 16) * np.uint32(0x85EBCA6B)
    hash = (hash ^ hash >> 13) * np.uint32(0xC2B2AE35)
    hash = hash ^ hash >> 16
    high, low = (part.astype(np.float32) for part in (hash >> 16, hash & 0xFFFF))
    u = high * np.float32(2.0 ** -16) + (low + np.float32(0.5)) * np.float32(2.0 ** -32)
    series = np.full_like(u, 1 / 8)
    for divisor in range(7, 0, -1):
        series = np.float32(1 / divisor) + u * series
    log = np.where(u < 0.25, -u * series, np.log(np.maximum(1 - u, np.float32(2.0 ** -24))))
    return -np.log(-log)


def gumbel_sample(programs, a):
    if a.logits_cache_ptr is not None or a.USE_FP64:
        return NotImplemented
    rows = programs[0]
    states = a.expanded_idx_mapping_ptr[:rows]
    if (states < 0).any():
        return NotImplemented
    logits, temperatures = a.logits_ptr[:rows, :a.vocab_size].astype(np.float32), a.temp_ptr[states].astype(np.float32)
    random = np.flatnonzero(temperatures)
    if len(random):
        if a.APPLY_TEMPERATURE:
            logits[random] /= temperatures[random, None]
        positions = a.pos_ptr[random].astype(np.int64) + (1 << 30 if a.IS_DRAFTING else 0)
        logits[random] += gumbel_noise(a.seeds_ptr[states[random]].astype(np.int64), positions, a.vocab_size)
    for block in range(programs[1]):
        part = logits[:, block * a.BLOCK_SIZE:(block + 1) * a.BLOCK_SIZE]
        a.local_argmax_ptr[:rows, block] = part.argmax(1) + block * a.BLOCK_SIZE
        a.local_max_ptr[:rows, block] = part.max(1)


def penalties(programs, a):
    for i in range(programs[0]):
        state, size = a.expanded_idx_mapping_ptr[i], a.vocab_size
        repetition, frequency, presence = (of[state] for of in (a.repetition_penalty_ptr, a.frequency_penalty_ptr, a.presence_penalty_ptr))
        if repetition == 1 and frequency == 0 and presence == 0:
            continue
        logits, counts = a.logits_ptr[i, :size], a.output_bin_counts_ptr[state, :size].copy()
        drafts = int(a.expanded_local_pos_ptr[i])
        np.add.at(counts, a.token_ids_ptr[i - drafts + 1:i + 1], 1)
        if repetition != 1:
            in_prompt = np.unpackbits(a.prompt_bin_mask_ptr[state].view(np.uint8), bitorder="little")[:size].astype(bool)
            scale = np.where(in_prompt | (counts > 0), repetition, np.float32(1))
            logits *= np.where(logits > 0, 1 / scale, scale)
        logits -= frequency * counts.astype(np.float32)
        logits -= presence * (counts > 0).astype(np.float32)


def bincount(programs, a):
    for i in range(programs[0]):
        state = a.expanded_idx_mapping_ptr[i]
        prompt, prefill = int(a.prompt_len_ptr[state]), int(a.prefill_len_ptr[state])
        tokens, mask = a.all_token_ids_ptr[state], a.prompt_bin_mask_ptr[state]
        np.bitwise_or.at(mask, tokens[:prompt] // 32, (1 << (tokens[:prompt].astype(np.int64) % 32)).astype(np.uint32).view(mask.dtype))
        np.add.at(a.output_bin_counts_ptr[state], tokens[prompt:prefill], 1)


def digest(kernel):
    return hashlib.sha256(inspect.getsource(kernel).encode()).hexdigest()[:8]


OWN = {
    "_compute_slot_mappings_kernel": (("a20a277e", "5b535abb", "1a8515d8"), compute_slot_mappings),
    "_gather_block_tables_kernel": (("e9f87a67", "b6ec8913"), gather_block_tables),
    "_apply_write_kernel": (("8f46fe0c", "f491a448", "c264b0cd"), apply_write),
    "_prepare_prefill_inputs_kernel": (("96d1b0d0",), prepare_prefill_inputs),
    "_prepare_pos_seq_lens_kernel": (("33c07567",), prepare_pos_seq_lens),
    "_combine_sampled_and_draft_tokens_kernel": (("c02435e0",), combine_sampled_and_draft_tokens),
    "_get_num_sampled_and_rejected_kernel": (("17bfac5e",), get_num_sampled_and_rejected),
    "_post_update_kernel": (("1f8738a0", "829dedee"), post_update),
    "_post_update_num_computed_tokens_kernel": (("b2682244",), post_update_num_computed_tokens),
    "_expand_idx_mapping_kernel": (("7636f8d2",), expand_idx_mapping),
    "_penalties_kernel": (("dee31c4f",), penalties),
    "_bincount_kernel": (("cfb1d5f0",), bincount),
    "_temperature_kernel": (("47f8e146",), temperature),
    "_gumbel_sample_kernel": (("5099ce70",), gumbel_sample),
}
compared, different = collections.Counter(), collections.Counter()  # launches, by kernel, with =compare


def own_function(kernel):
    """The function of a kernel, or None."""
    digests, function = OWN.get(kernel.__name__, ((), None))
    return function if MODE != "interpret" and function and digest(kernel) in digests else None


def run_own(function, names, grid, args, more):
    """Whether the function did it."""
    given = dict(zip(names, args)) | {name: value for name, value in more.items() if name in names}
    try:
        arrays = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in given.items()}
    except TypeError:  # a type that numpy has not
        return False
    return function(grid, types.SimpleNamespace(**arrays)) is not NotImplemented


def run_both(name, function, names, grid, args, more, interpret):
    """Counts, and prints once, what the interpreter writes otherwise. It has the last word."""
    tensors = [value for value in (*args, *more.values()) if hasattr(value, "numpy")]
    before = [tensor.clone() for tensor in tensors]
    if run_own(function, names, grid, args, more):
        own = [tensor.clone() for tensor in tensors]
        for tensor, old in zip(tensors, before):
            tensor.copy_(old)
        interpret()
        compared[name] += 1
        same = [np.allclose(one.numpy(), tensor.numpy(), rtol=1e-5, atol=1e-6, equal_nan=True) for one, tensor in zip(own, tensors)]
        if not all(same):
            different[name] += 1
            if different[name] == 1:
                where = [i for i, one in enumerate(same) if not one]
                print(f"triton_on_cpu: {name} differs from its interpretation in tensors {where}", flush=True)
        return
    interpret()


def install(interpreted):
    """Into Triton's class of interpreted functions."""
    interpret, functions = interpreted.run, {}

    def run(self, *args, grid, warmup, **more):
        if self.fn not in functions:
            functions[self.fn] = own_function(self.fn)
        function = functions[self.fn]
        if function is None or not isinstance(grid, tuple):
            return interpret(self, *args, grid=grid, warmup=warmup, **more)
        interpretation = functools.partial(interpret, self, *args, grid=grid, warmup=warmup, **more)
        if MODE == "compare":
            run_both(self.fn.__name__, function, self.arg_names, grid, args, more, interpretation)
        elif not run_own(function, self.arg_names, grid, args, more):
            interpretation()

    interpreted.run = run
    if MODE == "compare":
        atexit.register(lambda: print(f"triton_on_cpu: compared {dict(compared)}, different {dict(different)}", flush=True))
