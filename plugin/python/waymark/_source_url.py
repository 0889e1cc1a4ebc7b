"""source_of: page sources by URL, for configurations and command lines."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from ._errors import InvalidArgumentError
from ._fetching import FolderSource, RedisSource, Source
from ._process_source import ProcessSource

__all__ = ["source_of"]

_REDIS = {"ttl": "time_to_live", "prefix": "key_prefix"}
# The options in the query of each scheme, and the arguments of the source that they set.
_OPTIONS = {
    "redis": _REDIS,
    "rediss": {**_REDIS, "ca_file": "tls_ca_file"},
    "unix": {**_REDIS, "database": "database"},
    "file": {"ttl": "time_to_live", "max_bytes": "max_bytes"},
    "python": {},
}
_PLACE = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+)(:(?P<port>[0-9]+))?(/(?P<database>[0-9]*))?"
)


def _refused(url: str, rule: str) -> InvalidArgumentError:
    """Shows what can hold no part of a password, even of a URL that was written wrongly."""
    scheme, _, rest = url.partition("://")
    place = rest.rpartition("@")[2].partition("?")[0]
    if scheme not in _OPTIONS:
        shown = "one that begins with none of these" if re.search("[:@]", url) else repr(url)
    elif not ("@" in rest or _PLACE.fullmatch(place) or place.startswith("/")):
        shown = f"'{scheme}://...'"
    else:
        shown = repr(f"{scheme}://{place}")
    return InvalidArgumentError(f"url: {rule}, got {shown}")


def _options(url: str, scheme: str, query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = _OPTIONS[scheme]
    for part in query.split("&") if query else ():
        name, equals, text = part.partition("=")
        if name not in names or not equals or names[name] in found:
            raise _refused(url, f"each option once, of {', '.join(names)}; {name!r} is not")
        value: Any = unquote(text)
        if name in ("ttl", "max_bytes", "database"):
            if not re.fullmatch("[0-9]{1,20}", value):
                raise _refused(url, f"a number of digits as {name}")
            value = int(value)
        found[names[name]] = value
    return found


def source_of(url: str) -> Source:
    """A page source by its URL, for configurations and command lines:

    - ``redis://[user[:password]@]host[:port][/database][?ttl=seconds&prefix=text]``: a RedisSource;
      ``rediss://`` with TLS, where ``ca_file=path`` has the trusted certificates;
    - ``unix://[user[:password]@]/path/of/socket[?ttl=seconds&prefix=text&database=number]``: a
      RedisSource at a Unix socket;
    - ``file:///folder[?ttl=seconds&max_bytes=number]``: a FolderSource;
    - ``python:module:factory``: ProcessSource("module:factory").

    ``@ / ? # %`` in user and password, and ``? # % &`` elsewhere, are written ``%40`` and so on.
    InvalidArgumentError for other URLs, without user and password; errors of the source."""
    scheme, _, rest = url.partition(":")
    if scheme == "python":
        return ProcessSource(rest)
    if scheme not in _OPTIONS or not rest.startswith("//") or "#" in rest:
        names = "redis://, rediss://, unix:///, file:/// or python:"
        raise _refused(url, f"it begins with {names}, and has no '#'")
    where, _, query = rest[2:].partition("?")
    login, _, place = where.rpartition("@") if scheme != "file" else ("", "", where)
    if "@" in query or "/" in login:
        raise _refused(url, "in user and password '@', '/' and '?' are written %40, %2F and %3F")
    found = _PLACE.fullmatch(place)
    if scheme in ("file", "unix"):
        if not place.startswith("/"):
            raise _refused(url, "an absolute path, so three '/'")
    elif found is None:
        raise _refused(url, "host[:port][/number of the database]")
    options = _options(url, scheme, query)
    if scheme == "file":
        return FolderSource(unquote(place), **options)
    user, _, password = login.partition(":")
    options.update(user=unquote(user) or None, password=unquote(password) or None)
    if found is None:
        return RedisSource(unix_socket=unquote(place), **options)
    options.update(database=int(found["database"] or 0), tls=scheme == "rediss")
    return RedisSource(found["host"].strip("[]"), int(found["port"] or 6379), **options)
