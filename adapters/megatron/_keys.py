"""A context with a tier, in which rows are found by keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .._tier import Tier
from ._attached import Attached
from ._finished import Part
from ._hooks import Function, logger


class Keys:
    """The keys of a context's blocks. The engine's thread.

    A key is SHA-256 of all tokens up to the end of the block. Megatron's own hash is 63 bits of
    that, for which prompts can be made that collide. A block has a key only if its KV and all KV
    before it are of one version of the weights: Megatron's prefix cache outlives the weights, and a
    tier has the rows of passes under one version."""

    def __init__(self, block_tokens: int, version: int, earlier: Iterable[int]) -> None:
        """earlier: blocks whose KV was computed before, with the weights of `version`."""
        self._block_tokens = block_tokens
        self._version: int | None = version  # None: a number that other weights may have had
        self._numbers = {version}
        self._earlier = set(earlier)
        self._keys: dict[int, bytes] = {}
        # In force when a block was allocated.
        self._versions: dict[int, int | None] = dict.fromkeys(self._earlier, version)
        self._registered: dict[int, None] = {}

    def change_weights(self, version: int) -> bool:
        """Steps from now on run under weights `version`. False: it has no name of its own."""
        new = version not in self._numbers
        self._numbers.add(version)
        self._version = version if new else None
        return new

    def allocate(self, blocks: Iterable[int]) -> None:
        """Blocks begin a new life."""
        for block in blocks:
            self._keys.pop(block, None)
            self._registered.pop(block, None)
            self._earlier.discard(block)
            self._versions[block] = self._version

    def register(self, blocks: Iterable[int]) -> None:
        """The next step fills these blocks of a request that is being admitted."""
        self._registered.update(dict.fromkeys(blocks))

    def admit(self, prompt: Any, table: Sequence[int]) -> None:
        """A request was admitted, or its next chunk: its full blocks get keys."""
        tokens: Any = None
        before, version = bytes(32), self._version
        for index, block in enumerate(table):
            key, own = self._keys.get(block), self._versions.get(block)
            if key is None:
                filled = block in self._registered and own == self._version
                pure = own is not None and (not index or own == version)
                if not pure or not (filled or block in self._earlier):
                    return
                if tokens is None:
                    host = prompt.cpu() if hasattr(prompt, "cpu") else prompt
                    tokens = np.asarray(host, np.int64)
                end = (index + 1) * self._block_tokens
                content = tokens[end - self._block_tokens : end].tobytes()
                key = self._keys[block] = hashlib.sha256(before + content).digest()
            before, version = key, own

    def write(self, blocks: Iterable[int]) -> None:
        """A step writes KV of prompts into blocks: if they began with other weights, it is of
        two."""
        for block in blocks:
            if self._versions.get(block) != self._version:
                self._keys.pop(block, None)

    def seals(self) -> tuple[list[int], list[bytes | None]]:
        """What is full after the step that is told next."""
        blocks = list(self._registered)
        self._registered.clear()
        return blocks, self.of(blocks)

    def of(self, blocks: Iterable[int]) -> list[bytes | None]:
        """None: not looked up."""
        return [self._keys.get(block) for block in blocks]

    def forget_earlier(self) -> None:
        """The weights of these blocks are not known any more."""
        for block in self._earlier:
            self._keys.pop(block, None)
        self._earlier.clear()


class Keyed(Attached):
    """An Attached with a tier: what the arguments of attach() are."""

    def __init__(
        self,
        tier: Tier,
        weights: Callable[[int], str] | None,
        same_weights: bool,
        context: Any,
        *arguments: Any,
        store: dict[str, Any],
    ) -> None:
        self._weights = weights
        cached = getattr(context.kv_block_allocator, "kv_hash_to_block_id", {})
        self._cached = [int(block) for block in cached.values()] if same_weights else []
        super().__init__(context, *arguments, store={**store, "tier": tier})

    def _take_over(self) -> None:
        super()._take_over()
        table = self._context.request_to_kv_block_ids.numpy()
        unused = np.setdiff1d(np.array(self._cached, np.int32), table)
        if len(unused):
            self.store.bind(unused)
            self.store.release(unused)
        self._keys = Keys(self._context.block_size_tokens, self._version, self._cached)
        self._name_weights()

    def _name_weights(self) -> None:
        if self._weights is None:
            return
        try:
            self.store.name_weights(self._version, self._weights(self._version))
        except Exception as error:  # without a name their rows are for this process alone
            logger.error("waymark: weights failed: %s", error, exc_info=error)

    def _allocate(self, call: Function) -> Any:
        blocks = super()._allocate(call)
        if blocks is not None:
            self._guarded(lambda: self._keys.allocate(blocks.tolist()))
        return blocks

    def _register(self, block_ids: Any, block_hashes: Any) -> None:
        self._keys.register(block_ids)

    def _reset(self) -> None:
        self._keys.allocate(range(self.num_blocks))
        super()._reset()

    def _added(self, request: Any, matched: Any) -> None:
        super()._added(request, matched)
        row = self._context.total_request_count - 1
        if self._context.request_ids[row] == request.request_id:
            table = self._context.request_to_kv_block_ids[row].tolist()
            self._keys.admit(request.prompt_tokens, table)

    def _change_weights(self, version: int) -> None:
        before = self._version
        if version != before and not self._step:  # which all blocks so far are taken to be of
            self._keys.forget_earlier()
        super()._change_weights(version)
        if version != before and self._keys.change_weights(version):
            self._name_weights()

    def _follow_weights(self) -> None:
        """Just before a step is told."""
        super()._follow_weights()
        context, size = self._context, self._context.block_size_tokens
        prefill = context.request_in_prefill_status_tensor[: context.total_request_count]
        for index, new in enumerate(prefill.tolist()) if self._weights_changed else ():
            if new != 1:
                continue
            first = int(context.request_kv_length_offsets[index])
            last = first + int(context.request_query_lengths[index])
            table = context.request_to_kv_block_ids[index]
            self._keys.write(table[first // size : -(-last // size)].tolist())
        self.store.seal(*self._keys.seals())

    def _part(self, blocks: Any, rows: int, last_step: int = 0, keys: Any = None) -> Part:
        if not last_step:  # of a request
            full = [int(block) for block in blocks[: rows // self._context.block_size_tokens]]
            last_step, keys = self._step + 1, self._keys.of(full)
        return super()._part(blocks, rows, last_step, keys)
