"""Page sources by URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ._errors import InvalidArgumentError
from ._fetching import RedisSource, Source


def source_of(url: str) -> Source:
    """The source of a URL: ``redis://[user:password@]host[:port][/database][?ttl=seconds&
    prefix=text]``. InvalidArgumentError for others; its text has neither user nor password."""
    try:
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query, True).items()}
        more: dict[str, Any] = {}
        if ttl := query.pop("ttl", ""):
            more["time_to_live"] = float(ttl)
        if (prefix := query.pop("prefix", None)) is not None:
            more["key_prefix"] = prefix
        if parts.scheme != "redis" or query or parts.fragment:
            raise ValueError
        return RedisSource(
            parts.hostname or "127.0.0.1",
            parts.port or 6379,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            database=int(parts.path.strip("/") or 0),
            **more,
        )
    except InvalidArgumentError:
        raise
    except ValueError:
        raise InvalidArgumentError(
            "url: redis://[user:password@]host[:port][/database][?ttl=seconds&prefix=text], got "
            f"{url.rpartition('@')[2]!r}"
        ) from None
