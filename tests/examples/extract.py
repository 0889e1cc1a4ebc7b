"""Takes the examples out of the comments of headers, so that they are compiled and run.

    extract.py HEADER [OUT]          writes the example of HEADER to OUT, or prints it
    extract.py PAGE.md [OUT]         the same of a page: its blocks of C and C++
    extract.py --check HEADER... -- TEST...
                                     fails unless every code line in the comments of the HEADERs is
                                     part of an example, and a TEST includes every example, as
                                     "HEADER.example" with HEADER's path as it is given here

An example is marked in one way. In a comment of // or of /* * */, a line that begins with "Example"
and ends with a colon; then an empty line; then code, indented by two spaces or more beyond the
text, up to the first line that is not:

    // Example, with a store of 16 blocks:
    //
    //   const BlockId blocks[] = {BlockId(3)};
    //   auto snapshot = store.TakeSnapshot(blocks, 0, 2);

Compiler errors name the line of the header. Several examples of one header follow one another, as
one.
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"\s*(?://|/?\*(?!/))( ?)(.*)")
MARK = re.compile(r"Example\b.*:")


def read(header):
    """[(line number, code)] of the example, and of lines of code that are in no example."""
    example, stray, state = [], [], "text"
    if header.suffix == ".md":
        for number, line in enumerate(header.read_text().splitlines(), 1):
            if line.startswith("```"):
                state = "code" if line in ("```c", "```cpp") else "text"
            elif state == "code":
                example.append((number, line))
        return example, stray
    for number, line in enumerate(header.read_text().splitlines(), 1):
        comment = COMMENT.fullmatch(line)
        text = comment[2].rstrip() if comment else None
        code = text is not None and text.startswith("  ")
        if text is None:
            state = "text"
        elif MARK.fullmatch(text):
            state = "marked"
        elif state != "text" and (code or not text):
            state = "code" if code else state
            if state == "code":
                example.append((number, text[2:]))
        else:
            state = "text"
            if code and text.endswith((";", "{", "}")):
                stray.append((number, text.strip()))
    return example, stray


def write(header, out):
    example, _ = read(pathlib.Path(header))
    if not example:
        sys.exit(f"{header}: no example")
    lines, expected = [], None
    for number, code in example:
        if number != expected:
            lines.append(f'#line {number} "{header}"')
        lines.append(code)
        expected = number + 1
    text = "\n".join(lines) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(out).write_text(text)


def check(headers, tests):
    included = set()
    for test in tests:
        included |= set(re.findall(r'#include "(.*)\.example"', pathlib.Path(test).read_text()))
    errors = []
    for header in headers:
        example, stray = read(pathlib.Path(header))
        errors += [f"{header}:{number}: code outside an example: {code}" for number, code in stray]
        if example and header not in included:
            errors.append(f"{header}:{example[0][0]}: no test includes this example")
        if not example and header in included:
            errors.append(f"{header}: a test includes its example, but it has none")
    if errors:
        sys.exit("\n".join(errors))


arguments = sys.argv[1:]
if arguments[:1] == ["--check"]:
    split = arguments.index("--")
    check(arguments[1:split], arguments[split + 1 :])
else:
    write(arguments[0], arguments[1] if len(arguments) > 1 else None)
