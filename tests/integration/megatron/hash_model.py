"""A model whose routes are a hash of the token prefix, so that every row is known: without Megatron, in numpy.

The hash of a prefix is the hash of the prefix before it and its last token. It chooses the experts of each layer and the
token that comes next. In the engine the hashes are the model's KV cache: a token reads that of the position before it
from its page, so that a page that is not what the engine takes it for gives other routes.
"""
import numpy as np

MASK = (1 << 64) - 1
VOCABULARY = 97
END = 0  # the token that ends a sequence


def mix(value):
    """splitmix64, of one integer."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def mix_all(values):
    """The same, of an array."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


FIRST = mix(1)


def extend(prefix_hash, token):
    """The hash of a prefix with one more token."""
    return mix(prefix_hash ^ (token + 1))


def next_token(prefix_hash, ends):
    """The token that follows. ends: whether sequences end by themselves, one in 150 tokens."""
    value = mix(prefix_hash ^ 0xABCD)
    if ends and value % 150 == 0:
        return END
    return 1 + (value >> 16) % (VOCABULARY - 1)


def prefix_hashes(tokens):
    """uint64 [tokens]."""
    found, running = np.empty(len(tokens), np.uint64), FIRST
    for index, token in enumerate(tokens):
        running = extend(running, int(token))
        found[index] = running
    return found


def routes(hashes, layers, top_k, experts, weights=0, noise=0):
    """int64 [len(hashes), layers, top_k], distinct in a row. weights: the version of the weights. noise: the last layer of
    a token has other routes in another forward, as real kernels' may."""
    hashes = np.asarray(hashes, np.uint64)
    salts = mix_all(np.arange(layers, dtype=np.uint64) + np.uint64(1000 * (weights + 1)))
    salts[-1] ^= np.uint64(mix(noise) if noise else 0)
    values = mix_all(hashes[:, None] ^ salts)
    first = values % np.uint64(experts)
    stride = np.uint64(1) + (values >> np.uint64(32)) % np.uint64(experts // top_k)
    return ((first[..., None] + stride[..., None] * np.arange(top_k, dtype=np.uint64)) % np.uint64(experts)).astype(np.int64)


class PagedHashes:
    """The KV cache: the hash of each position, in pages."""

    def __init__(self, blocks, block_tokens):
        self.pages = np.zeros((blocks, block_tokens), np.uint64)
        self.weights = np.zeros((blocks, block_tokens), np.int64)  # under which each was written

    def weights_of(self, table, rows):
        """Of the first rows of a request with this block table."""
        block_tokens = self.pages.shape[1]
        positions = np.arange(rows)
        return self.weights[table[positions // block_tokens], positions % block_tokens]

    def forward(self, tokens, positions, requests, blocks, offsets, tables, weights=0):
        """The hashes of a batch, which it writes. All int arrays [rows]; tables: the block table of each request."""
        found, running, block_tokens = np.empty(len(tokens), np.uint64), FIRST, self.pages.shape[1]
        for row, (token, position, request) in enumerate(zip(tokens.tolist(), positions.tolist(), requests.tolist())):
            if position == 0:
                running = FIRST
            elif row == 0 or requests[row - 1] != request or positions[row - 1] != position - 1:
                before = position - 1
                running = int(self.pages[tables[request, before // block_tokens], before % block_tokens])
            running = extend(running, token)
            found[row] = running
        self.pages[blocks, offsets] = found
        self.weights[blocks, offsets] = weights
        return found
