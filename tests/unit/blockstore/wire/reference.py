"""An independent reader and writer of Waymark's wire format, from docs/internals/format.md and
docs/internals/format-set-code.md alone. Needs only Python; with xxhash it checks digests.

    python3 reference.py FOLDER    reads every golden file, checks what it holds, and writes it again
"""
import hashlib
import math
import pathlib
import struct
import sys

try:
    import xxhash
except ImportError:
    xxhash = None

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ TABLE[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


def H(data):
    hashed = xxhash.xxh3_128_intdigest(data)
    return struct.pack("<QQ", hashed & (1 << 64) - 1, hashed >> 64)


def h(data):
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def K(data):  # the key of the golden files
    return hashlib.blake2b(data, digest_size=16, key=bytes(range(32))).digest()


def get_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            assert (byte != 0 or shift == 7) and shift <= 70 and value < 1 << 64
            return value, at


def put_varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def zigzag(value):  # modulo 2^64, as steps are
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return (value << 1 ^ value >> 63) & (1 << 64) - 1


def unzigzag(value):
    return value >> 1 ^ -(value & 1)


def same_runs(values):  # [[value, count], ...]
    runs = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def read_coverage(data, n):  # a row: [reason | cause << 3, provenance, version, step]
    rows, at = [], 0
    while len(rows) < n:
        count, at = get_varint(data, at)
        reason, provenance, version = data[at], data[at + 1], 0
        at += 2
        assert count >= 1 and provenance <= 3 and (reason <= 8 or reason & 7 == 4)
        if reason == 0:
            version, at = get_varint(data, at)
        rows += [[reason, provenance, version, 0] for _ in range(count)]
    assert len(rows) == n and at == len(data)
    return rows


def write_coverage(rows):
    return b"".join(
        put_varint(count) + bytes(run[:2]) + (put_varint(run[2]) if run[0] == 0 else b"")
        for run, count in same_runs([row[:3] for row in rows]))


def read_steps(data, rows):
    valid, at, done, last = [row for row in rows if row[0] == 0], 0, 0, 0
    while done < len(valid):
        count, at = get_varint(data, at)
        first, at = get_varint(data, at)
        stride, at = get_varint(data, at) if count > 1 else (0, at)
        assert 1 <= count <= len(valid) - done
        for i in range(count):
            valid[done + i][3] = (last + unzigzag(first) + i * unzigzag(stride)) % (1 << 64)
        done += count
        last = valid[done - 1][3]
    assert at == len(data)


def write_steps(rows):
    steps, out, last = [row[3] for row in rows if row[0] == 0], b"", 0
    while steps:
        count = min(2, len(steps))
        stride = (steps[1] - steps[0]) % (1 << 64) if count > 1 else 0
        while count < len(steps) and (steps[count] - steps[count - 1]) % (1 << 64) == stride:
            count += 1
        out += put_varint(count) + put_varint(zigzag(steps[0] - last))
        out += put_varint(zigzag(stride)) if count > 1 else b""
        steps, last = steps[count:], steps[count - 1]
    return out


class Shape:
    def __init__(self, block):
        (self.L, self.K, self.E, self.B, space, flags, self.codec, self.l, self.unary,
         self.crc_layers) = struct.unpack_from("<4I3H2BI", block)
        self.block, self.ordered = block, flags == 1
        self.layers = struct.unpack_from("<%dI" % self.L, block, 28)
        assert space == 0 and flags <= 1 and len(block) == 28 + 4 * self.L
        assert list(self.layers) == sorted(set(self.layers)) and not (self.codec and self.ordered)
        assert self.codec <= 1 and 1 <= self.crc_layers <= self.L
        self.Y = self.E if self.l == 0 else (self.E - 1 >> self.l) + self.K
        self.id = "B" if self.E <= 256 else "H"
        self.bits = self.K * (8 if self.E <= 256 else 16)
        if self.codec:
            high = self.Y if self.unary else (math.comb(self.Y, self.K) - 1).bit_length()
            self.bits = self.K * self.l + high

    def layer_bytes(self, n):
        return (n * self.bits + 7) // 8

    def crcs(self):
        return -(-self.L // self.crc_layers)

    def chunk_bytes(self, n):
        return 4 * self.crcs() + self.L * self.layer_bytes(n)

    def code(self, ids):  # the ids of one row and layer as an integer
        if not self.codec:
            data = struct.pack("<%d%s" % (self.K, self.id), *(ids if self.ordered else sorted(ids)))
            return int.from_bytes(data, "little")
        points = [c if self.l == 0 else (c >> self.l) + i for i, c in enumerate(sorted(ids))]
        low = sum((c & (1 << self.l) - 1) << i * self.l for i, c in enumerate(sorted(ids)))
        high = sum(1 << p if self.unary else math.comb(p, i + 1) for i, p in enumerate(points))
        return low | high << self.K * self.l

    def ids(self, code):
        if not self.codec:
            return list(struct.unpack("<%d%s" % (self.K, self.id),
                                      code.to_bytes(self.bits // 8, "little")))
        high, ids = code >> self.K * self.l, []
        for i in reversed(range(self.K)):
            weight = (lambda p: 1 << p) if self.unary else (lambda p: math.comb(p, i + 1))
            y = max(p for p in range(self.Y) if weight(p) <= high)
            high -= weight(y)
            ids.insert(0, (y if self.l == 0 else y - i) << self.l
                       | code >> i * self.l & (1 << self.l) - 1)
        return ids

    def read_chunk(self, data, known):  # [row][layer] -> ids, None where the row is missing
        n, front = len(known), 4 * self.crcs()
        assert len(data) == self.chunk_bytes(n)
        size = self.layer_bytes(n)
        for g in range(self.crcs()):
            end = min(self.L, (g + 1) * self.crc_layers)
            part = data[front + g * self.crc_layers * size:front + end * size]
            assert crc32c(part) == struct.unpack_from("<I", data, 4 * g)[0]
        layers = [int.from_bytes(data[front + i * size:front + (i + 1) * size], "little")
                  for i in range(self.L)]
        mask = (1 << self.bits) - 1
        return [[self.ids(layer >> r * self.bits & mask) for layer in layers]
                if row[0] == 0 else None for r, row in enumerate(known)]

    def write_chunk(self, rows):
        size = self.layer_bytes(len(rows))
        layers = [sum(self.code(row[i]) << r * self.bits for r, row in enumerate(rows) if row)
                  .to_bytes(size, "little") for i in range(self.L)]
        crcs = [crc32c(b"".join(layers[i:i + self.crc_layers]))
                for i in range(0, self.L, self.crc_layers)]
        return struct.pack("<%dI" % len(crcs), *crcs) + b"".join(layers)

    def place(self, chunk):
        return h(chunk[:4 * -(-self.L // self.crc_layers)])[:4]

    def pages(self, first, n):  # [begin, end) of each chunk's rows
        cuts = [p for p in range(first + 1, first + n) if p % self.B == 0]
        return list(zip([first] + cuts, cuts + [first + n])) if n else []


def read_document(data):
    magic, major, minor, header, crc, _, size, first, n, trajectory = struct.unpack_from(
        "<8sHHIIIQQQ16s", data)
    assert magic == b"\x89WMK\r\n\x1a\n" and major == 1 and header % 64 == 0 and size == len(data)
    assert crc32c(data[:16] + bytes(4) + data[20:header]) == crc
    sections, at = {}, 64
    while at + 8 <= header:
        kind, _, length = struct.unpack_from("<HHI", data, at)
        if kind == 0:
            break
        sections[kind] = data[at + 8:at + 8 + length]
        at += 8 + -(-length // 8) * 8
    shape = Shape(sections[1])
    known = read_coverage(sections[2], n)
    if 3 in sections:
        read_steps(sections[3], known)
    rows, at, places = [], header, sections.get(5)
    for c, (begin, end) in enumerate(shape.pages(first, n)):
        length = shape.chunk_bytes(end - begin)
        if xxhash:
            assert places[4 * c:4 * c + 4] == shape.place(data[at:at + length])
        rows += shape.read_chunk(data[at:at + length], known[begin - first:end - first])
        at += length
    assert at == size and len(places) == 4 * len(shape.pages(first, n))
    return shape, first, trajectory, known, rows, 3 in sections, minor, places


def write_document(shape, first, trajectory, known, rows, steps, minor, places):
    chunks = [shape.write_chunk(rows[begin - first:end - first])
              for begin, end in shape.pages(first, len(rows))]
    if xxhash:
        places = b"".join(map(shape.place, chunks))
    sections = [(1, shape.block), (2, write_coverage(known))]
    sections += [(3, write_steps(known))] if steps else []
    sections += [(5, places)]
    behind = b"".join(struct.pack("<HHI", kind, 0, len(payload)) + payload + bytes(-len(payload) % 8)
                      for kind, payload in sections)
    behind += bytes(-len(behind) % 64)
    chunks = b"".join(chunks)
    header = lambda crc: struct.pack("<8sHHIIIQQQ16s", b"\x89WMK\r\n\x1a\n", 1, minor, 64 + len(behind),
                                     crc, 0, 64 + len(behind) + len(chunks), first, len(rows),
                                     trajectory) + behind
    return header(crc32c(header(0))) + chunks


def check_ids(shape, first, rows):  # the ids that the golden files are made of
    for position, row in enumerate(rows, first):
        for layer, ids in enumerate(row or []):
            meant = [(position * 7 + layer * 13 - k) % shape.E for k in range(shape.K)]
            assert ids == (meant if shape.ordered else sorted(meant)), (position, layer, ids)


def check_objects(handle, node, tail, node_list):
    magic, major, segments, size, crc, n, head, runs, block, name = struct.unpack_from(
        "<4sHHIIQ16sIHH", handle)
    assert magic == b"WMKH" and major == 1 and size == len(handle) and segments == 1
    assert crc32c(handle[:12] + bytes(4) + handle[16:]) == crc
    shape = Shape(handle[48:48 + block])
    at = 48 + block
    assert handle[at:at + name].decode() == "store of \u00e9t\u00e9"
    digest, at = handle[at + name:at + name + 16], at + name + 16
    provenance = []
    while at < size:
        count, at = get_varint(handle, at)
        provenance, at = provenance + [handle[at]] * count, at + 1
    assert provenance == [0, 2] + [0] * 7 and n == 9

    magic, major, _, nodes = struct.unpack_from("<4sHHQ", node_list)
    assert magic == b"WMKL" and major == 1 and nodes == 4 and len(node_list) == 16 + 16 * nodes
    assert node_list[32:48] == struct.pack("<4I", 5, 6, 7, 8) and node_list[64:] == head

    magic, major, chunks, shape_digest, page, before, coverage, steps = struct.unpack_from(
        "<4sHHQQ16sII", node)
    assert magic == b"WMKN" and major == 1 and chunks == 2 and page == 0 and before == bytes(16)
    assert len(node) == 48 + 32 + coverage + steps
    known = read_coverage(node[80:80 + coverage], 8)
    read_steps(node[80 + coverage:], known)
    assert known == [[0, 0, 1, 7]] * 3 + [[3, 0, 0, 0], [0, 0, 1, 7]] + [[0, 0, 1, s] for s in (8, 9, 10)]

    magic, major, rows, _, first, coverage, steps = struct.unpack_from("<4sHHQQII", tail)
    assert magic == b"WMKT" and major == 1 and (first, rows) == (8, 1)
    known = read_coverage(tail[32:32 + coverage], 1)
    read_steps(tail[32 + coverage:32 + coverage + steps], known)
    assert known == [[0, 0, 1, 11]]
    check_ids(shape, 8, shape.read_chunk(tail[32 + coverage + steps:], known))
    if xxhash:
        assert struct.pack("<Q", shape_digest) == h(shape.block) == tail[8:16]
        assert head == H(node) and digest == H(tail)
        print("name of the node list:", H(b"WMKL" + head).hex())
        meant = [[[(p * 7 + i * 13 - k) % 256 for k in range(2)] for i in range(3)] for p in range(8)]
        meant[3] = None
        for c in range(2):
            chunk = shape.write_chunk(meant[4 * c:4 * c + 4])
            digest = shape.place(chunk) + H(h(shape.block) + struct.pack("<I", 4) + chunk)[4:]
            assert node[48 + 16 * c:64 + 16 * c] == digest


def check_named(node, tail, plain_node, plain_tail):
    """The names of pages behind what is the same without."""
    for named, plain, entry in (
            (node, plain_node, struct.pack("<4IQ4H", 1, 2, 3, 4, 7, 1, 1, 2, 0)),
            (tail, plain_tail, struct.pack("<4IQ4H", 5, 6, 7, 8, 9, 0, 0, 1, 3))):
        assert named[-32:] == entry and named[8:-32] == plain[8:] and named[:6] == plain[:6]
    assert node[6:8] == bytes([2, 1]) and plain_node[6:8] == bytes([2, 0])
    assert struct.unpack_from("<H", tail, 6)[0] == (1 << 13) + 1


def check_keyed(handle, node, tail, plain_handle, plain_node):
    assert handle[4] == 1 and handle[5] == 1 and plain_handle[5] == 0
    assert len(handle) == len(plain_handle) + 16 == struct.unpack_from("<I", handle, 8)[0]
    assert crc32c(handle[:12] + bytes(4) + handle[16:]) == struct.unpack_from("<I", handle, 12)[0]
    assert handle[-16:] == K(handle[:12] + bytes(4) + handle[16:-16] + bytes(16))
    block, name = struct.unpack_from("<HH", handle, 44)
    at = 48 + block + name
    assert handle[24:40] == K(node) and handle[at:at + 16] == K(tail)
    # All the rest is as without a key.
    assert node[:48] + node[80:] == plain_node[:48] + plain_node[80:]
    assert handle[16:24] + handle[40:at] + handle[at + 16:-16] \
        == plain_handle[16:24] + plain_handle[40:at] + plain_handle[at + 16:]
    shape = Shape(handle[48:48 + block])
    meant = [[[(p * 7 + i * 13 - k) % 256 for k in range(2)] for i in range(3)] for p in range(8)]
    meant[3] = None
    for c in range(2):
        named = b"WMKC" + node[8:16] + struct.pack("<I", 4) + shape.write_chunk(meant[4 * c:4 * c + 4])
        assert node[48 + 16 * c:64 + 16 * c] == K(named)


def main():
    assert crc32c(b"123456789") == 0xE3069283
    folder = pathlib.Path(sys.argv[1])
    files = sorted(folder.glob("*.wmk"))
    assert len(files) >= 10, files
    for path in files:
        data = path.read_bytes()
        document = read_document(data)
        check_ids(document[0], document[1], document[4])
        assert write_document(*document) == data, path
        print(path.name, len(data), "bytes,", len(document[4]), "rows")
    check_objects(*((folder / name).read_bytes() for name in ("handle.bin", "node.bin", "tail.bin", "node_list.bin")))
    check_named(*((folder / name).read_bytes() for name in ("node_named.bin", "tail_named.bin", "node.bin", "tail.bin")))
    check_keyed(*((folder / name).read_bytes() for name in ("handle_keyed.bin", "node_keyed.bin", "tail.bin", "handle.bin", "node.bin")))
    print("handle, node, tail, node list; digests", "checked" if xxhash else "not checked: no module xxhash")


main()
