"""Rows of KV that another engine computed: by the keys of blocks from a tier; those of a prompt's
last block, which is not full and has no key, with the parameters of the transfer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .._documents import from_bytes
from .._fetching import Source
from .._rows import Rows, join
from .._source_url import source_of
from .._tier import Tier
from ._hooks import logger

TAIL = "waymark_tail"
"""Of kv_transfer_params."""
_OWN = ("url", "weights", "key_file")


def tier_of(
    given: Any,
    model: str,
    publisher: str = "",
    make: Callable[[str], Source] = source_of,
    look_up: bool = True,
) -> Tier:
    """The tier of the option ``tier``: a URL, or a dict of it and more. Raises what is wrong with
    it. model: the namespace, unless the option has one, as look_up. make: of a URL; one of a
    process of its own is made once, others for each direction."""
    spec: dict[str, Any] = dict(given) if isinstance(given, dict) else {"url": given}
    more = {name: value for name, value in spec.items() if name not in _OWN}
    url = spec["url"]
    return Tier(
        make(url), None if url.startswith("python:") else make(url), publisher=publisher,
        key=_key(spec), **{"space": model, "look_up": look_up, **more},
    )  # fmt: skip


def _key(spec: dict[str, Any]) -> bytes:
    return Path(spec["key_file"]).read_bytes() if "key_file" in spec else b""


class Tails:
    """The last block of prompts, between the schedulers of two engines."""

    def __init__(self, given: Any, model: str, block_tokens: int, hash_tokens: int) -> None:
        """hash_tokens: of one hash of a request."""
        spec = given if isinstance(given, dict) else {}
        self.weights: str = spec.get("weights", "")
        """The name of the weights with which the engine starts; "": they have none."""
        self._space = spec.get("space", model)
        self._secret = _key(spec)
        self._block_tokens, self._hash_tokens = block_tokens, hash_tokens

    def give(
        self, output: Any, request: Any, hashes: Any, tail: bytes, name_of: Callable[[int], str]
    ) -> None:
        """Puts rows behind the full blocks, a document, into kv_transfer_params, if they are
        complete and of weights that have a name. hashes: of the request."""
        rows = from_bytes(tail).rows()
        versions = {run.version for run in rows.coverage()}
        weights = name_of(versions.pop()) if len(versions) == 1 and rows.valid.all() else ""
        if weights:
            said = self._said(request, hashes, rows.first, rows.last, weights)
            document = _without_versions(rows, 0).to_bytes()
            said["rows"] = base64.b64encode(document).decode()
            said["mac"] = self._mac(said)
            output.kv_transfer_params = {**(output.kv_transfer_params or {}), TAIL: said}

    def take(self, request: Any, hashes: Any, weights: str) -> bytes:
        """The document that came with a request, if it is of its tokens and these weights."""
        given = (request.kv_transfer_params or {}).get(TAIL)
        if given is None:
            return b""
        try:
            said = self._said(request, hashes, int(given["first"]), int(given["last"]), weights)
            said["rows"] = given["rows"]
            if weights and hmac.compare_digest(str(given["mac"]), self._mac(said)):
                return base64.b64decode(given["rows"], validate=True)
            error = "it is of other tokens or weights, or of an engine without this key"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        logger.warning("waymark: %s of a request is refused: %s", TAIL, error)
        return b""

    def _said(
        self, request: Any, hashes: Any, first: int, last: int, weights: str
    ) -> dict[str, Any]:
        """What the rows [first, last) follow from: the block before them, and their tokens."""
        if first % self._block_tokens or not 0 <= first < last <= request.num_tokens:
            raise ValueError(f"rows [{first}, {last}) of {request.num_tokens} tokens")
        before = hashes[first // self._hash_tokens - 1] if first else b""
        tokens = np.array(request.all_token_ids[first:last], np.int64)
        digest = hashlib.sha256(before + tokens.tobytes()).hexdigest()
        return {"first": first, "last": last, "tokens": digest, "weights": weights}

    def _mac(self, said: dict[str, Any]) -> str:
        text = json.dumps([self._space, *(said[name] for name in sorted(said))]).encode()
        return hmac.new(self._secret or b"waymark", text, "sha256").hexdigest()


def _without_versions(rows: Rows, version: int) -> Rows:
    """The ids of rows, by key, as of weights `version`."""
    infos = rows.infos.copy()
    infos["step"], infos["version"] = 0, np.where(rows.valid, np.uint64(version), np.uint64(0))
    return Rows(rows.shape, rows.first, rows.ids, infos, rows.ordered)


def with_tail(rows: Rows, tail: bytes, version: int) -> Rows:
    """Rows with those of a document where they are missing. version: of their weights, here."""
    more = from_bytes(tail).rows()
    if more.first < rows.first or more.last > rows.last:
        return rows  # of fewer tokens than the prompt
    if rows.valid[more.first - rows.first : more.last - rows.first].all():
        return rows
    if more.layer_ids != rows.layer_ids:
        raise ValueError("the tail has other layers")
    return join(rows, _without_versions(more, version))
