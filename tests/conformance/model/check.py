"""Checks of the executable specification by itself.

  python3 check.py [FIRST_SEED] [SEEDS]

Each scenario below is named after the rules that it is about. It must hold, and must fail when any of these rules is switched
off: a rule that is switched off unnoticed is not specified. Then the engine with an oracle (engine.py) on so many seeds, with
every pair of its features in turn. Exits 1 if anything failed.
"""
import sys

import engine
from store import ALL, AUDIT, CAPACITY, EXTERNAL, INVALID, NEVER, NOT_CAPTURED, RELEASED, Ids, Missing, Store, rules

SCENARIOS = []


def about(*rules):
    """Registers a scenario: a function of an empty store, of which rules may be off."""
    def register(scenario):
        SCENARIOS.append((scenario, rules))
        return scenario
    return register


def whole(block):
    return [(block, r) for r in range(4)]


def step(store, number, rows, version=1, events=(), state='ready', values=None):
    """A schedule, its events and its step, applied; the value of a row is its step."""
    store.schedule(number, version)
    store.report(events)
    if values is None:
        values = [number] * len(rows)
    store.step(number, version, rows, Ids(values, state))
    store.apply()


def steps_of(store, block, rows=4, last_step=1 << 60, keys=()):
    """The step of each row, or the reason why it is missing. Of any owner, unless one is given."""
    snapshot = store.snapshot([block], 0, rows, last_step, keys)
    store.apply()
    seen = [row.reason or row.step for row in snapshot.read()]
    snapshot.release()
    return seen


@about()
def nothing_behind_a_step_is_applied_before_it(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    ids = [Ids(), Ids()]
    store.step(2, 1, [(1, 0)], ids[0])
    store.event(('bind', 1))
    after = store.snapshot([1], 0, 4, 1 << 60)
    store.step(3, 1, [(1, 1)], ids[1])
    ids[1].rows, ids[1].state = ['b'], 'ready'   # ids may come in any order
    store.apply()
    assert not after.ready() and len(store.log) == 5
    ids[0].rows, ids[0].state = ['a'], 'ready'
    store.apply()
    assert [row.reason for row in after.read()] == [NEVER] * 4 and not store.log
    assert steps_of(store, 1) == [NEVER, 3, NEVER, NEVER]


@about()
def a_number_that_stands_before_the_open_schedule_is_refused(store):
    for tell in (lambda s: s.step(5, 1, [], Ids([], 'ready')), lambda s: s.schedule(4, 1), lambda s: s.event(('seal', 1, 'k', 7))):
        store = Store(off=store.off)
        store.schedule(5, 1)
        store.schedule(6, 1)
        assert fails(tell, store), 'events of the next schedule would be of the blocks of this one'
        assert len(store.log) == 2       # nothing is half done


@about('own seals come after the rows', 'protected rows')
def an_own_seal_protects_from_the_step_after_its_own(store):
    for number in (0, 2):
        store = Store(off=store.off)
        step(store, 1, [(1, 0), (1, 1)], events=[('bind', 1)])       # its draft (1, 1) is rejected
        step(store, 2, [(1, 1), (1, 2), (1, 3)], events=[('seal', 1, 'key', number)])
        step(store, 3, [(1, 1)])
        assert steps_of(store, 1) == [1, 2, 2, 2]


@about('a forward that did not run takes its own seals back')
def a_forward_that_did_not_run_takes_its_own_seals_back(store):
    for number in (0, 8):
        for told in (True, False):
            store = Store(off=store.off)
            step(store, 7, whole(1), events=[('bind', 1)])           # 2 and 3 are rejected drafts, no truncation is reported
            if told:
                step(store, 8, [(1, 2), (1, 3)], events=[('seal', 1, 'key', number)], state='not run')
            else:
                store.schedule(8, 1)
                store.event(('seal', 1, 'key', number))
            step(store, 9, [(2, 0)], events=[('bind', 2)])           # of another request
            step(store, 10, [(1, 2), (1, 3)], events=[('seal', 1, 'key', 10)])
            assert steps_of(store, 1) == [7, 7, 10, 10]


@about()
def a_forward_that_did_not_run_leaves_the_rows_as_they_are(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, whole(1), state='not run')
    assert steps_of(store, 1) == [1] * 4
    step(store, 3, [(1, 0), (1, 1)], state='lost')
    assert steps_of(store, 1) == [NOT_CAPTURED] * 2 + [1] * 2


@about()
def a_step_of_another_number_or_version_than_the_schedule_implies_a_version_record(store):
    step(store, 1, whole(1), events=[('bind', 1), ('bind', 2)])
    store.schedule(2, 1)
    store.event(('seal', 1, 'key', 2))
    store.step(2, 2, [(1, 3)], Ids([2], 'ready'))        # it is the schedule that it was, of other weights
    store.schedule(3, 2)
    store.event(('seal', 2, 'key', 0))
    store.step(4, 2, [], Ids([], 'ready'))               # it is another one: the seal goes
    store.apply()
    assert store.table[1, 0].sealed == 2 and store.version[2] == 2 and steps_of(store, 1) == [1, 1, 1, 2]
    assert store.table[2, 0].sealed == 0


@about('an own seal belongs to a life')
def what_ends_a_life_ends_its_own_seal(store):
    for ends in (('bind', 1), ('copy', 2, 1, ALL), ('copy', 2, 1, 2), ('move', [(2, 1)]), ('reset',)):
        store = Store(off=store.off)
        step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
        step(store, 2, whole(1), events=[('seal', 1, 'old', 0), ends])
        assert store.table[1, 0].sealed == 0 and not store.index, ends


@about('a move carries own seals along')
def a_move_carries_the_own_seal_of_its_block(store):
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    step(store, 2, [], events=[('seal', 1, 'one', 0), ('seal', 2, 'two', 0), ('move', [(1, 2), (2, 1)])])
    assert store.table[2, 0].seal_key == (1, 'one', 0) and store.table[1, 0].seal_key == (1, 'two', 0)


@about()
def of_two_own_seals_the_last_one_counts_and_in_the_order_reported(store):
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    step(store, 2, [], events=[('seal', 1, 'old', 0), ('seal', 2, 'key', 0), ('seal', 1, 'key', 0), ('move', [(2, 3)])])
    assert store.index == {(1, 'key', 0): store.table[3, 0].page}    # the first of two equal pages stays
    assert store.table[1, 0].seal_key == (1, 'key', 0)


@about('a life between steps begins with the next step')
def late_news_of_the_last_step_spares_the_next_owner(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, whole(2), events=[('bind', 2), ('seal', 2, 'key', 2)])
    store.report([('release', 1), ('bind', 1), ('copy', 2, 1, ALL), ('truncate', 1, 0, 2)])  # the last one: of the owner before
    assert steps_of(store, 1) == [2, 2, 2, 2]


@about('truncate compares steps')
def a_truncation_of_an_earlier_step_spares_the_rows_of_later_ones(store):
    step(store, 1, [(1, 0), (1, 1), (1, 2)], values=[1, 1, None], events=[('bind', 1)])
    step(store, 2, [(1, 1)])
    store.event(('truncate', 1, 0, 1))   # what is missing goes like what is there: no time decides
    assert steps_of(store, 1) == [NEVER, 2, NEVER, NEVER]


@about('late news follows a move', 'truncate knows the life')
def a_truncation_in_the_schedule_of_a_move_means_the_rows_that_moved(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [], events=[('move', [(1, 2)]), ('truncate', 2, 1, 1)])
    assert steps_of(store, 2) == [1, NEVER, NEVER, NEVER]
    step(store, 3, [], events=[('truncate', 2, 0, 1)])               # later: of the owner before the move
    assert steps_of(store, 2)[0] == 1
    step(store, 4, [], events=[('seal', 2, 'key', 3)])
    step(store, 5, [], events=[('bind', 3, 'key'), ('move', [(3, 4)]), ('truncate', 4, 0, 1)])
    assert steps_of(store, 4)[0] == 1    # its own life began in this schedule, with a bind


@about('a late truncation spares a later seal', 'a rewind leaves the sealed page')
def a_truncation_of_before_the_seal_leaves_it_on_a_shared_page(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [], events=[('copy', 1, 3, ALL), ('seal', 1, 'one', 2)])
    step(store, 3, [], events=[('seal', 3, 'three', 3)])
    step(store, 4, [], events=[('truncate', 3, 3, 2)])               # the page has the first seal's step
    assert store.table[3, 0].sealed == 3 and store.table[3, 0].page.sealed == 2
    step(store, 5, [], events=[('truncate', 3, 4, 3)])
    assert not store.table[3, 0].sealed and not store.table[3, 0].page.sealed
    assert store.table[1, 0].page.sealed == 2


@about('another version is written')
def rows_of_other_weights_are_written_again_in_a_sealed_block(store):
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [(1, 3)], version=2)
    assert steps_of(store, 1) == [1, 1, 1, 2]


@about('an overwritten page leaves the index')
def a_page_of_other_weights_leaves_the_index(store):
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [(1, 3)], version=2)
    step(store, 3, [], events=[('bind', 5, 'key')])
    assert steps_of(store, 5) == [EXTERNAL] * 4


@about()
def a_late_seal_of_a_number_that_was_never_told_has_the_version_after_it(store):
    step(store, 1, whole(1), 1, [('bind', 1), ('bind', 2)])
    step(store, 3, whole(2), 2)
    store.report([('seal', 1, 'key', 2), ('seal', 2, 'other', 2)])
    store.apply()
    assert list(store.index) == [(2, 'other', 0)]        # the rows of block 1 are of version 1


@about('index knows the version')
def a_keyed_bind_looks_up_under_the_version_of_its_schedule(store):
    step(store, 1, whole(1), 1, [('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [], 2, [('bind', 5, 'key')])          # new weights
    assert steps_of(store, 5) == [EXTERNAL] * 4
    step(store, 3, [], 1, [('bind', 6, 'key')])          # and back
    assert steps_of(store, 6) == [1] * 4


@about('a page found under another version is lost')
def a_page_found_under_another_version_than_that_of_the_next_step_that_ran_is_lost(store):
    step(store, 1, whole(1), 1, [('bind', 1), ('seal', 1, 'key', 1)])
    store.report([('bind', 5, 'key'), ('bind', 6, 'key'), ('bind', 7, 'key')])       # no schedule says that 2 comes
    store.report([('move', [(6, 8)]), ('copy', 5, 9, ALL), ('copy', 5, 10, 2), ('bind', 7)])
    assert [steps_of(store, b) for b in (5, 8, 9, 10)] == [[1] * 4] * 3 + [[1, 1, NEVER, NEVER]]
    store.schedule(2, 2)                 # also if its step does not run
    assert [steps_of(store, b) for b in (5, 8, 9, 10)] == [[EXTERNAL] * 4] * 4
    step(store, 2, [(5, 3)], 2, state='lost')
    assert steps_of(store, 5) == [EXTERNAL] * 3 + [NOT_CAPTURED]
    assert steps_of(store, 7) == [NEVER] * 4 and steps_of(store, 1) == [1] * 4


@about('a late seal knows the life', 'late news follows a move')
def a_late_seal_of_the_owner_before_is_not_of_the_next(store):
    step(store, 1, whole(1) + whole(3), events=[('bind', 1), ('bind', 3)])
    step(store, 2, whole(1), events=[('bind', 1)])
    store.report([('move', [(3, 4)]), ('seal', 4, 'moved', 1), ('seal', 1, 'key', 1)])
    store.apply()
    assert (1, 'key', 0) not in store.index and not store.table[1, 0].sealed
    assert store.index[1, 'moved', 0] is store.table[4, 0].page
    store.event(('seal', 1, 'key', 2))
    store.apply()
    assert store.index[1, 'key', 0] is store.table[1, 0].page


@about('a row that asked beats one that did not')
def of_two_rows_of_a_slot_the_one_that_asked_counts(store):
    step(store, 1, [(1, 0)], events=[('bind', 1)])
    rows = [(1, 1, False), (1, 1), (1, 1, False), (1, 1)]
    store.step(2, 1, rows, Ids([('first', 0), ('second', 0), ('third', 0), ('fourth', 0)], 'ready'))
    taken = store.snapshot([1], 0, 2, 1 << 60)
    store.apply()
    assert [row.value for row in taken.read()] == [1, ('second', 0)]


@about()
def a_page_found_under_the_version_of_the_next_step_that_ran_stays(store):
    step(store, 1, whole(1), 1, [('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [], 2)
    store.schedule(3, 1)
    store.report([('bind', 5, 'key'), ('copy', 5, 6, 2)])
    step(store, 4, [], 1, state='not run')
    step(store, 5, [], 1)
    step(store, 6, [], 2)                # what became of it is settled
    assert steps_of(store, 5) == [1] * 4 and steps_of(store, 6) == [1, 1, NEVER, NEVER]


@about('index knows the ordinal')
def the_pages_of_a_block_are_found_by_key_in_their_order(store):
    store = Store(8, 4, off=store.off)
    step(store, 1, [(1, r) for r in range(8)], events=[('bind', 1), ('seal', 1, 'key', 1)], values=list('abcdefgh'))
    step(store, 2, [], events=[('bind', 2, 'key')])
    snapshot = store.snapshot([2], 0, 8, 1 << 60)
    store.apply()
    assert [row.value for row in snapshot.read()] == list('abcdefgh')


@about('the better page stays', 'a page of two versions is not indexed')
def ids_decide_nothing_in_the_index(store):
    for values in ([1] * 4, [None] * 4, [Missing(INVALID)] * 4):
        store = Store(off=store.off)
        step(store, 1, whole(1)[:3], events=[('bind', 1), ('seal', 1, 'key', 1)])
        step(store, 2, whole(2), values=values, events=[('bind', 2), ('seal', 2, 'key', 2)])
        assert store.index == {(1, 'key', 0): store.table[2, 0].page}, values        # more rows that requests asked for
        step(store, 3, whole(3)[:3] + [(3, 3, False)], events=[('bind', 3), ('seal', 3, 'key', 3)])
        assert store.index == {(1, 'key', 0): store.table[2, 0].page}
        step(store, 4, [(4, 0), (4, 1)], values=values[:2], events=[('bind', 4)])
        step(store, 5, [(4, 2), (4, 3)], version=2, events=[('seal', 4, 'other', 5)])
        assert (2, 'other', 0) not in store.index, 'rows of two versions'


@about('first of a slot wins')
def of_two_rows_of_one_slot_the_first_one_counts(store):
    for first in (None, 'a'):
        store = Store(off=store.off)
        step(store, 1, [(1, 0), (1, 0)], values=[first, 'b'], events=[('bind', 1)])
        assert steps_of(store, 1, 1) == [1 if first else NOT_CAPTURED] and store.count['ignored'] == 1


@about('the first row that is stored counts')
def a_row_that_left_no_page_is_not_the_first_of_its_slot(store):
    step(store, 1, [(1, 0, False), (1, 0), (1, 0), (1, 1, False)], events=[('bind', 1)], values=['a', 'b', 'c', 'd'])
    snapshot = store.snapshot([1], 0, 2, 1 << 60)
    store.apply()
    assert [row.value or row.reason for row in snapshot.read()] == ['b', NOT_CAPTURED] and store.count['ignored'] == 1
    store = Store(max_pages=1, off=store.off)
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [(2, 0)] * 2, events=[('bind', 2)])               # no page is free, for either row
    assert store.count['no page'] == 2 and steps_of(store, 2, 1) == [CAPACITY]


@about('snapshots are immutable')
def a_snapshot_keeps_the_rows_that_it_saw(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    before = store.snapshot([1], 0, 3, 1 << 60)
    step(store, 2, [(1, 2), (1, 3)])
    assert [row.step for row in before.read()] == [1] * 3 and steps_of(store, 1) == [1, 1, 2, 2]
    assert store.count['copy on write'] == 1


@about('a key finds the copy that a snapshot made necessary')
def what_a_key_finds_does_not_depend_on_readers(store):
    for held in (False, True):
        store = Store(off=store.off)
        step(store, 1, whole(1), values=[1, 1, 1, None], events=[('bind', 1), ('seal', 1, 'key', 1)])
        if held:
            store.snapshot([1], 0, 4, 1 << 60)
        step(store, 2, [(1, 3)])
        step(store, 3, [], events=[('bind', 2, 'key')])
        assert steps_of(store, 2) == [1, 1, 1, 2]
        step(store, 4, [], events=[('bind', 2), ('truncate', 1, 2, 4)])
        step(store, 5, [], events=[('bind', 2, 'key')])
        assert steps_of(store, 2) == [1, 1, 1, 2]    # a rewind leaves the sealed page to the key


@about('second binding', 'a partial copy gets a page of its own')
def a_fork_does_not_see_what_the_other_writes(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, [(1, 3)], events=[('copy', 1, 2, ALL), ('copy', 1, 3, 2)])
    assert steps_of(store, 2) == [1] * 4 and steps_of(store, 1) == [1, 1, 1, 2] and steps_of(store, 3) == [1, 1, NEVER, NEVER]


@about('bind starts a new life')
def a_bind_starts_a_new_life(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    store.event(('bind', 1))
    assert steps_of(store, 1) == [NEVER] * 4


@about('move is simultaneous')
def two_blocks_change_places(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    step(store, 2, whole(2), events=[('bind', 2), ('retain', 2)])
    store.event(('move', [(1, 2), (2, 1)]))
    assert steps_of(store, 1) == [2] * 4 and steps_of(store, 2) == [1] * 4
    assert store.table[1, 0].refs == 2 and store.table[2, 0].refs == 1


@about('by key is marked')
def rows_found_by_key_say_so(store):
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1)])
    store.event(('bind', 2, 'key'))
    snapshot = store.snapshot([2], 0, 4, 1 << 60)
    store.apply()
    assert {row.how for row in snapshot.read()} == {'by key'}


@about('a row that is written here is not by key')
def a_row_written_into_a_page_found_by_key_is_of_here(store):
    step(store, 1, [(1, 0)], events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [(2, 1)], events=[('bind', 1), ('bind', 2, 'key')])
    snapshot = store.snapshot([2], 0, 2, 1 << 60)
    store.apply()
    assert [row.how for row in snapshot.read()] == ['by key', 'here']


@about('absent rows keep their reason')
def rows_without_a_page_keep_their_reason_when_a_page_comes(store):
    step(store, 1, [(1, 0), (2, 2, False), (3, 1, False), (3, 0)], events=[('bind', 1, 'elsewhere'), ('bind', 2), ('bind', 3)])
    assert steps_of(store, 1) == [1] + [EXTERNAL] * 3
    assert steps_of(store, 2) == [NOT_CAPTURED] * 3 + [NEVER]
    assert steps_of(store, 3) == [1, NOT_CAPTURED, NEVER, NEVER]


@about('a block without users has no rows')
def a_block_without_users_has_no_rows_of_the_request(store):
    step(store, 1, whole(1), events=[('bind', 1)])
    store.event(('release', 1))
    assert steps_of(store, 1, last_step=0) == [RELEASED] * 4
    store.event(('retain', 1))
    assert steps_of(store, 1, last_step=0) == [1] * 4


@about('no count is known after poison')
def after_poison_a_block_may_have_users_that_are_not_counted(store):
    store = Store(off=store.off, blocks=range(8))
    step(store, 1, whole(1), events=[('bind', 1), ('release', 1)])
    store.poison(1, 6)
    step(store, 7, whole(1))
    assert steps_of(store, 1, last_step=0) == [7] * 4
    step(store, 8, [], events=[('bind', 1), ('release', 1)])
    assert steps_of(store, 1, last_step=0) == [RELEASED] * 4


@about('a later life is of another', 'a row of a later step is of another')
def rows_of_later_lives_and_steps_are_of_another(store):
    step(store, 1, [(1, 0), (1, 1), (2, 0)], events=[('bind', 1), ('bind', 2)])
    step(store, 2, [(1, 2), (1, 3)], events=[('release', 2), ('bind', 2)])
    assert steps_of(store, 1, last_step=1) == [1, 1, RELEASED, RELEASED]
    assert steps_of(store, 2, last_step=1) == [RELEASED] * 4
    assert steps_of(store, 2, last_step=2) == [NEVER] * 4


@about('another key is of another')
def a_page_under_another_key_is_of_another(store):
    step(store, 1, whole(1) + whole(2), events=[('bind', 1), ('seal', 1, 'a', 1), ('bind', 2)])
    assert steps_of(store, 1, keys=['a']) == steps_of(store, 2, keys=['b']) == [1] * 4
    assert steps_of(store, 1, keys=['b']) == [RELEASED] * 4


@about('a seal outlives the page')
def a_seal_outlives_an_evicted_page(store):
    store = Store(max_pages=1, off=store.off)
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1), ('release', 1)])
    step(store, 2, whole(2), events=[('bind', 2), ('release', 2)])
    assert steps_of(store, 1) == [CAPACITY] * 4
    step(store, 3, whole(1), events=[('retain', 1)])
    step(store, 4, whole(1))
    assert steps_of(store, 1) == [3] * 4


@about('only rows that were there are lost', 'a row that finds no page is lost alone')
def rows_that_were_never_there_are_not_called_lost(store):
    store = Store(max_pages=1, off=store.off)
    step(store, 1, [(1, 2)], events=[('bind', 1, 'elsewhere'), ('copy', 1, 5, ALL)])
    step(store, 2, [(2, 0), (2, 3, False)], events=[('release', 1), ('release', 5), ('bind', 2)])
    step(store, 3, [(3, 1)], events=[('bind', 3), ('copy', 1, 4, 3)])
    lost = [EXTERNAL, EXTERNAL, CAPACITY]
    assert [steps_of(store, b) for b in (1, 3, 4)] == [lost + [EXTERNAL], [NEVER, CAPACITY, NEVER, NEVER], lost + [NEVER]]
    step(store, 4, [(3, 2)], events=[('release', 2)])
    assert steps_of(store, 2) == [CAPACITY] * 3 + [NOT_CAPTURED]         # one reason has room beside the lost range
    assert steps_of(store, 3) == [NEVER, CAPACITY, 4, NEVER]


@about()
def a_reset_says_capacity_and_rows_that_were_not_asked_for_not_captured(store):
    step(store, 1, [(1, 0), (2, 0, False), (2, 1, False)], events=[('bind', 1), ('bind', 2)])
    store.report([('copy', 2, 3, 1), ('reset',)])
    assert [steps_of(store, b) for b in (1, 2, 3)] == [[CAPACITY] + [NEVER] * 3, [NOT_CAPTURED] * 2 + [NEVER] * 2, [NOT_CAPTURED] + [NEVER] * 3]


def poisoned(store):
    """Step 1 is applied; 2 waits for its ids; records up to those of 6 are lost behind it."""
    store = Store(off=store.off, blocks=range(8))
    step(store, 1, whole(1) + whole(4), events=[('bind', 1), ('retain', 1), ('bind', 4), ('seal', 4, 'key', 1)])
    kept, ids = store.snapshot([1], 0, 4, 1 << 60), Ids()
    store.step(2, 1, [(2, 0)], ids)
    waits = store.snapshot([2], 0, 1, 1 << 60)
    store.event(('seal', 1, 'late', 0))
    store.poison(3, 6)
    ids.rows, ids.state = [2], 'ready'
    store.apply()
    return store, kept, waits


@about('poison empties the table')
def poison_empties_table_and_index_and_leaves_what_stands_before_it(store):
    store, kept, waits = poisoned(store)
    assert [row.step for row in waits.read()] == [2] and [row.step for row in kept.read()] == [1] * 4
    assert [steps_of(store, b) for b in range(8)] == [[CAPACITY] * 4] * 8
    assert not store.index and store.table[1, 0].refs == 2 and store.table[4, 0].refs == 1


@about()
def after_poison_the_log_continues(store):
    store, _, _ = poisoned(store)
    step(store, 7, whole(1), 3)
    assert store.table[1, 0].sealed == 0 and steps_of(store, 1) == [7] * 4


@about('no life is known after poison')
def a_late_seal_after_poison_is_taken_back_by_a_late_truncation(store):
    store, _, _ = poisoned(store)
    store.event(('seal', 1, 'late', 6))
    store.apply()
    assert store.table[1, 0].sealed == 6
    store.event(('truncate', 1, 0, 6))                  # a rewind, after the step that filled the block
    step(store, 7, whole(1), 3)
    step(store, 8, whole(1), 3)
    assert steps_of(store, 1) == [8] * 4


@about('the audit makes a single row missing')
def a_row_of_other_ids_is_missing_although_its_page_agrees(store):
    store = Store(off=store.off, agree=lambda a, b: 1 if a == b else b)
    step(store, 1, whole(1), values=['a', 'b', 'c', 'd'], events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [(1, 0), (1, 1), (1, 2)], values=['a', .6, .8])
    assert steps_of(store, 1) == [1, AUDIT, 1, 1] and store.count['disagree'] == 2


@about('the audit makes rows missing')
def a_write_that_is_ignored_must_agree_with_what_is_kept(store):
    store = Store(off=store.off, agree=lambda a, b: a == b)
    step(store, 1, [(1, 0), (1, 1), (1, 2)], values=['a', 'b', None], events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, [(1, 0)], values=['a'])
    step(store, 3, [(1, 3)])
    assert steps_of(store, 1) == [1, 1, NOT_CAPTURED, 3]
    step(store, 4, [(1, 0)], values=['other'])
    assert steps_of(store, 1) == [AUDIT, AUDIT, NOT_CAPTURED, AUDIT] and store.count['disagree'] == 1


def turned_over(off, turns, spare_pages):
    """A store with a page for each of two blocks, which are bound again each turn; every reader is late."""
    store, held = Store(max_pages=2, spare_pages=spare_pages, off=off), []
    for turn in range(1, turns + 1):
        step(store, turn, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
        held.append(store.snapshot([1, 2], 0, 8, 1 << 60))
        store.apply()
    return store, held, [[row.reason or row.step for row in snapshot.read()] for snapshot in held]


@about('detached pages do not count')
def a_slow_reader_takes_no_page_from_the_blocks(store):
    store, held, rows = turned_over(store.off, 4, 6)
    assert rows == [[turn] * 8 for turn in (1, 2, 3, 4)]
    step(store, 5, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 1) == steps_of(store, 2) == [CAPACITY] * 4    # all spare pages are used
    held[2].release()
    step(store, 6, whole(1) + whole(2), events=[('bind', 1), ('bind', 2)])
    assert steps_of(store, 1) == steps_of(store, 2) == [6] * 4


@about('a held page is evicted only for a free one', 'only unreferenced pages are evicted')
def a_page_that_a_snapshot_has_is_evicted_while_a_page_is_free(store):
    for spare_pages, lost in ((0, 2), (1, 1)):
        store = Store(max_pages=2, spare_pages=spare_pages, off=store.off)
        step(store, 1, whole(1), events=[('bind', 1)])
        step(store, 2, whole(2), events=[('bind', 2)])
        held = store.snapshot([1], 0, 4, 1 << 60)
        store.report([('release', 1), ('release', 2)])
        step(store, 3, whole(3), events=[('bind', 3)])
        assert steps_of(store, 3) == [3] * 4
        assert steps_of(store, lost) == [CAPACITY] * 4 and steps_of(store, 3 - lost) == [3 - lost] * 4
        assert [row.step for row in held.read()] == [1] * 4
    step(store, 4, whole(4), events=[('release', 2), ('retain', 2), ('bind', 4)])    # a release below zero is ignored
    assert steps_of(store, 4) == [CAPACITY] * 4 and steps_of(store, 2) == [2] * 4


@about('unsealed pages are evicted first')
def unsealed_pages_are_evicted_before_sealed_ones(store):
    store = Store(max_pages=3, off=store.off)
    step(store, 1, whole(1), events=[('bind', 1), ('seal', 1, 'key', 1)])
    step(store, 2, whole(2) + whole(3), events=[('bind', 2), ('bind', 3)])
    store.report([('release', 1), ('release', 2), ('release', 3)])
    step(store, 3, whole(4) + whole(5), events=[('bind', 4), ('bind', 5)])
    assert steps_of(store, 1) == [1] * 4 and steps_of(store, 2) == steps_of(store, 3) == [CAPACITY] * 4


@about()
def the_source_of_a_copy_is_not_evicted_for_it(store):
    store = Store(max_pages=1, spare_pages=1, off=store.off)
    step(store, 1, whole(1), events=[('bind', 1), ('release', 1)])
    step(store, 2, [], events=[('copy', 1, 2, 2)])
    assert steps_of(store, 1) == [1] * 4 and steps_of(store, 2) == [CAPACITY] * 2 + [NEVER] * 2 and store.count['no page'] == 1


def fails(scenario, store):
    try:
        scenario(store)
    except (AssertionError, KeyError, AttributeError) as error:
        return error or True
    return None


def main(first, seeds):
    bad = []
    for scenario, about_rules in SCENARIOS:
        if fails(scenario, Store()):
            bad.append('%s: %r' % (scenario.__name__, fails(scenario, Store())))
        for rule in about_rules:
            if not fails(scenario, Store(off=(rule,))):
                bad.append('%s does not notice that this rule is off: %s' % (scenario.__name__, rule))
    for rule in sorted(rules() ^ {rule for _, about_rules in SCENARIOS for rule in about_rules}):
        bad.append('no scenario, or no line of the specification, is about: %s' % rule)
    print('%d scenarios, %d rules, %d failures' % (len(SCENARIOS), len(rules()), len(bad)))
    for text in bad:
        print(text)
    return 1 if engine.main([str(first), str(seeds)]) or bad else 0


if __name__ == '__main__':
    sys.exit(main(*(int(a) for a in sys.argv[1:] + ['1', '100'][len(sys.argv) - 1:])))
