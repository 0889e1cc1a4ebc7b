"""The store in order, once: every rule of its log as an executable specification, none of the machinery.

A store is a log of records, each applied once, in the order told, when it can be applied whole: version, event, step, snapshot,
poison. A step waits until its ids are ready, lost, or known to be of a forward that did not run; what stands behind it waits with
it, and so nothing is ever pending. Events are tuples. A seal without a step, or of the open schedule, is an *own seal*: it waits
for the rows of that schedule's step, and goes if there is none.
  ('bind', block[, key])   ('retain', block)   ('release', block)   ('seal', block, key, step)   ('copy', src, dst, rows)
  ('move', [(src, dst), ...])   ('truncate', block, row, step)   ('reset',)
Rows of a step are slots (block, offset); (block, offset, False) for a row that did not ask; None = padding, writes no KV. If the
slots come with the ids, the step has the range of slots that it may write, and its ids bring [(slot, value), ...]. Values are
opaque, except for None (not captured) and Missing(reason).
`off` names rules that are switched off; each is tested in exactly one place.
"""
import os
import re
from collections import namedtuple

from store import ALL, AUDIT, CAPACITY, EXTERNAL, NEVER, NOT_CAPTURED, Missing, Row

# What is known of a row: the step that wrote it (0: none), why it is missing (None: it is valid), and whether its request asked.
Stamp = namedtuple('Stamp', 'step reason asked')


class Ids:
    """The ids of a step, as far as they are known. `state`: open | ready | lost | not run; `why`: the reason of lost rows."""

    def __init__(self, rows=None, state='open', why=NOT_CAPTURED):
        self.rows, self.state, self.why = rows, state, why


class Page:
    def __init__(self, size):
        self.size = size
        self.clear(NEVER)

    def clear(self, reason):
        self.stamp, self.value, self.how = [Stamp(0, reason, False)] * self.size, [None] * self.size, ['here'] * self.size
        self.sealed = 0                  # the step it was sealed with; 0 = not sealed
        self.index_key = self.seal_key = None           # its key in the key index; the key its seal gave it
        self.entries = set()             # that are bound to it
        self.snapshots = self.high_water = self.used = 0   # live snapshots; first row that none of them sees; last use

    def valid(self, r):
        return self.stamp[r].reason is None

    def asked(self):
        """Rows that were written for requests that asked, whatever became of their ids."""
        return sum(stamp.asked for stamp in self.stamp)


class Entry:                             # one page of one block, in one life of the block
    def __init__(self, reason, life_start, refs):
        self.page, self.by_key, self.found_early = None, False, False   # found by key before its schedule was open
        self.reason, self.life_start, self.refs = reason, life_start, refs
        self.reason_rows = None          # without a page: the reason is of so many rows, the others are never written
        self.sealed, self.seal_key = 0, None            # the seal's step and index key: they outlive an evicted page
        self.own_seal = None             # (key, step that it named), until the step of its schedule
        self.moved = False               # its life began with the move of one from an earlier step


class Snapshot:
    def __init__(self, store, first, last):
        self.store, self.pages, self.first, self.last = store, None, first, last
        self.begin = first - first % store.page_tokens   # of its first page
        self.copied = set()              # which of its pages were copied out

    def ready(self):
        return self.pages is not None

    def read(self):
        """One Row a position of [first, last)."""
        assert self.ready(), 'read before everything that was told before it has been applied'
        out, size = [], self.store.page_tokens
        for pos in range(self.first, self.last):
            page, reasons, by_key = self.pages[(pos - self.begin) // size]
            step, reason, _ = page.stamp[pos % size] if page else (0, reasons[pos % size], False)
            how = 'by key' if by_key else page.how[pos % size] if page else None
            out.append(Row(None, 0, 0, how, reason) if reason else
                       Row(page.value[pos % size], step, self.store.version[step], how, None))
        return out

    def release(self):
        for page in {p for i, (p, _, _) in enumerate(self.pages) if p and i not in self.copied}:
            self._return(page)
        self.pages = None

    def copy_out(self, i):
        """Pages are short, and snapshots alone hold this one: its rows move to memory that is the snapshot's own."""
        page, reasons, by_key = self.pages[i]
        assert page.snapshots and not page.entries and not page.index_key and i not in self.copied
        rows = Page(page.size)
        rows.stamp, rows.value, rows.how = list(page.stamp), list(page.value), list(page.how)
        self.pages[i] = rows, reasons, by_key
        self.copied.add(i)
        off = self.store.off
        if all(page is not p for p, _, _ in self.pages) and 'a page that was copied out is given back' not in off:
            self._return(page)

    def _return(self, page):
        page.snapshots -= 1
        if not page.snapshots:
            page.high_water = 0
        self.store._recycle(page)


class Store:
    def __init__(self, block_tokens=4, page_tokens=4, max_pages=0, spare_pages=0, off=(), agree=None, blocks=()):
        assert block_tokens % page_tokens == 0
        self.block_tokens, self.page_tokens, self.pages_per_block = block_tokens, page_tokens, block_tokens // page_tokens
        self.max_pages, self.spare_pages = max_pages, spare_pages   # 0: as many as are needed; beside these, for detached pages
        self.off, self.agree, self.blocks = frozenset(off), agree, blocks
        self.log, self.told, self.told_open = [], 0, 0   # records not applied yet; the last step told; the schedule told last
        self.table, self.index, self.version = {}, {}, {}
        self.pages, self.free, self.last = [], [], 0
        self.open, self.current = 0, 0   # the open schedule (0: none yet); the weights version of the latest one
        self.sealing = []                # entries with an own seal, in the order reported
        self.source = None               # the page that is being copied
        self.count = dict.fromkeys(('evicted', 'no page', 'ignored', 'disagree', 'copy on write', 'outside', 'second seal'), 0)

    # ---- the log: what the engine tells ----------------------------------------------------------------------------
    def schedule(self, step, version):
        """A version record: what is told from now on belongs to the schedule of `step`, whose weights have this version."""
        assert step > self.told and step >= self.told_open
        self.told_open = step
        self.log.append((self._schedule, step, version))

    def event(self, event):
        if event[0] == 'seal':
            assert event[3] <= max(self.told, self.told_open), 'the seal names a step that was not told'
        self.log.append((self._event, event))

    def report(self, events):
        for e in events:
            self.event(e)

    def step(self, step, version, rows, ids, device=False):
        """With the version record, unless that is told already. `device`: `rows` is a range, and the slots come with the ids."""
        if self.told_open != step:
            self.schedule(step, version)
        self.told, self.told_open = step, 0
        self.log.append((self._step, step, version, rows, ids, device))

    def snapshot(self, blocks, first, last):
        taken = Snapshot(self, first, last)
        self.log.append((self._hold, taken, blocks))
        return taken

    def poison(self, version, last):
        """Records up to those of step `last` were lost here."""
        self.told, self.told_open = max(self.told, last), 0
        self.log.append((self._poison, version, last))

    def apply(self, n=1 << 30):
        """Applies at most n records, as far as ids are there; returns how many."""
        done = 0
        while self.log and done < n and not (self.log[0][0] == self._step and self.log[0][4].state == 'open'):
            what, *args = self.log.pop(0)
            what(*args)
            done += 1
        return done

    # ---- records, as they are applied ------------------------------------------------------------------------------
    def _schedule(self, step, version):
        if self.open and self.open != step:      # no step was told in the schedule before
            self._discard_own_seals()
        if version != self.current:
            self._lose_pages_found_early()
        for entry in self.table.values():
            entry.found_early = False
        self.open, self.current = step, version

    def _step(self, step, version, rows, ids, device):
        assert self.open == step and self.current == version
        self.open, self.last, self.version[step] = 0, step, version
        if ids.state == 'not run':
            self._discard_own_seals()
            return
        values = ids.rows if ids.state == 'ready' else None
        if device:
            rows = self._rows_of_range(rows, values, Missing(ids.why))
        else:
            values = [Missing(ids.why)] * len(rows) if values is None else values
            rows = [(slot[:2], len(slot) == 2, value) for slot, value in zip(rows, values) if slot is not None]
        done, touched = {}, {}
        for slot, asked, value in rows:
            if slot in done and 'first of a slot wins' not in self.off:
                self._ignore(done[slot], slot[1] % self.page_tokens, value)
            else:
                done[slot] = self._write(step, slot, asked, value, touched)
        self._apply_own_seals(step)
        for page in touched:             # of entries that were sealed while they had no page
            if page.seal_key and not page.index_key and page.entries:
                self._contend_for_key(page, version)

    def _rows_of_range(self, may, wrote, lost):
        """(slot, asked, value) of a step whose slots came with its ids; if they were lost, of all that it may have written."""
        asked = {}
        for slot in may:                 # at one slot a row that asked beats one that did not
            asked[slot[:2]] = asked.get(slot[:2], False) or len(slot) == 2
        if wrote is None:
            wrote = [(slot, lost) for slot in sorted(asked)] if 'lost slots are not a run without rows' not in self.off else []
        self.count['outside'] += sum(slot not in asked for slot, _ in wrote)
        return [(slot, asked[slot], value) for slot, value in wrote if slot in asked]

    def _write(self, step, slot, asked, value, touched):
        """Returns the page that has the row now."""
        block, ordinal, r = slot[0], slot[1] // self.page_tokens, slot[1] % self.page_tokens
        entry = self._entry(block, ordinal, step)
        page = entry.page
        if page and self._protected(page, r):
            self._ignore(page, r, value)
            return page
        if page and self._seen_by_others(page, r):
            page = self._copy_on_write(entry)
        elif not page and not asked and entry.reason != EXTERNAL:
            rows = entry.reason_rows     # rows of one reason, or of none, need no page
            if entry.reason == NEVER:
                entry.reason, entry.reason_rows = NOT_CAPTURED, r + 1
            elif rows is not None:
                entry.reason_rows = max(rows, r + 1)
            return None
        elif not page:
            page = self._new_page(entry)
        if page is None:
            self.count['no page'] += 1
            return None
        page.used = step
        touched[page] = True
        # It stands in the index for the rows that it was sealed with: rows of other weights make it another page, and
        # one with another seal by now contends for that one's key.
        if page.index_key and 'an overwritten page leaves the index' not in self.off and \
                (page.index_key != page.seal_key or page.seal_key[0] != self.current):
            self._unindex(page)
        reason = NOT_CAPTURED if not asked or value is None else str(value) if isinstance(value, Missing) else None
        page.value[r], page.stamp[r], page.how[r] = value, Stamp(step, reason, asked), 'here'
        return page

    def _protected(self, page, r):
        """A valid row whose page was sealed before this step's own seals, and that these weights would give again."""
        return 'protected rows' not in self.off and page.sealed and page.valid(r) and \
            (self.version[page.stamp[r].step] == self.current or 'another version is written' in self.off)

    def _ignore(self, page, r, value):
        """The write is ignored, and must agree with what is kept."""
        self.count['ignored'] += 1
        if page is None:
            return
        page.how[r] = 'kept'
        known = page.valid(r) and value is not None and not isinstance(value, Missing)
        if self.agree and known and not self.agree(page.value[r], value):
            self.count['disagree'] += 1
            self.void(page)

    def _apply_own_seals(self, step):
        for entry in self.sealing:
            if self.table.get(entry.where) is entry or 'an own seal belongs to a life' in self.off:
                key, named = entry.own_seal
                self._seal_entry(self.table[entry.where], step if named == 0 else named, key)
        self._forget_own_seals()

    def _discard_own_seals(self):
        """Their forward did not run: without a seal rows are written again, which is never wrong."""
        if 'a forward that did not run takes its own seals back' not in self.off:
            self._forget_own_seals()

    def _forget_own_seals(self):
        for entry in self.sealing:
            entry.own_seal = None
        self.sealing = []

    def _lose_pages_found_early(self):
        """A bind before the version record looked its key up under the version before: its KV is not of those weights."""
        for entry in self.table.values():
            if entry.found_early and 'a page found under another version is lost' not in self.off:
                self._detach(entry, EXTERNAL)

    def _poison(self, version, last):
        """Any block may have had another life meanwhile: nothing is known of any."""
        self.version.setdefault(last, version)
        self.open, self.current, self.last = 0, version, max(last, self.last)
        if 'poison empties the table' not in self.off:
            for page in list(self.index.values()):
                self._unindex(page)
            for where in [(block, o) for block in self.blocks for o in range(self.pages_per_block)]:
                old = self._entry(*where)
                self._detach(old, CAPACITY)
                # When the present life began is not known: late truncations are accepted, as late seals are.
                self._put(where, Entry(CAPACITY, 0 if 'no life is known after poison' not in self.off else self._now(), old.refs))

    def _now(self):
        """The step of what is told now: a life that begins behind a step is not of that step."""
        return self.open or self.last + ('a life between steps begins with the next step' not in self.off)

    def void(self, page):
        """The audit found that the rows of the page are of two tokens."""
        for r, stamp in enumerate(page.stamp):
            if page.valid(r) and 'the audit makes rows missing' not in self.off:
                page.stamp[r] = stamp._replace(reason=AUDIT)

    # ---- pages -----------------------------------------------------------------------------------------------------
    def _seen_by_others(self, page, r):
        return r < page.high_water and 'snapshots are immutable' not in self.off or \
            len(page.entries) > 1 and 'second binding' not in self.off

    def _put(self, where, entry):
        self.table[where], entry.where = entry, where
        return entry

    def _entry(self, block, ordinal, life_start=None):
        return self.table.get((block, ordinal)) or self._put((block, ordinal), Entry(NEVER, life_start or self._now(), 1))

    def _attached(self):
        """The pages that a block or a key has; the others that are taken are detached."""
        return [p for p in self.pages if p.entries or p.index_key]

    def _any_free(self):
        return bool(self.free) or not self.max_pages or len(self.pages) < self.max_pages + self.spare_pages

    def _take(self):
        counted = self._attached() if 'detached pages do not count' not in self.off else [p for p in self.pages if p not in self.free]
        if self.max_pages and len(counted) >= self.max_pages or not self._any_free():
            return None
        if not self.free:
            self.pages.append(Page(self.page_tokens))
            return self.pages[-1]
        return self.free.pop()

    def _evict(self):
        """Takes the least recently used page from its blocks and its key, an unsealed one if there is any; one that is held,
        and so stays taken, only while a page is free. The source of a copy is not evicted for it."""
        free = self._any_free() or 'a held page is evicted only for a free one' in self.off
        old = [p for p in self._attached() if p is not self.source and (free or not p.snapshots) and
               ('only unreferenced pages are evicted' in self.off or all(not e.refs for e in p.entries))]
        if not old:
            return False
        unsealed = 'unsealed pages are evicted first' not in self.off
        victim = min(old, key=lambda p: (unsealed and (bool(p.sealed), bool(p.entries)), p.used))
        self.count['evicted'] += 1
        for entry in list(victim.entries):
            self._detach(entry, CAPACITY)
        if victim.index_key:
            self._unindex(victim)
        return True

    def _new_page(self, entry):
        """A page for an entry that has none, with its reason and its seal; None, and the reason is capacity, if there is none."""
        page = self._take()
        if page is None and self._evict():
            page = self._take()
        if page is None:
            entry.reason, entry.reason_rows = CAPACITY, None
            return None
        page.clear(NEVER if 'absent rows keep their reason' in self.off else entry.reason)
        if entry.reason_rows is not None:
            page.stamp[entry.reason_rows:] = [Stamp(0, NEVER, False)] * (self.page_tokens - entry.reason_rows)
        page.sealed, page.seal_key = (entry.sealed, entry.seal_key) if 'a seal outlives the page' not in self.off else (0, None)
        self._attach(entry, page, False)
        page.used = self.last
        return page

    def _attach(self, entry, page, by_key):
        entry.page, entry.by_key = page, by_key
        page.entries.add(entry)

    def _copy_on_write(self, entry):
        """The block leaves a page that others see, with every row and the seal."""
        old, by_key = entry.page, entry.by_key
        self.source = old
        self._detach(entry, NEVER)
        self.count['copy on write'] += 1
        page = self._new_page(entry)
        if page:
            self._copy_rows(old, page, self.page_tokens, by_key)
            page.sealed, page.seal_key = old.sealed, old.seal_key
        self.source = None
        self._recycle(old)
        return page

    def _copy_rows(self, old, page, rows, by_key):
        page.stamp[:rows], page.value[:rows] = old.stamp[:rows], old.value[:rows]
        page.how[:rows] = ['by key'] * rows if by_key else old.how[:rows]

    def _detach(self, entry, reason):
        page, entry.page, entry.reason, entry.by_key, entry.reason_rows = entry.page, None, reason, False, None
        if page:
            page.entries.discard(entry)
            self._recycle(page)

    def _recycle(self, page):
        if not (page.entries or page.index_key or page.snapshots or page is self.source) and page not in self.free:
            self.free.append(page)

    def _unindex(self, page):
        del self.index[page.index_key]
        page.index_key = None
        self._recycle(page)

    # ---- keys ------------------------------------------------------------------------------------------------------
    def _index_key(self, version, key, ordinal):
        return ((0 if 'index knows the version' in self.off else version), key,
                (0 if 'index knows the ordinal' in self.off else ordinal))

    def _version_of(self, step):
        """Of a step that was lost: that of the last one before it, else that of the first one."""
        first = min(self.version, default=0)
        return self.version.get(step, self.version.get(max((n for n in self.version if n < step), default=first), 0))

    def _seal_entry(self, entry, step, key):
        version = self._version_of(step)
        entry.sealed = entry.sealed or step
        entry.seal_key = None if key is None else self._index_key(version, key, entry.where[1])
        page = entry.page                # a seal makes no page: the first row does
        if page:
            page.sealed, page.seal_key = page.sealed or step, entry.seal_key
            self._contend_for_key(page, version)

    def _contend_for_key(self, page, version):
        """Of the pages sealed with a key, the index has the one with more rows that requests asked for (the first, if equal)."""
        key = page.seal_key
        if key is None or key[0] and key[0] != version:
            return
        if {self.version[s.step] for s in page.stamp if s.step and s.asked} - {version} and \
                'a page of two versions is not indexed' not in self.off:
            return
        old = self.index.get(key)
        if old is page:
            return
        if old:
            self.count['second seal'] += 1
            if old.asked() >= page.asked() or 'the better page stays' in self.off:
                return
            self._unindex(old)
        if page.index_key:
            self._unindex(page)
        self.index[key], page.index_key = page, key

    # ---- events ----------------------------------------------------------------------------------------------------
    def _event(self, e):
        getattr(self, '_' + e[0])(*e[1:])

    def _bind(self, block, key=None):
        for o in range(self.pages_per_block):
            old = self._entry(block, o)
            if 'bind starts a new life' in self.off and key is None:
                old.refs = 1
                continue
            self._detach(old, NEVER)
            entry = self._put((block, o), Entry(NEVER if key is None else EXTERNAL, self._now(), 1))
            page = self.index.get(self._index_key(self.current, key, o)) if key is not None else None
            if page:
                self._attach(entry, page, 'by key is marked' not in self.off)
                entry.found_early, page.used = not self.open, self._now()

    def _retain(self, block):
        for o in range(self.pages_per_block):
            self._entry(block, o).refs += 1

    def _release(self, block):
        for o in range(self.pages_per_block):
            self._entry(block, o).refs -= 1

    def _seal(self, block, key, step):
        own = (step == 0 or step > self.last) and 'own seals come after the rows' not in self.off
        for o in range(self.pages_per_block):
            entry = self._entry(block, o)
            if own:
                if entry.own_seal:       # of two, the last one counts
                    self.sealing.remove(entry)
                entry.own_seal = key, step
                self.sealing.append(entry)
            else:
                step = step or self._now()
                self.version.setdefault(step, self.current)
                self._seal_entry(entry, step, key)

    def _copy(self, src, dst, rows):
        for o in range(self.pages_per_block):
            n = self.page_tokens if rows == ALL else max(0, min(self.page_tokens, rows - o * self.page_tokens))
            a, old = self._entry(src, o), self._entry(dst, o)
            self.source = a.page
            self._detach(old, NEVER)
            b = self._put((dst, o), Entry(NEVER, self._now(), max(old.refs, 1)))
            if rows == ALL or 'a partial copy gets a page of its own' in self.off:
                b.reason, b.reason_rows, b.found_early = a.reason, a.reason_rows, a.found_early
                if a.page:
                    self._attach(b, a.page, a.by_key)
            elif n and a.page:
                b.found_early = a.found_early
                if self._new_page(b):
                    self._copy_rows(a.page, b.page, n, a.by_key)
                else:
                    self.count['no page'] += 1
            elif n:
                b.reason, b.reason_rows = a.reason, n if a.reason_rows is None else min(n, a.reason_rows)
            page, self.source = self.source, None
            if page:
                self._recycle(page)

    def _move(self, pairs):
        for group in [[p] for p in pairs] if 'move is simultaneous' in self.off else [pairs]:
            ordinals = range(self.pages_per_block)
            taken = [((d, o), self.table.pop((s, o), None)) for s, d in group for o in ordinals]
            for where, entry in taken:
                old = self.table.pop(where, None)
                if old:
                    self._detach(old, NEVER)
                if entry:
                    entry.moved = entry.moved or entry.life_start < self._now()
                    entry.life_start = self._now()
                    if 'a move carries own seals along' in self.off and entry.own_seal:
                        self.sealing.remove(entry)
                        entry.own_seal = None
                    self._put(where, entry)

    def _truncate(self, block, row, upto):
        for o in range(self.pages_per_block):
            entry, r0 = self.table.get((block, o)), max(0, row - o * self.page_tokens)
            if entry is None:
                continue
            moved = entry.moved and entry.life_start == self._now() and 'truncate follows a move' not in self.off
            if upto < entry.life_start and not moved and 'truncate knows the life' not in self.off:
                continue                 # news of an earlier life of the block
            # A page that blocks share has the first step of their seals; this block may have been sealed after `upto`.
            later = entry.sealed > upto and 'a late truncation spares a later seal' not in self.off
            sealed = entry.page.sealed if entry.page else entry.sealed
            rewound = 0 < sealed <= upto and not later and 'a rewind leaves the sealed page' not in self.off
            if rewound:                  # the seal outlives its page; it does not outlive a rewind
                entry.sealed, entry.seal_key = 0, None
            if entry.page:
                self._rewind(entry, r0, upto, rewound)

    def _rewind(self, entry, first, upto, unseal):
        page = entry.page
        hit = [r for r in range(first, self.page_tokens)
               if page.stamp[r].step and (page.stamp[r].step <= upto or 'truncate compares steps' in self.off)]
        if unseal or any(self._seen_by_others(page, r) for r in hit):
            page = self._copy_on_write(entry)
        if page is None:
            return
        for r in hit:
            page.stamp[r] = Stamp(0, NEVER, False)
        if unseal:
            page.sealed, page.seal_key = 0, None

    def _reset(self):
        for page in list(self.index.values()):
            self._unindex(page)
        for where, old in list(self.table.items()):
            if old.page:
                self._detach(old, CAPACITY)
            entry = self._put(where, Entry(old.reason, self._now(), 1))
            entry.reason_rows = old.reason_rows

    # ---- reading ---------------------------------------------------------------------------------------------------
    def _hold(self, taken, blocks):
        taken.pages = []
        for pos in range(taken.begin, taken.last if taken.first < taken.last else 0, self.page_tokens):
            entry = self.table.get((blocks[pos // self.block_tokens], pos % self.block_tokens // self.page_tokens))
            page = entry.page if entry else None
            if page and all(page is not p for p, _, _ in taken.pages):
                page.snapshots += 1
            if page:
                page.high_water = max(page.high_water, min(self.page_tokens, taken.last - pos))
            reasons = [NEVER] * self.page_tokens
            if entry:
                rows = self.page_tokens if entry.reason_rows is None else entry.reason_rows
                reasons = [entry.reason] * rows + reasons[rows:]
            taken.pages.append((page, reasons, entry.by_key if entry else False))


def rules():
    """The names of all rules that can be switched off."""
    with open(os.path.abspath(__file__)) as file:
        return set(re.findall(r"'([^'\n]+)'(?: not)? in (?:self\.)?off\b", file.read()))
