#!/usr/bin/env python3
"""Writes docs/api/c.md from the headers of the C ABI: each declaration under its comment.

  docs/api/c_page.py           writes
  docs/api/c_page.py --check   exits with 1 when docs/api/c.md is not what the headers say
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "api" / "c.md"
HEADERS = ("plugin/waymark.h", "plugin/waymark_graph.h", "plugin/waymark_wire.h")
RULE = re.compile(r"^/\* -{2,} (.*?) -{2,} \*/$")


def comment(text):
    """The words of a comment, as paragraphs; indented lines are code."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in text.strip()[2:-2].strip().split("\n")]
    out, code = [], False
    for line, following in zip(lines, [*lines[1:], ""]):
        if code and not line and following.startswith("  "):
            out.append("")
            continue
        if line.startswith("  "):
            out += ([] if code else ["", "```c"]) + [line[2:]]
            code = True
            continue
        if code:
            out.append("```")
        code = False
        out.append(line.strip())
    out += ["```"] if code else []
    return "\n".join(out).replace("<", "&lt;") if not any("```" in l for l in out) else "\n".join(out)


def blocks(text):
    """(comment or None, declaration) in order; sections are (heading, None)."""
    lines, at, said = text.split("\n"), 0, None
    while at < len(lines):
        line = lines[at].strip()
        rule = RULE.match(line)
        if rule:
            yield rule.group(1), None
            said, at = None, at + 1
        elif line.startswith("/*") and not line.startswith("/* --"):
            begin = at
            while "*/" not in lines[at]:
                at += 1
            said, at = comment("\n".join(lines[begin:at + 1])), at + 1
        elif not line:
            said, at = None, at + 1
        else:  # declarations up to an empty line or a comment of their own
            begin, depth, in_comment = at, 0, False
            while at < len(lines) and (depth > 0 or in_comment or (
                    lines[at].strip() and (at == begin or not lines[at].strip().startswith("/*")))):
                in_comment = lines[at].rfind("/*") > lines[at].rfind("*/") or (
                    in_comment and "*/" not in lines[at])
                code = re.sub(r"/\*.*", "", lines[at])
                depth += code.count("{") - code.count("}")
                at += 1
            yield said, "\n".join(lines[begin:at])
            said = None


def header(path):
    """The lines of the page that come from one header."""
    text = (ROOT / path).read_text()
    name = pathlib.PurePath(path).name
    body = text[text.index('extern "C" {\n#endif') + len('extern "C" {\n#endif'):]
    body = body[:body.index("#ifdef __cplusplus")]
    table = re.search(r"typedef struct (wm_\w*api_v1) \{(.*?)\n\} \1;", body, re.S)
    out = [f"## {name}", "", comment(text[:text.index("#ifndef")]), ""]

    def emit(part, indent):
        for said, code in blocks(part):
            if code is None:
                out.extend(["#" * (3 + indent) + " " + said[0].upper() + said[1:], ""])
                continue
            if code.startswith("#if") or code.startswith("#e") or "WM_EXPORT __" in code:
                continue
            names = re.findall(r"^\s*[\w* ]+\(\*(\w+)\)\(", code, re.M) if indent else []
            if names:
                out.extend([", ".join("**`%s`**" % name for name in names), ""])
            width = len(code) - len(code.lstrip())
            lines = [line[width:] if line[:width].isspace() else line for line in code.split("\n")]
            if said:
                out.extend([said, ""])
            out.extend(["```c", *lines, "```", ""])

    emit(body[:table.start()].rstrip(), 0)
    out.extend([f"`{table.group(1)}`: fields that describe the table, then the functions.", ""])
    emit(table.group(2), 1)
    emit(body[table.end():], 0)
    return out


def page():
    out = ["# The C API", "",
           "Made from " + ", ".join(f"`{path}`" for path in HEADERS[:-1]) + f" and `{HEADERS[-1]}` by "
           "`docs/api/c_page.py`; do not edit. How it grows: [abi.md](../abi.md).", ""]
    for path in HEADERS:
        out += header(path)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip() + "\n"


def main():
    want = page()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != want:
            sys.exit("docs/api/c.md is not what the headers say; run docs/api/c_page.py")
        return
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(want)


if __name__ == "__main__":
    main()
