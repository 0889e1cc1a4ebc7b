#!/usr/bin/env python3
"""Compares the C headers with their frozen copies: within a major version they only grow.

    frozen_headers.py ROOT

Comments and layout do not count. Structs with a struct_size, and the tables, may have more fields at
their end; enums may have more numbers; there may be more macros, types and functions. All else that
the frozen header declares must be there unchanged.
"""
import pathlib
import re
import sys

# Of each header: its folder, and how many declarations it has at least.
HEADERS = {"waymark.h": ("plugin", 40), "waymark_wire.h": ("plugin", 40),
           "waymark_megatron.h": ("adapters/megatron", 4), "waymark_vllm.h": ("adapters/vllm", 4),
           "waymark_trainer.h": ("adapters/trainer", 20)}
VERSION = "WM_ABI_MINOR"  # counts what was added


def declarations(text: str) -> dict[str, list[str]]:
    """What a header declares, by name: {name: parts in order}."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^#define (\w+(?:\([^)]*\))?) +(.+)$", text, re.M):
        found["#define " + name] = [" ".join(value.split())]
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = " ".join(text.replace('extern "C" {', "").split())
    for match in re.finditer(r"typedef struct \w+ \{(.*?)\} (\w+);", text):
        fields = re.split(r";\s*", match.group(1).strip().rstrip(";"))
        found["struct " + match.group(2)] = [" ".join(field.split()) for field in fields]
    text = re.sub(r"typedef struct \w+ \{.*?\} \w+;", "", text)
    for match in re.finditer(r"enum (?:\w+ )?\{(.*?)\};", text):
        number = -1
        for part in filter(None, map(str.strip, match.group(1).split(","))):
            name, _, value = part.partition("=")
            number = int(value, 0) if value else number + 1
            found["enum " + name.strip()] = [str(number)]
    text = re.sub(r"enum (?:\w+ )?\{.*?\};", "", text)
    for match in re.finditer(r"static inline \w+ (\w+)(\([^)]*\) \{[^}]*\})", text):
        found["inline " + match.group(1)] = [match.group(2)]
    for match in re.finditer(r"typedef ([^;{}]+?) ?(\w+);|WM_EXPORT ([^;]+);", text):
        whole = match.group(0)
        found[whole] = [whole]
    return found


def differences(was: str, now: str) -> list[str]:
    """Why callers of the header as it was cannot use it as it is."""
    before, after = declarations(was), declarations(now)
    found = []
    for name, parts in before.items():
        if VERSION in name or name == "enum WM_NUM_REASONS":
            continue
        present = after.get(name)
        if present is None:
            found.append(f"{name}: is gone")
            continue
        grows = name.startswith("struct ") and "struct_size" in parts[0]
        if present[: len(parts)] != parts or (len(present) > len(parts) and not grows):
            found.append(f"{name}: was {'; '.join(parts)}; is {'; '.join(present)}")
    return found


def main() -> None:
    root = pathlib.Path(sys.argv[1])
    found = []
    for header, (folder, least) in HEADERS.items():
        was = (root / "tests/abi/frozen" / header).read_text()
        now = (root / folder / header).read_text()
        if len(declarations(was)) < least:
            sys.exit(f"tests/abi/frozen/{header}: too few declarations were understood")
        found += [f"{header}: {line}" for line in differences(was, now)]
    if found:
        sys.exit("callers of version 1.0 would break:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
