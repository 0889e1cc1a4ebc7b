"""Applies a list of seeded faults to a copy of sources: substitute.py LIST ROOT OUT FILE...

Copies every FILE (relative to ROOT) to OUT with the substitutions of LIST (see faults.txt), and
writes the names of the faults to OUT/fault_names.inc. Does not write files whose content stays the
same, so that a build compiles only what changed. Fails, naming list, line, fault and file, if code
is not found exactly once or if a change has no switch of its fault.
"""
import pathlib
import re
import sys

errors = []


class Change:
    """Code of one file, and what one fault makes of it."""

    def __init__(self, where, fault, file):
        self.where, self.fault, self.file = where, fault, file
        self.old, self.new = [], []

    def fail(self, why):
        errors.append(f"{self.where}: fault {self.fault}: {self.file}: {why}")


def read_list(path):
    changes = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        head = re.fullmatch(r"fault (\w+) in (\S+)", line)
        if head:
            changes.append(Change(f"{path}:{number}", *head.groups()))
        elif line[:2] in ("- ", "+ ") and changes:
            (changes[-1].old if line[0] == "-" else changes[-1].new).append(line[2:])
        elif line and not line.startswith("#"):
            errors.append(f"{path}:{number}: not 'fault NAME in FILE', '- code', '+ code', #")
    for change in changes:
        if not change.old or not change.new:
            change.fail("needs '- code' and '+ code'")
        if set(re.findall(r'FaultOn\("(\w*)"\)', "\n".join(change.new))) - {change.fault}:
            change.fail("has the switch of another fault")
    for fault in {change.fault for change in changes}:
        own = [change for change in changes if change.fault == fault]
        if not any(f'FaultOn("{fault}")' in "\n".join(change.new) for change in own):
            own[0].fail(f'nothing depends on FaultOn("{fault}")')
    return changes


def find(change, text):
    """Begin and end in `text` of the change's code, whitespace aside. An error: (0, 0)."""
    places = [at for at, c in enumerate(text) if not c.isspace()]
    squeezed = "".join(text[at] for at in places)
    wanted = "".join("".join(change.old).split())
    found = [m.start() for m in re.finditer(f"(?={re.escape(wanted)})", squeezed)]
    if len(found) != 1:
        change.fail(f"found {len(found)} times, must be once: " + "\n".join(change.old))
        return 0, 0
    return places[found[0]], places[found[0] + len(wanted) - 1] + 1


def substitute(text, changes):
    spans = sorted(((*find(change, text), change) for change in changes), key=lambda span: span[:2])
    at, out = 0, []
    for begin, end, change in spans:
        if begin < at:
            change.fail("overlaps with another change: " + "\n".join(change.old))
        out += [text[at:begin], "\n".join(change.new)]
        at = end
    return "".join(out) + text[at:]


def write(path, text):
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main(list_path, root, out, *files):
    changes = read_list(pathlib.Path(list_path))
    for change in changes:
        if change.file not in files:
            change.fail("is not among the files that are copied")
    texts = {}
    for file in files:
        text = (pathlib.Path(root) / file).read_text()
        texts[file] = substitute(text, [change for change in changes if change.file == file])
    names = dict.fromkeys(change.fault for change in changes)
    texts["fault_names.inc"] = "".join(f'"{name}",\n' for name in names)
    if errors:
        sys.exit("\n".join(errors))
    for file, text in texts.items():
        write(pathlib.Path(out) / file, text)


main(*sys.argv[1:])
