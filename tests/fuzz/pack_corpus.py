#!/usr/bin/env python3
"""Packs a folder of fuzz inputs into one file (tests/fuzz/saved_corpus.h says how it is laid out).

    pack_corpus.py FOLDER FILE [--most BYTES]

The smallest inputs come first; what does not fit BYTES is left out, and counted. One file a target:
a folder of hundreds of inputs whose names are hashes tells a reader of the repository nothing.
"""
import argparse
import pathlib
import struct


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=160 << 10)
    args = parser.parse_args()
    inputs = {path.read_bytes() for path in args.folder.iterdir() if path.is_file()}
    packed = b""
    kept = 0
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        if len(packed) + 4 + len(data) > args.most:
            break
        packed += struct.pack("<I", len(data)) + data
        kept += 1
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_bytes(packed)
    print(f"{args.file}: {kept} of {len(inputs)} inputs, {len(packed)} bytes")


if __name__ == "__main__":
    main()
