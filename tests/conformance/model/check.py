"""Checks of the executable specification by itself.

  python3 check.py [SEED]

Each scenario below is named after the rules that it is about. It must hold, and must fail when any of these rules is switched
off: a rule that is switched off unnoticed is not specified. Then random schedules: a step begun with a batch must be the same
as the version, the events one by one, and the begin. Prints the seed of those, and exits 1 if anything failed.
"""
import random
import sys

from store import ALL, AUDIT, CAPACITY, EXTERNAL, NEVER, NOT_CAPTURED, Store

SCENARIOS = []


def about(*rules):
    """Registers a scenario: a function of the rules that are off."""
    def register(scenario):
        SCENARIOS.append((scenario, rules))
        return scenario
    return register


def whole(block):
    return [(block, r) for r in range(4)]


def step(store, number, rows, version=1, events=()):
    """Begins, submits and lands a step; the value of a row is (step, row)."""
    store.begin_step(number, version, list(events), rows)
    store.submit(number, [(number, i) for i in range(len(rows))])
    store.land_one(number)


def steps_of(store, block, rows=4):
    """The step of each row, or the reason why it is missing."""
    snapshot = store.snapshot([block], 0, rows)
    seen = [row.reason or row.step for row in snapshot.read()]
    snapshot.release()
    return seen


@about('own seals come after the claims', 'protected rows')
def an_own_seal_protects_from_the_step_after_its_own(off):
    store = Store(off=off)
    store.event(('bind', 1))
    step(store, 1, [(1, 0), (1, 1)])     # its draft (1, 1) is rejected
    store.schedule(2, 1)
    store.event(('seal', 1, 'key', 2))
    step(store, 2, [(1, 1), (1, 2), (1, 3)])
    step(store, 3, [(1, 1)])
    assert steps_of(store, 1) == [1, 2, 2, 2]
    assert store.table[1, 0].sealed == 2


@about('own seals come after the claims')
def a_seal_without_a_step_is_of_the_step_begun_next(off):
    store = Store(off=off)
    store.event(('bind', 1))
    step(store, 3, whole(1))
    store.event(('seal', 1, 'key', 0))
    assert store.table[1, 0].sealed == 0
    store.schedule(5, 1)                 # a schedule without a forward
    store.schedule(7, 1)
    step(store, 8, [])
    assert store.table[1, 0].sealed == 8
    assert store.index['key' and (1, 'key', 0)] is store.table[1, 0].page


@about('an own seal belongs to a life')
def what_ends_a_life_ends_its_own_seal(off):
    for ends in (('bind', 1), ('copy', 2, 1, ALL), ('copy', 2, 1, 2), ('move', [(2, 1)]), ('reset',)):
        store = Store(off=off)
        store.event(('bind', 2))
        step(store, 1, whole(2), events=[('bind', 1)])
        store.event(('seal', 1, 'old', 0))
        store.event(ends)
        step(store, 2, whole(1))
        assert not store.own_seals and store.table[1, 0].sealed == 0, ends
        assert (1, 'old', 0) not in store.index, ends


@about('a move carries own seals along')
def a_move_carries_the_own_seal_of_its_block(off):
    store = Store(off=off)
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    store.report([('seal', 1, 'one', 0), ('seal', 2, 'two', 0), ('move', [(1, 2), (2, 1)])])
    step(store, 2, [])
    assert store.table[2, 0].seal_key == (1, 'one', 0) and store.table[1, 0].seal_key == (1, 'two', 0)


@about()
def of_two_own_seals_the_last_one_counts_and_in_the_order_reported(off):
    store = Store(off=off)
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    store.report([('seal', 1, 'old', 0), ('seal', 2, 'key', 0), ('seal', 1, 'key', 0), ('move', [(2, 3)])])
    step(store, 2, [])
    assert store.index == {(1, 'key', 0): store.table[3, 0].page}   # the first of two equal pages stays
    assert store.table[1, 0].seal_key == (1, 'key', 0)


@about('a life between steps begins with the next step')
def late_news_of_the_last_step_spares_the_next_owner(off):
    store = Store(off=off)
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, whole(2), events=[('bind', 2), ('seal', 2, 'key', 2)])
    store.report([('release', 1), ('bind', 1), ('copy', 2, 1, ALL)])
    store.event(('truncate', 1, 0, 2))   # of the owner before
    step(store, 3, [])
    assert steps_of(store, 1) == [2, 2, 2, 2]


@about('truncate follows a move', 'truncate knows the life')
def a_truncation_in_the_schedule_of_a_move_means_the_rows_that_moved(off):
    store = Store(off=off)
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [], events=[('move', [(1, 2)]), ('truncate', 2, 1, 1)])
    assert steps_of(store, 2) == [1, NEVER, NEVER, NEVER]
    step(store, 3, [], events=[('truncate', 2, 0, 1)])   # later: of the owner before the move
    assert steps_of(store, 2)[0] == 1
    store.report([('seal', 2, 'key', 3), ('bind', 3, 'key'), ('move', [(3, 4)]), ('truncate', 4, 0, 1)])
    assert steps_of(store, 4)[0] == 1    # its own life began in this schedule, with a bind


@about('a late truncation spares a later seal')
def a_truncation_of_before_the_seal_leaves_it_on_a_shared_page(off):
    store = Store(off=off)
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [], events=[('copy', 1, 3, ALL), ('seal', 1, 'one', 2)])
    step(store, 3, [], events=[('seal', 3, 'three', 3)])
    step(store, 4, [], events=[('truncate', 3, 3, 2)])     # the page has the first seal's step
    assert store.table[3, 0].sealed == 3 and store.table[3, 0].page.sealed == 2
    step(store, 5, [], events=[('truncate', 3, 4, 3)])
    assert not store.table[3, 0].sealed and not store.table[3, 0].page.sealed


@about('a keyed bind knows the version of its schedule', 'index knows the version')
def a_keyed_bind_looks_up_under_the_version_of_its_schedule(off):
    store = Store(off=off)
    step(store, 1, whole(1), 1, [('bind', 1), ('seal', 1, 'key', 1)])
    store.schedule(2, 2)                 # new weights
    store.event(('bind', 5, 'key'))
    assert store.covered_prefix([5], 4) == 0
    store.begin(2, 2, [])
    store.drop(2)
    assert steps_of(store, 5) == [EXTERNAL] * 4
    store.schedule(3, 1)                 # and back
    store.event(('bind', 6, 'key'))
    assert store.covered_prefix([6], 4) == 4


@about('a page found under another version is lost')
def a_page_found_under_another_version_is_lost_at_the_begin(off):
    store = Store(off=off)
    step(store, 1, whole(1), 1, [('bind', 1), ('seal', 1, 'key', 1)])
    store.report([('bind', 5, 'key'), ('bind', 6, 'key'), ('bind', 7, 'key')])    # no schedule says that 2 comes
    store.report([('move', [(6, 8)]), ('copy', 5, 9, ALL), ('copy', 5, 10, 2), ('bind', 7)])
    assert [store.covered_prefix([b], 4) for b in (5, 8, 9, 10, 7)] == [4, 4, 4, 2, 0]
    store.begin(2, 2, [(5, 3)])
    store.drop(2)
    assert steps_of(store, 5) == [EXTERNAL] * 3 + [CAPACITY]
    assert [steps_of(store, b) for b in (8, 9, 10)] == [[EXTERNAL] * 4] * 3
    assert steps_of(store, 7) == [NEVER] * 4 and steps_of(store, 1) == [1] * 4
    step(store, 3, [])                   # the next begin has nothing to do with them


@about('a snapshot sees nothing reported after it')
def a_snapshot_sees_what_was_reported_before_it_and_nothing_after(off):
    store = Store(off=off)
    step(store, 1, whole(1), events=[('bind', 1)])
    store.schedule(2, 1)
    before = store.snapshot([1], 0, 4)
    store.event(('bind', 1))             # popped for the next owner
    after = store.snapshot([1], 0, 4)
    store.begin(2, 1, whole(1))
    assert [r.step for r in before.read()] == [1] * 4
    store.submit(2, ['new'] * 4)
    store.land_one(2)
    assert [r.reason for r in after.read()] == [NEVER] * 4


@about('a dropped begin claims')
def a_begin_that_is_dropped_claims(off):
    store = Store(off=off)
    step(store, 1, whole(1), events=[('bind', 1)])
    store.event(('seal', 1, 'key', 0))
    store.begin(2, 1, [(1, 3), (1, 2, False), (2, 0)], dropped=True)   # it may write over a rejected draft
    assert not store.steps and store.table[1, 0].sealed == 2
    assert steps_of(store, 1) == [1, 1, 'not captured', CAPACITY]
    store.begin(3, 1, [(1, 0), (2, 1)], device=True, dropped=True)
    assert steps_of(store, 1)[0] == 1    # protected
    assert steps_of(store, 2, 2) == [CAPACITY, CAPACITY]


@about('lost slots are not a run without rows')
def lost_slots_forget_the_range(off):
    store = Store(off=off)
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2), ('seal', 2, 'key', 1)])
    store.begin(2, 1, [(1, 1), (1, 2), (2, 0)], device=True)
    store.submit(2, [])
    store.lose_slots(2)
    assert steps_of(store, 1) == [1, NOT_CAPTURED, NOT_CAPTURED, 1] and steps_of(store, 2) == [1] * 4


@about('a device drop spares protected rows')
def a_dropped_device_step_spares_what_an_earlier_one_has_yet_to_land_in_a_sealed_page(off):
    for at_begin in (False, True):
        store = Store(off=off)
        store.begin_step(1, 1, [('bind', 1), ('bind', 2), ('seal', 1, 'key', 1)], [(1, 0), (1, 1), (2, 0)], device=True)
        store.submit(1, [((1, 0), 'a'), ((2, 0), 'b')])
        store.begin(2, 1, [(1, 0), (1, 1), (2, 0), (2, 1, False)], device=True, dropped=at_begin)
        if not at_begin:
            store.drop(2)
        store.land_one(1)
        assert steps_of(store, 1) == [1, CAPACITY, NEVER, NEVER]
        assert steps_of(store, 2) == [CAPACITY, NOT_CAPTURED, NEVER, NEVER]


@about('a host step takes device claims away')
def a_host_step_takes_away_what_a_device_step_has_yet_to_land(off):
    for asked in (True, False):
        store = Store(off=off)
        store.begin_step(1, 1, [('bind', 1)], [(1, 0), (1, 1)], device=True)
        store.begin(2, 1, [(1, 1) if asked else (1, 1, False)])
        store.submit(2, [None])
        store.land_one(2)
        store.submit(1, [((1, 0), 'a'), ((1, 1), 'b')])
        store.land_one(1)
        assert steps_of(store, 1, 2) == [1, NOT_CAPTURED]


@about('a cancelled claim leaves the reason before it')
def a_cancelled_claim_leaves_the_reason_before_it(off):
    store = Store(off=off)
    step(store, 1, [(1, 0)], events=[('bind', 1)])
    store.begin_step(2, 2, [('bind', 2, 'elsewhere')], [(1, 0), (1, 1), (2, 0)])
    store.cancel(2)
    assert steps_of(store, 1, 2) == [CAPACITY, NEVER] and steps_of(store, 2, 2) == [EXTERNAL, EXTERNAL]


@about()
def a_reset_says_capacity_and_rows_that_were_not_asked_for_not_captured(off):
    store = Store(off=off)
    step(store, 1, [(1, 0), (2, 0, False), (2, 1, False)], events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 2) == [NOT_CAPTURED] * 2 + [NEVER] * 2
    store.report([('copy', 2, 3, 1), ('reset',)])
    assert [steps_of(store, b) for b in (1, 2, 3)] == [[CAPACITY] * 4, [NOT_CAPTURED] * 2 + [NEVER] * 2, [NOT_CAPTURED] + [NEVER] * 3]


def poisoned(off):
    """Step 1 has landed; 2 is submitted; 3 and 4 are begun; 5 and 6 were lost, and 4 and 6 are still open."""
    store = Store(off=off, blocks=range(8))
    step(store, 1, whole(1) + whole(4), events=[('bind', 1), ('retain', 1), ('bind', 4), ('seal', 4, 'key', 1)])
    kept = store.snapshot([1], 0, 4)
    store.begin_step(2, 1, [('bind', 2)], whole(2))
    store.submit(2, [2] * 4)
    store.begin_step(3, 1, [('bind', 3)], whole(3))
    store.begin_step(4, 1, [('bind', 5)], [(5, 0)])
    pending = store.snapshot([2, 3, 5], 0, 9)
    store.event(('seal', 1, 'late', 0))
    store.poison([4, 6], 3, 6)
    return store, kept, pending


@about('poison empties the table')
def poison_empties_table_and_index(off):
    store, kept, _ = poisoned(off)
    assert [store.covered_prefix([b], 4) for b in range(8)] == [0] * 8
    assert not store.index and store.table[1, 0].refs == 2 and store.table[4, 0].refs == 1
    assert {store.table[b, 0].reason for b in range(8)} == {CAPACITY}
    store.event(('bind', 7, 'key'))
    assert store.table[7, 0].page is None
    assert [r.step for r in kept.read()] == [1] * 4   # live snapshots are untouched


@about('poison revokes claims')
def poison_revokes_the_claims_of_steps_in_flight(off):
    store, _, pending = poisoned(off)
    assert sorted(store.steps) == [2, 4] and store.submitted() == [2]
    store.land_one(2)
    store.submit(4, ['four'])
    store.land_one(4)
    store.submit(6, ['six'])             # its begin was lost
    assert [r.reason for r in pending.read()] == [CAPACITY] * 9


@about('poison discards own seals')
def after_poison_the_log_goes_on(off):
    store, _, _ = poisoned(off)
    store.land_one(2)
    store.drop(4)
    store.cancel(6)
    assert store.current == 3 and store.last == 6
    step(store, 7, whole(1), 3)
    assert store.table[1, 0].sealed == 0
    assert steps_of(store, 1) == [7] * 4


@about('no life is known after poison')
def a_late_seal_after_poison_is_taken_back_by_a_late_truncation(off):
    store, _, _ = poisoned(off)
    store.land_one(2)
    store.drop(4)
    store.event(('seal', 1, 'late', 6))
    store.event(('truncate', 1, 0, 6))   # a rewind, after the step that filled the block
    step(store, 7, whole(1))
    step(store, 8, whole(1))
    assert steps_of(store, 1) == [8] * 4


@about('the audit makes rows missing')
def the_rows_of_a_voided_page_are_missing(off):
    store = Store(off=off)
    step(store, 1, [(1, 0), (1, 1)], events=[('bind', 1), ('seal', 1, 'key', 1)])
    store.begin_step(2, 1, [], [(1, 2)])
    store.void(store.table[1, 0].page)
    store.submit(2, ['two'])
    store.land_one(2)                    # what lands later is not of the rows that were compared
    assert steps_of(store, 1) == [AUDIT, AUDIT, 2, NEVER]


def turned_over(off, turns, spare_pages):
    """A store with a page for each of two blocks, which are bound again each turn; nobody reads meanwhile."""
    store, held = Store(max_pages=2, spare_pages=spare_pages, off=off), []
    for turn in range(1, turns + 1):
        step(store, turn, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
        held.append(store.snapshot([1, 2], 0, 8))
    return store, held, [[row.reason or row.step for row in snapshot.read()] for snapshot in held]


@about('detached pages do not count')
def a_slow_reader_takes_no_page_from_the_blocks(off):
    store, held, rows = turned_over(off, 4, 6)
    assert rows == [[turn] * 8 for turn in (1, 2, 3, 4)]
    step(store, 5, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 1) == steps_of(store, 2) == [CAPACITY] * 4    # all spare pages are used
    held[2].release()
    step(store, 6, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 1) == steps_of(store, 2) == [6] * 4


@about('a page that was copied out is given back')
def a_slow_reader_whose_pages_were_copied_out_costs_no_page(off):
    store, held, rows = turned_over(off, 3, 4)
    for page in (0, 1):
        held[0].copy_out(page)
    step(store, 4, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 1) == steps_of(store, 2) == [4] * 4
    assert [[row.reason or row.step for row in snapshot.read()] for snapshot in held] == rows
    for snapshot in held:
        snapshot.release()
    assert len(store.pages) - len(store.free) == 2


@about()
def without_spare_pages_a_slow_reader_costs_rows(off):
    _, _, rows = turned_over(off, 2, 0)
    assert rows == [[1] * 8, [CAPACITY] * 8]
    _, _, rows = turned_over(off, 3, 2)
    assert rows == [[1] * 8, [2] * 8, [CAPACITY] * 8]


@about('a held page is evicted only for a free one', 'only unreferenced pages are evicted')
def a_page_that_a_snapshot_has_is_evicted_while_a_page_is_free(off):
    for spare_pages, lost in ((0, 2), (1, 1)):
        store = Store(max_pages=2, spare_pages=spare_pages, off=off)
        step(store, 1, whole(1), events=[('bind', 1)])
        step(store, 2, whole(2), events=[('bind', 2)])
        held = store.snapshot([1], 0, 4)
        store.report([('release', 1), ('release', 2)])
        step(store, 3, whole(3), events=[('bind', 3)])
        assert steps_of(store, 3) == [3] * 4
        assert steps_of(store, lost) == [CAPACITY] * 4 and steps_of(store, 3 - lost) == [3 - lost] * 4
        assert [row.step for row in held.read()] == [1] * 4
    step(store, 4, whole(4), events=[('retain', 2), ('bind', 4)])
    assert steps_of(store, 4) == [CAPACITY] * 4 and steps_of(store, 2) == [2] * 4


@about('unsealed pages are evicted first')
def unsealed_pages_are_evicted_before_sealed_ones(off):
    store = Store(max_pages=3, off=off)
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, whole(2) + whole(3), events=[('bind', 2), ('bind', 3)])
    store.report([('release', 1), ('release', 2), ('release', 3)])
    step(store, 3, whole(4) + whole(5), events=[('bind', 4), ('bind', 5)])
    assert steps_of(store, 1) == [1] * 4 and steps_of(store, 2) == steps_of(store, 3) == [CAPACITY] * 4


# ---- a batch is its records one by one

class Random:
    """Random records on few blocks, seeded. `split`: the events of a batch are reported outside it."""

    def __init__(self, seed, split):
        self.random, self.store, self.split = random.Random(seed), Store(8, 4, blocks=range(6)), split
        self.number, self.version, self.reads = 0, 1, []

    def event(self):
        r, block, other = self.random, self.random.randrange(6), self.random.randrange(6)
        key, late = 'k%d' % r.randrange(4), max(1, self.number - r.randrange(3))
        kind = r.choice('bind bind keyed seal seal own own copy partial move swap truncate retain release reset'.split())
        if kind == 'reset' and r.random() < .8 or kind in ('copy', 'partial') and block == other:
            kind = 'bind'
        return {'bind': ('bind', block), 'keyed': ('bind', block, key), 'seal': ('seal', block, key, late),
                'own': ('seal', block, key, r.choice((0, self.number + 1))), 'copy': ('copy', block, other, ALL),
                'partial': ('copy', block, other, r.randrange(9)), 'move': ('move', [(block, other)]),
                'swap': ('move', [(block, other), (other, block)]) if block != other else ('move', [(block, other)]),
                'truncate': ('truncate', block, r.randrange(8), late), 'retain': ('retain', block),
                'release': ('release', block), 'reset': ('reset',)}[kind]

    def run(self):
        r, store = self.random, self.store
        for _ in range(12):
            events = [self.event() for _ in range(r.randrange(1, 7))]
            device, dropped = r.random() < .2, r.random() < .1
            rows = [(r.randrange(6), r.randrange(8), False)[:2 if r.random() < .9 else 3] for _ in range(r.randrange(8))]
            self.number += r.choice((1, 1, 1, 3)) if not any(e[0] == 'seal' and e[3] == self.number + 1 for e in events) else 1
            self.version += r.random() < .1
            if self.split:
                store.schedule(self.number, self.version)
                for event in events:
                    store.event(event)
                events = []
            store.begin_step(self.number, self.version, events, set(rows) if device else rows, device, dropped)
            if not dropped:
                values = [(self.number, row) for row in rows]
                ends = r.random()
                if ends < .1:
                    store.drop(self.number)
                elif ends < .2:
                    store.cancel(self.number)
                else:
                    store.submit(self.number, [(slot[:2], v) for slot, v in zip(rows, values)] if device else values)
            open_steps = sorted(store.submitted())
            while open_steps and r.random() < .7:
                store.land_one(open_steps.pop(0))
            self.reads.append((sorted(store.own_seals), [store.covered_prefix([b], 8) for b in range(6)]))
        for n in sorted(store.submitted()):
            store.land_one(n)
        self.reads.append(store.snapshot(list(range(6)), 0, 48).read())
        return self.reads


def fails(scenario, off):
    try:
        scenario(off)
    except (AssertionError, KeyError, AttributeError) as error:
        return error or True
    return None


def main(seed):
    bad = []
    for scenario, rules in SCENARIOS:
        if fails(scenario, ()):
            bad.append('%s: %r' % (scenario.__name__, fails(scenario, ())))
        for rule in rules:
            if not fails(scenario, (rule,)):
                bad.append('%s does not notice that this rule is off: %s' % (scenario.__name__, rule))
    valid = 0
    for i in range(seed, seed + 400):
        batch, split = Random(i, False).run(), Random(i, True).run()
        valid += sum(row.reason is None for row in batch[-1])
        if batch != split:
            bad.append('seed %d: a batch is not its records one by one' % i)
    if valid < 400:
        bad.append('random schedules leave too few valid rows to tell anything: %d' % valid)
    print('%d scenarios, random schedules from seed %d, %d valid rows, %d failures' % (len(SCENARIOS), seed, valid, len(bad)))
    for text in bad[:10]:
        print(text)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
