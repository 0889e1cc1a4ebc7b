"""A complete engine on Waymark: paged KV, a prefix cache, chunked prefill, decoding.

The model is a hash of the tokens so far, so that every row can be computed again without a cache.
Raises if a row is wrong or missing. docs/integrating.md explains it.
"""
import numpy as np
import waymark

L, K, E, BLOCK, BLOCKS, CHUNK, PROMPT, TOKENS = 4, 2, 64, 16, 24, 24, 48, 75
HASH = np.uint64(0x9E3779B97F4A7C15)


def route(prefix):
    """[n] hashes of all tokens so far -> [n, L, K] experts, K distinct ones per layer."""
    h = (prefix[:, None, None] * HASH) ^ (np.arange(L, dtype=np.uint64)[:, None] * HASH >> 9)
    return ((h + np.arange(K, dtype=np.uint64) * (h >> 32 | 1)) % E).astype(np.int16)


cap = waymark.Capture(num_layers=L, top_k=K, num_experts=E, num_blocks=BLOCKS, page_tokens=BLOCK)
users, key_of, used = [0] * BLOCKS, [None] * BLOCKS, [0] * BLOCKS  # the block pool
step = hits = 0
tokens_of, finished = {}, {}
for request in range(200):
    # Groups of eight share most of a prompt.
    tokens = [request // 8 if t < PROMPT - 8 else request * 1000 + t for t in range(TOKENS)]
    prefix = np.array([hash(tuple(tokens[:t + 1])) for t in range(TOKENS)]).astype(np.uint64)
    keys = [int(h) for h in prefix[BLOCK - 1::BLOCK]]  # of full blocks: the hash of the prefix

    blocks = []
    for key in keys[:(PROMPT - 1) // BLOCK]:  # a prefix hit: one user more of the block
        if key not in key_of:
            break
        blocks.append(key_of.index(key))
        users[blocks[-1]] += 1
    cap.retain(blocks)
    done = len(blocks) * BLOCK
    hits += done

    while done < TOKENS - 1:
        step += 1
        end = done + min(CHUNK, max(PROMPT - done, 1))
        while len(blocks) * BLOCK < end:  # allocate the least recently used free block
            blocks.append(min((b for b in range(BLOCKS) if not users[b]), key=used.__getitem__))
            users[blocks[-1]], key_of[blocks[-1]] = 1, None
            cap.bind(blocks[-1])
        for i in range(done // BLOCK, end // BLOCK):
            key_of[blocks[i]] = keys[i]
            cap.seal(blocks[i], keys[i])  # this step fills it
        for block in blocks:
            used[block] = step
        with cap.step(step, 1, waymark.slots_of(blocks, BLOCK, done, end)) as told:
            told.ids = route(prefix[done:end])  # the forward; if it throws, its rows are lost
        cap.wait_idle(10)  # because this forward takes no time: waits for the library's threads
        done = end

    # Before the blocks are released; a thread of the library reads.
    tokens_of[request], finished[request] = prefix[:done], cap.take(blocks, done)
    cap.release(blocks)
    for block in blocks:
        users[block] -= 1

rows = {request: taken.result(timeout=10) for request, taken in finished.items()}  # on any thread
report = waymark.verify(rows, lambda request: route(tokens_of[request]))  # docs/proving.md
print(f"{report}\n{hits} rows from prefix hits")
report.check()
assert not report.missing
