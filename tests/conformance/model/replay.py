"""Feed recorded flights to the executable specification, and demand the same of every read.

  python3 replay.py FLIGHTS         one JSON value a line, as tests/conformance/flight_dump.cc writes them
  python3 replay.py FLIGHTS --mutations     with each rule of the specification switched off in turn: must be noticed

For each row that was read: the same reason, or the same row (by digest) from the same step and version, with the same
provenance. Prints the first difference of each flight, and exits 1 if there was any.
"""
import json
import sys

from store import ALL, AUDIT, CAPACITY, EXTERNAL, INVALID, NEVER, NOT_CAPTURED, RELEASED, Ids, Missing, Store, rules

REASONS = [None, NEVER, NOT_CAPTURED, EXTERNAL, CAPACITY, INVALID, AUDIT, RELEASED]
PROVENANCES = ['here', 'kept', 'by key']


class Flight:
    def __init__(self, header, off=()):
        self.name, self.block_tokens, self.null = header['name'], header['block_tokens'], set(header['null'])
        self.store = Store(self.block_tokens, header['page_tokens'], off=off,
                           blocks=[b for b in range(header['num_blocks']) if b not in self.null])
        self.told = None                 # the line of a step whose ids are not known yet
        self.snapshots, self.rows, self.difference = {}, 0, None

    def events(self, batch):
        """As tuples; events on null blocks are ignored, pairs of one move are joined."""
        out, pairs = [], []
        for kind, more, block, src, rows, step, key in batch:
            block_is_null = block < 0 or block in self.null
            if kind == 'move':
                pairs.append((src, ('null', len(pairs)) if block_is_null else block))
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

    def step(self, rows=None, state='ready', why=NOT_CAPTURED):
        """The step that was told, with its ids."""
        line, self.told = self.told, None
        slots = [self.slot(s) for s in line['slots']]
        self.store.step(line['step'], line['version'], slots, Ids(rows, state, why))

    def landed(self, line):
        rows = [Missing(REASONS[-v]) if v < 0 else v for v in line['rows']]
        if len(rows) < len(self.told['slots']):
            assert not rows
            return self.step(state='lost')
        self.step(rows)

    def take(self, line):
        what = line['is']
        assert self.told is None or what == 'landed' and line['step'] == self.told['step']
        if what == 'schedule':
            self.store.schedule(line['step'], line['version'])
        elif what == 'events':
            self.store.report(self.events(line['events']))
        elif what == 'step':
            self.told = line
            if line['how'] != 'submit':
                self.step(state='not run' if line['how'] == 'cancel' else 'lost', why=CAPACITY)
        elif what == 'landed':
            self.landed(line)
        elif what == 'poison':
            self.store.poison(line['version'], line['last'])
        elif what == 'voided':
            block, ordinal, key = line['block'], line['ordinal'], tuple(line['key'])
            page = self.store.table[block, ordinal].page if line['by'] == 1 else \
                self.snapshots[line['id']][0].pages[ordinal][0] if line['by'] == 2 else self.store.index[key]
            self.store.void(page, range(page.size) if line['row'] < 0 else [line['row']])
        elif what == 'snapshot':
            self.snapshots[line['id']] = (self.store.snapshot(
                line['blocks'], line['first'], line['last'], line['last_step'], line['keys']), line)
        elif what == 'released':
            self.snapshots.pop(line['id'])[0].release()
        elif what == 'read' and not self.difference:
            self.compare(line)
        self.store.apply()
        if what == 'events':             # null blocks have no rows, whatever was moved onto them
            for where in [where for where in self.store.table if where[0] not in self.store.blocks]:
                self.store._detach(self.store.table.pop(where), NEVER)

    def compare(self, line):
        snapshot, taken = self.snapshots[line['id']]
        rows = snapshot.read()
        for i, (reason, step, version, provenance, digest) in enumerate(line['rows']):
            self.rows += 1
            row = rows[line['begin'] + i - taken['first']]
            theirs = (REASONS[reason], step, version, None if reason else PROVENANCES[provenance], digest or None)
            ours = (row.reason, row.step, row.version, *((None, None) if row.reason else (row.how, row.value)))
            if ours != theirs:
                self.difference = 'read %d, row %d of blocks %s: the store gave %s, the specification %s' % (
                    line['id'], line['begin'] + i, taken['blocks'], theirs, ours)
                return


# Rules that flights cannot notice, or too seldom: those of stores with few pages, and one of two seals of a shared page.
UNNOTICED = {'a late truncation spares a later seal', 'unsealed pages are evicted first',
             'only unreferenced pages are evicted', 'detached pages do not count', 'a held page is evicted only for a free one',
             'the first row that is stored counts', 'a row that finds no page is lost alone'}


def differs(flights, off):
    """Whether a flight differs with this rule switched off. A rule may be what keeps the specification from failing."""
    for lines in flights:
        flight = Flight(lines[0], (off,))
        try:
            for line in lines[1:]:
                flight.take(line)
        except (AssertionError, AttributeError, IndexError, KeyError, ValueError):
            return True
        if flight.difference:
            return True
    return False


def mutations(path):
    flights = []
    with open(path) as file:
        for text in file:
            line = json.loads(text)
            if line['is'] == 'flight':
                flights.append([])
            flights[-1].append(line)
    unnoticed = [rule for rule in sorted(rules()) if not differs(flights, rule)]
    for rule in unnoticed:
        print('%s: %s' % ('expected' if rule in UNNOTICED else 'NOT NOTICED', rule))
    print('%d rules, %d not noticed' % (len(rules()), len(unnoticed)))
    return 1 if set(unnoticed) - UNNOTICED else 0


def main(path, *off):
    if off == ('--mutations',):
        return mutations(path)
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
                flight = Flight(line, off)
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
    sys.exit(main(*sys.argv[1:]))
