"""Feed recorded flights to the executable specification, and demand the same of every read.

  python3 replay.py FLIGHTS         one JSON value a line, as tests/conformance/flight_dump.cc writes them

For each row that was read: the same reason, or the same row (by digest) from the same step and version, and the same
provenance. Prints the first difference of each flight, and exits 1 if there was any.
"""
import json
import sys

from store import ALL, CAPACITY, EXTERNAL, INVALID, NEVER, NOT_CAPTURED, Missing, Store

REASONS = [None, NEVER, NOT_CAPTURED, EXTERNAL, CAPACITY, INVALID, 'audit']
PROVENANCES = ['here', 'kept', 'by key', 'recomputed']


class Flight:
    def __init__(self, header):
        self.name, self.block_tokens, self.null = header['name'], header['block_tokens'], set(header['null'])
        self.store = Store(self.block_tokens, header['page_tokens'])
        self.snapshots, self.rows, self.difference = {}, 0, None

    def events(self, batch):
        """As tuples; events on null blocks are ignored, pairs of one move are joined."""
        out, pairs = [], []
        for kind, more, block, src, rows, step, key in batch:
            block_is_null = block < 0 or block in self.null
            if kind == 'move':
                pairs.append((src, block))
                if not more:
                    out.append(('move', pairs))
                    pairs = []
            elif kind == 'reset':
                out.append(('reset',))
            elif block_is_null:
                continue
            elif kind == 'bind':
                out.append(('bind', block, key) if key else ('bind', block))
            elif kind in ('retain', 'release'):
                out.append((kind, block))
            elif kind == 'seal':
                out.append(('seal', block, key or None, step))
            elif kind == 'copy':
                out.append(('copy', src, block, ALL if rows < 0 else rows))
            elif kind == 'truncate':
                out.append(('truncate', block, rows, step))
        return out

    def slot(self, slot):
        known = slot if slot >= 0 else -2 - slot
        if slot == -1 or known // self.block_tokens in self.null:
            return None
        where = (known // self.block_tokens, known % self.block_tokens)
        return where if slot >= 0 else where + (False,)

    def take(self, line):
        what = line['is']
        if what == 'begin':
            slots = [self.slot(s) for s in line['slots']]
            if line['device']:
                slots = {s for s in slots if s}
            self.store.begin_step(line['step'], line['version'], self.events(line['events']), slots, bool(line['device']))
            if line['dropped']:
                self.store.drop(line['step'])
        elif what == 'end':
            getattr(self.store, line['how'])(line['step'])
        elif what == 'landed':
            rows = [Missing(REASONS[-v]) if v < 0 else v for v in line['rows']]
            if line['slots']:
                slots = [self.slot(s) for s in line['slots']]
                rows = [(s[:2], v) for s, v in zip(slots, rows) if s]
            self.store.submit(line['step'], rows)
            self.store.land_one(line['step'])
        elif what == 'snapshot':
            self.snapshots[line['id']] = [self.store.snapshot(line['blocks'], line['first'], line['last']), line, None]
        elif what == 'released':
            self.snapshots.pop(line['id'])[0].release()
        elif what == 'read' and not self.difference:
            self.compare(line)

    def compare(self, line):
        snapshot, taken, rows = self.snapshots[line['id']]
        if rows is None:
            rows = self.snapshots[line['id']][2] = snapshot.read()
        for i, (reason, step, version, provenance, digest) in enumerate(line['rows']):
            self.rows += 1
            row = rows[line['begin'] + i - taken['first']]
            theirs = (REASONS[reason], step, version, PROVENANCES[provenance], digest or None)
            ours = (row.reason, row.step, row.version, row.how or 'here', None if row.reason else row.value)
            if ours != theirs:
                self.difference = 'read %d, row %d of blocks %s: the store gave %s, the specification %s' % (
                    line['id'], line['begin'] + i, taken['blocks'], theirs, ours)
                return


def main(path):
    flight, flights, rows, bad = None, 0, 0, []

    def close():
        if flight and flight.difference:
            bad.append('%s\n  %s' % (flight.name, flight.difference))

    with open(path) as file:
        for text in file:
            line = json.loads(text)
            if line['is'] == 'flight':
                close()
                rows += flight.rows if flight else 0
                flight = Flight(line)
                flights += 1
            else:
                flight.take(line)
    close()
    rows += flight.rows if flight else 0
    print('%d flights, %d rows compared, %d flights differ' % (flights, rows, len(bad)))
    for text in bad[:10]:
        print(text)
    return 1 if bad or not rows else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
