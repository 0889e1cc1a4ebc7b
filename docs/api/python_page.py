"""Writes docs/api/python.md from the docstrings of the package.

    PYTHONPATH=<build>/python python docs/api/python_page.py > docs/api/python.md
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import operator
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import waymark
import waymark.hf
import waymark.megatron
import waymark.sglang
import waymark.sources.mooncake
import waymark.trainer
import waymark.vllm

SECTIONS = {
    "Capture": ["Capture", "Step", "Buffer", "Taken", "StoreStats", "LayerStats", "Finding",
                "RecorderOptions", "Collective"],
    "Events": ["event_dtype", "ALL_ROWS"],
    "Rows": ["Rows", "join", "pack_ids", "HasRows", "CoverageRun", "WeightVersions", "row_info_dtype",
             "UNKNOWN_VERSION", "Shape"],
    "Proving an integration": ["verify", "Report", "Alarm", "Mistake"],
    "Documents": ["open", "from_bytes", "Document", "ReadDamage"],
    "Formats of engines and trainers": ["read", "FormatWarning"],
    "Page sources, publishing, fetching": ["Handle", "MemorySource", "FileSource", "FolderSource",
                                           "RedisSource", "ProcessSource", "BundleSource",
                                           "source_of", "PageSource", "Publisher", "Ticket",
                                           "PublisherStats", "Fetcher", "FetchReport"],
    "Rows by key": ["Tier", "TierStats"],
    "Mooncake": ["sources.mooncake." + name for name in waymark.sources.mooncake.__all__],
    "Slots": ["slots_of", "NOT_ASKED", "PADDING_SLOT"],
    "Replay in a trainer": ["trainer." + name for name in waymark.trainer.__all__],
    "Hugging Face transformers": ["hf." + name for name in waymark.hf.__all__],
    "vLLM": ["vllm." + name for name in waymark.vllm.__all__],
    "SGLang": ["sglang." + name for name in waymark.sglang.__all__],
    "Megatron": ["megatron." + name for name in waymark.megatron.__all__],
    "Enums": ["Reason", "Cause", "Provenance", "EventType"],
    "The installation": ["__version__", "build_info", "library_path", "include_dir"],
    "Errors": [],
}  # fmt: skip


def fields_of(thing: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, doc) of the annotated fields of a class, as its source has them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for statement, following in zip(tree.body, [*tree.body[1:], None]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            doc = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                doc = " ".join(str(following.value.value).split())
            if not name.startswith("_"):
                yield name, ast.unparse(statement.annotation), doc


class Written(str):
    """An annotation that is shown as it is written."""

    __repr__ = str.__str__


def written(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(
        parameters=[
            p.replace(annotation=Written(p.annotation)) if isinstance(p.annotation, str) else p
            for p in signature.parameters.values()
        ],
        return_annotation=Written(signature.return_annotation),
    )


def documented(name: str, function: Any) -> tuple[str, str]:
    """(signature, doc) of a function, the extension's included."""
    doc = inspect.cleandoc(function.__doc__ or "")
    if type(function).__name__.startswith("nb_"):
        signature, _, doc = doc.partition("\n")
        doc = inspect.cleandoc(doc)
    else:
        signature = name + str(written(inspect.signature(function)))
    signature = re.sub(r"<(\w+\.\w+): \d+>", r"\1", signature).replace("waymark._core.", "")
    signature = re.sub(r"<class 'numpy\.(\w+)'>", r"np.\1", signature)
    return re.sub(r"\(self(, /)?(, )?", "(", signature), doc


def paragraph(doc: str) -> str:
    """A docstring as Markdown: its literal blocks as code."""
    doc = doc.replace("``", "`")
    doc = re.sub(r"(?m)^(.*\w)::$", r"\1:\n\n::", doc)
    parts = re.split(r"(?m)^::$\n\n((?:    .*\n?|\n)+)", doc + "\n")
    text = "".join(
        part if i % 2 == 0 else f"```python\n{textwrap.dedent(part).strip()}\n```\n\n"
        for i, part in enumerate(parts)
    )
    return text.strip()


def item(heading: str, doc: str) -> str:
    return f"- `{heading}`" + (
        "\n" + textwrap.indent(paragraph(doc), "  ") if doc else ""
    )


def members_of(thing: type) -> Iterator[str]:
    if vars(thing).get("__annotations__"):
        for name, kind, doc in fields_of(thing):
            yield item(f"{name}: {kind}", doc)
    if issubclass(thing, enum.Enum):
        yield ", ".join(f"`{m.name}` = {m.value}" for m in thing)
        return
    for name in dir(thing):
        if name.startswith("_") or name in getattr(thing, "_fields", ()):
            continue
        owner = next(c for c in thing.__mro__ if name in vars(c))
        if not owner.__module__.startswith("waymark"):
            continue
        member = inspect.getattr_static(thing, name)
        if isinstance(member, staticmethod):
            member = member.__func__
        if isinstance(member, classmethod):
            member = getattr(thing, name)
        if isinstance(member, property):
            getter = member.fget
            native = getattr(getter, "__nb_signature__", None)
            signature = native[0][0] if native else documented(name, getter)[0]
            kind = signature.partition(" -> ")[2]
            yield item(f"{name}: {kind}", inspect.cleandoc(member.__doc__ or ""))
        elif callable(member):
            yield item(*documented(name, member))


def page() -> Iterator[str]:
    yield "# waymark in Python"
    yield "Made by `docs/api/python_page.py` from the docstrings; a test compares."
    lines = inspect.cleandoc(waymark.__doc__ or "").splitlines()
    yield paragraph("\n".join([lines[0], "", "::", *lines[1:]]))
    for title, names in SECTIONS.items():
        yield f"## {title}"
        for name in names:
            thing = operator.attrgetter(name)(waymark)
            yield f"### {name}"
            if isinstance(thing, type):
                yield paragraph(inspect.cleandoc(thing.__doc__ or ""))
                init = thing.__init__
                if "__init__" in vars(thing) and not dataclasses.is_dataclass(thing):
                    if init.__doc__ and not init.__doc__.startswith("Initialize self"):
                        yield item(*documented(name, init))
                yield "\n".join(members_of(thing))
            elif callable(thing):
                signature, doc = documented(name, thing)
                yield f"`{signature}`"
                yield paragraph(doc)
            elif isinstance(thing, str):
                yield "The version of the library, as 0.1.0."
            elif isinstance(thing, dict):
                yield "By name: " + ", ".join(f"`{key}`" for key in thing) + "."
            else:
                yield f"`{thing!r}`"
        if title == "Errors":
            yield paragraph(inspect.cleandoc(waymark.WaymarkError.__doc__ or ""))
            rows = ["| class | also | means |", "|---|---|---|"]
            for error in sorted(waymark.WaymarkError.__subclasses__(), key=lambda e: e.status):
                also = ", ".join(f"`{b.__name__}`" for b in error.__bases__[1:])
                rows.append(f"| `{error.__name__}` | {also} | {error.__doc__} |")
            yield "\n".join(rows)


def text() -> str:
    shown = {name for names in SECTIONS.values() for name in names}
    left = {n for n in waymark.__all__ if not n.endswith("Error")} - shown
    if left:
        raise SystemExit(f"python_page.py: no section for {', '.join(sorted(left))}")
    return "\n\n".join(part for part in page() if part) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
