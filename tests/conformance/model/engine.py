"""A random engine with an oracle of its KV, which drives the executable specification of the store.

  python3 engine.py [FIRST_SEED] [SEEDS] [FEATURE=CHANCE ...] [cancel_as=told|not_run|lost]
  python3 engine.py --mutations FIRST_SEED SEEDS

The engine has a paged KV cache with prefix hits, preemption, forks, drafts, a host tier and a tier by key, several weights, and
forwards that fail; it knows the token and the weights of every KV slot. A row that is read as valid must be of that token and of
those weights, and a row that is missing must have been made so by the engine. Each seed forces a pair of features in turn, and
draws the others. Arrival of ids and application of records are drawn apart from the schedule, and what is read must not depend
on them. Prints how many rows were valid, and how many were missing for which reason and what excuse of the engine, with a seed
of each; exits 1 if a row is wrong, of another step than it should be, missing without an excuse, or depends on time.
"""
import collections
import itertools
import random
import sys

from store import ALL, CAPACITY, NOT_CAPTURED, Ids, Store, rules

FEATURES = ('draft late completion silence_on_reject foreign_truncate preempt fork partial swap defrag tier bump rollback '
            'cancel lost silent mute stream abort reset few rewind full_hit truncate_late seal_late padding seal_zero pause early').split()
SWITCHES = 'late completion silence_on_reject foreign_truncate few seal_zero'.split()    # on or off for a whole run
BUNDLES = (                              # what only many features together reach; of every fifth seed
    dict(cancel=.3, pause=.3, draft=.4, silence_on_reject=1, late=0, completion=0, few=0),
    dict(foreign_truncate=1, draft=.4, truncate_late=.5, tier=.5, swap=.5, rewind=.4, fork=.3),
    dict(bump=.2, rollback=.9, tier=.9, early=.7, full_hit=.7, few=0, swap=0),
    dict(tier=.9, few=0, swap=0, stream=.4, lost=.2, silent=.3, partial=.3, fork=.3, full_hit=.5))
PAIRS = list(itertools.combinations(FEATURES, 2))
PAGE = 4


class Cell:
    """What is in one slot of the KV cache: the token, named by its prefix, why its row may be missing, and the step that its row
    is of (None: not known)."""

    def __init__(self, prefix=None, version=0, excuse=None, step=None):
        self.prefix, self.version, self.excuse, self.step = prefix, version, excuse, step

    def copy(self):
        return Cell(self.prefix, self.version, self.excuse, self.step)


class Tape:
    """What the engine tells the store; and when ids arrive and records are applied."""

    def __init__(self, timing, **options):
        self.timing, self.waiting, self.store = timing, [], Store(**options)
        self.arrives, self.shuffled = timing.choice((.2, .5, .9)), timing.random() < .5

    def step(self, step, version, rows, values, fate):
        """`fate`: ready | lost | dropped | run in vain (lost, too) | not run | not told."""
        if fate != 'not told':
            ids = Ids(why=CAPACITY if fate in ('lost', 'dropped') else NOT_CAPTURED)
            self.store.step(step, version, rows, ids)
            self.waiting.append((ids, values, fate))

    def go_on(self, everything=False):
        """Some ids arrive, in any order, and some records are applied."""
        draw = self.timing
        while self.waiting and (everything or draw.random() < self.arrives):
            i = draw.randrange(len(self.waiting)) if self.shuffled and not everything else 0
            ids, values, fate = self.waiting.pop(i)
            if fate == 'ready':
                ids.rows = values
            ids.state = fate if fate in ('ready', 'not run') else 'lost'
        if everything or draw.random() < .7:
            self.store.apply(1 << 30 if everything or draw.random() < .5 else draw.randrange(6))


class Request:
    def __init__(self, number, chain, goal, mute):
        self.number, self.chain, self.goal, self.mute = number, chain, goal, mute    # chain: a prefix for each token
        self.start_again()

    def start_again(self):
        self.blocks, self.computed, self.sealed, self.done = [], 0, 0, None   # done: the step that gave the last token


class Engine:
    def __init__(self, seed, timing=1, force=(), off=()):
        self.seed, self.draw = seed, random.Random(seed)
        self.features = self._draw_features(dict(force))
        few, self.size = self.features['few'], self.draw.choice((PAGE, PAGE, 2 * PAGE))
        self.blocks, self.host_blocks = 14 if self.size == PAGE else 9, 8
        self.tape = Tape(random.Random(seed * 7 + timing), off=off, block_tokens=self.size, page_tokens=PAGE,
                         max_pages=self.blocks * self.size // PAGE * 2 // 3 if few else 0,
                         spare_pages=self.draw.choice((0, 2, 6)) if few else 0,
                         blocks=range(self.blocks + self.host_blocks), agree=self.draw.choice((None, lambda a, b: a == b)))
        self.store = self.tape.store
        every = range(self.blocks + self.host_blocks)
        self.kv = [[Cell() for _ in range(self.size)] for _ in every]
        self.users, self.hash = [0 for _ in every], [None for _ in every]
        self.sealed = [False for _ in every]     # None: not known, since the store shares its page with another block
        self.free, self.cached, self.host, self.tier = collections.deque(range(self.blocks)), {}, {}, {}
        self.step, self.version, self.newest, self.requests = 0, 1, 1, 0
        self.running, self.waiting, self.late_news, self.reading = [], [], [], []
        self.lost_elsewhere = {}         # (prefix, version) -> why the row of a copy of this KV may be missing
        self.resets, self.reads, self.counts, self.seeds = 0, [], collections.Counter(), {}

    def _draw_features(self, force):
        self.cancel_as = force.pop('cancel_as', None) or self.draw.choice(('told', 'not_run', 'lost'))
        features = {name: self.draw.choice((.05, .15, .4)) if self.draw.random() < .4 else 0 for name in FEATURES}
        if self.seed % 5 == 0:
            features.update(BUNDLES[self.seed // 5 % len(BUNDLES)])
        for name in PAIRS[self.seed % len(PAIRS)]:
            features[name] = features[name] or .3
        features.update(force)
        features.update({name: int(features[name] > 0) for name in SWITCHES})
        if features['late']:
            features['draft'] = 0        # the scheduler would not know the slots of the next step
        return features

    def chance(self, feature):
        return self.features[feature] and self.draw.random() < self.features[feature]

    def count(self, what, where=''):
        self.counts[what] += 1
        self.seeds.setdefault(what, 'seed %d %s' % (self.seed, where))

    # ---- blocks ----------------------------------------------------------------------------------------------------
    def pop_block(self, key=None):
        block = self.free.popleft()
        if self.hash[block] is not None:
            self._evict(block)
        self.store.event(('bind', block, key) if key else ('bind', block))
        self.users[block], self.sealed[block] = 1, False
        self.kv[block] = [Cell() for _ in range(self.size)]
        return block

    def _evict(self, block):
        name, self.hash[block] = self.hash[block], None
        del self.cached[name]
        room = [b for b in range(self.blocks, self.blocks + self.host_blocks) if b not in self.host.values()]
        if room and self.chance('swap'):
            self.host[name] = room[0]
            self.store.event(('move', [(block, room[0])]))
            self._carry(block, room[0])
        elif self.chance('tier'):
            self.tier[name, self.kv[block][-1].version] = [cell.copy() for cell in self.kv[block]]

    def _carry(self, source, target):
        self.kv[target], self.kv[source] = self.kv[source], [Cell() for _ in range(self.size)]
        self.sealed[target], self.sealed[source] = self.sealed[source], False

    def release(self, block):
        self.store.event(('release', block))
        self.users[block] -= 1
        if not self.users[block]:
            first = self.hash[block] is None and self.draw.random() < .5
            (self.free.appendleft if first else self.free.append)(block)

    def register(self, block, name):
        if name not in self.cached and self.hash[block] is None:
            self.cached[name], self.hash[block] = block, name

    def hit(self, name):
        """A block whose content has this name, with one user more; None if there is none."""
        if name in self.cached:
            block = self.cached[name]
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1
            self.store.event(('retain', block))
            return block
        if self.free and name in self.host:
            block, host = self.pop_block(), self.host.pop(name)
            if self.draw.random() < .5:  # its users go along: none
                self.store.report([('move', [(host, block)]), ('retain', block)])
            else:
                self.store.event(('copy', host, block, ALL))
            self._carry(host, block)
        elif self.free and all(c.version == self.version for c in self.tier.get((name, self.version), [Cell()])):
            block = self.pop_block('k%d' % name)
            self.kv[block] = [Cell(c.prefix, c.version, c.excuse or 'by key') for c in self.tier[name, self.version]]
            self.sealed[block] = None
        else:
            return None
        self.register(block, name)
        return block

    # ---- requests --------------------------------------------------------------------------------------------------
    def new_request(self):
        self.requests += 1
        draw, chain, prefix = self.draw, [], self.draw.randrange(2)
        for i in range(draw.randrange(2, 14)):
            prefix = hash((prefix, draw.randrange(2) if i % PAGE == PAGE - 1 and draw.random() < .2 else 7))
            chain.append(prefix)
        return Request(self.requests, chain, len(chain) + draw.randrange(1, 10), bool(self.chance('mute')))

    def admit(self):
        while self.waiting and len(self.running) < 4 and len(self.free) > 4:
            request = self.waiting.pop(0)
            tokens = len(request.chain)
            hits = (tokens - (0 if self.chance('full_hit') else 1)) // self.size
            for i in range(hits):
                block = self.hit(request.chain[(i + 1) * self.size - 1])
                if block is None:
                    break
                request.blocks.append(block)
            request.computed = min(len(request.blocks) * self.size, tokens - 1)
            request.sealed = request.computed // self.size
            if request.computed == len(request.blocks) * self.size and self.free and self.chance('partial'):
                self._hit_a_part(request)
            self.running.append(request)

    def _hit_a_part(self, request):
        at = request.computed
        for block in self.cached.values():
            rows = 0
            while rows < self.size and at + rows < len(request.chain) - 1 and \
                    self.kv[block][rows].prefix == request.chain[at + rows]:
                rows += 1
            if rows and self.users[block]:
                own = self.pop_block()
                self.store.event(('copy', block, own, rows))
                self.kv[own] = [cell.copy() for cell in self.kv[block]]
                request.blocks.append(own)
                request.computed += rows
                return

    def give_up_blocks(self, request, again):
        """It leaves the batch: for good, or to start again."""
        for block in reversed(request.blocks):
            self.release(block)
        request.blocks = []
        if request in self.running:
            self.running.remove(request)
        if again:
            request.start_again()
            self.waiting.insert(0, request)

    def fork(self, request):
        fork = Request(0, list(request.chain), request.goal + self.draw.randrange(3), request.mute)
        fork.computed = request.computed
        for i, block in enumerate(request.blocks):
            if (i + 1) * self.size <= request.computed:
                self.users[block] += 1
                self.store.event(('retain', block))
                fork.blocks.append(block)
            elif i * self.size < request.computed:
                own = self.pop_block()
                rows = ALL if self.draw.random() < .5 else request.computed - i * self.size
                self.store.event(('copy', block, own, rows))
                self.kv[own] = [cell.copy() for cell in self.kv[block]]
                if rows == ALL:
                    self.sealed[block] = self.sealed[own] = None
                fork.blocks.append(own)
        fork.sealed = min(request.sealed, len(fork.blocks))
        self.running.append(fork)

    def rewind(self, request):
        """Other tokens from a position on, if no other request can see them."""
        at = request.computed - self.draw.randrange(1, 3)
        first = at // self.size
        if all(self.users[b] == 1 and self.hash[b] is None for b in request.blocks[first:]):
            for i in range(first, len(request.blocks)):
                self.store.event(('truncate', request.blocks[i], max(0, at - i * self.size), self.step - 1))
                self.sealed[request.blocks[i]] = self.sealed[request.blocks[i]] and None
            request.chain = request.chain[:at] + [hash((request.chain[at - 1], self.draw.random()))]
            request.computed = at
            request.sealed = min(request.sealed, first)

    def defrag(self):
        """Two live blocks change places."""
        live = sorted({block for request in self.running for block in request.blocks})
        if len(live) < 2:
            return
        a, b = self.draw.sample(live, 2)
        swap = {a: b, b: a}
        self.store.event(('move', [(a, b), (b, a)]))
        for table in (self.kv, self.users, self.hash, self.sealed):
            table[a], table[b] = table[b], table[a]
        self.cached = {name: swap.get(block, block) for name, block in self.cached.items()}
        for request in self.running:
            request.blocks = [swap.get(block, block) for block in request.blocks]
        self.late_news = [(due, request, what, swap.get(block, block), *more)
                          for due, request, what, block, *more in self.late_news]

    # ---- a schedule ------------------------------------------------------------------------------------------------
    def one_step(self):
        self.step += 1
        if self.chance('bump'):
            self.version = self.draw.randrange(1, self.newest + 1) if self.chance('rollback') else self.newest + 1
            self.newest = max(self.newest, self.version)
        early = self.chance('early')     # events before the version record
        if not early:
            self.store.schedule(self.step, self.version)
        self._tell_late_news()
        for request in list(self.running):
            self._what_happens_to(request)
        if self.chance('defrag'):
            self.defrag()
        if self.chance('reset') and self.draw.random() < .3:
            self._reset()
        while len(self.waiting) + len(self.running) < 5:
            self.waiting.append(self.new_request())
        if early:
            self.admit()
            self.store.schedule(self.step, self.version)
        plan, seals = [], []
        for request in list(self.running):
            if request in self.running:
                self._plan(request, plan, seals)
        before = list(self.running)
        self.admit()
        for request in [r for r in self.running if r not in before]:
            if request in self.running:
                self._plan(request, plan, seals)
        self._forward(plan, seals)
        self.tape.go_on()
        self.check()

    def _tell_late_news(self):
        due = [news for news in self.late_news if news[0] <= self.step]
        self.late_news = [news for news in self.late_news if news[0] > self.step]
        for _, request, what, block, *more in due:
            if what == 'truncate':
                if block in request.blocks or self.features['foreign_truncate']:
                    self.store.event(('truncate', block, *more))
            else:
                index, name, step = more
                end = (index + 1) * self.size
                if request.blocks[index:index + 1] == [block] and request.computed >= end and request.chain[end - 1] == name \
                        and self.kv[block][-1].prefix == name:
                    self.store.event(('seal', block, 'k%d' % name, step))
                    self._note_seal(block)
                    self.register(block, name)

    def _what_happens_to(self, request):
        late, draw = self.features['late'], self.draw
        if request.done is not None and request.done < self.step - (1 if late else 0):
            self.read(request, len(request.chain) - 1)
            self.give_up_blocks(request, False)
        elif self.chance('abort') and draw.random() < .3:
            self.give_up_blocks(request, False)
        elif request.done is None and self.chance('preempt') and draw.random() < .3:
            self.give_up_blocks(request, True)
        else:
            if self.chance('stream'):
                self.read(request, request.computed)
            if request.done is None and request.computed and not late:
                if len(self.running) < 4 and len(self.free) > 4 and self.chance('fork'):
                    self.fork(request)
                if request.computed > 3 and len(request.chain) - request.computed == 1 and self.chance('rewind'):
                    self.rewind(request)

    def _reset(self):
        self.store.event(('reset',))
        self.resets += 1
        for block in self.cached.values():
            self.hash[block] = None
        self.cached, self.host = {}, {}

    def _plan(self, request, plan, seals):
        """Tokens and drafts of a request in this step, its blocks, and the seals of those that it fills."""
        tokens = len(request.chain)
        if request.done is not None and not self.features['late'] or self.chance('pause'):
            return
        rest = tokens - request.computed
        new = rest if rest <= 1 else min(rest, self.draw.randrange(1, 9))
        drafts = self.draw.randrange(1, 4) if new == rest and request.done is None and self.chance('draft') else 0
        upper = request.computed + new + drafts
        while -(-upper // self.size) - len(request.blocks) > len(self.free):
            others = [r for r in self.running if r is not request and r.done is None and all(p[0] is not r for p in plan)]
            if not others:
                return
            self.give_up_blocks(others[-1], True)
        while len(request.blocks) * self.size < upper:
            request.blocks.append(self.pop_block())
        plan.append((request, new, drafts))
        full = 0 if request.done is not None else min(request.computed + new, tokens)
        while (request.sealed + 1) * self.size <= full:
            index, request.sealed = request.sealed, request.sealed + 1
            block, name = request.blocks[index], request.chain[(index + 1) * self.size - 1]
            seals.append((request, index, block, name))
            if not self.features['completion']:
                self.store.event(('seal', block, 'k%d' % name, 0 if self.features['seal_zero'] else self.step))
                self.register(block, name)

    # ---- a forward -------------------------------------------------------------------------------------------------
    def _forward(self, plan, seals):
        writes, results = [], []
        for request, new, drafts in plan:
            accepted = self.draw.randrange(drafts + 1) if drafts else 0
            chain = list(request.chain)
            for _ in range(accepted):
                chain.append(hash((chain[-1], self.draw.random())))
            tokens = list(chain)
            for _ in range(drafts - accepted):
                tokens.append(hash((tokens[-1], -1, self.draw.random())))
            for at in range(request.computed, request.computed + new + drafts):
                excuse = 'mute' if request.mute else 'silent' if self.chance('silent') and self.draw.random() < .1 else None
                writes.append((self._slot(request, at), Cell(tokens[at], self.version, excuse)))
            results.append((request, new, drafts, accepted, chain))
        fate = self._fate(bool(plan))
        self._tell_step(plan, writes, fate)
        if fate in ('not told', 'not run', 'run in vain'):
            self._nothing_ran(plan, writes, seals)
            return
        if fate != 'ready':
            for _, cell in writes:
                cell.excuse = cell.excuse or 'lost'
        for (block, offset, *_), cell in writes:
            if cell.excuse:
                self.lost_elsewhere[cell.prefix, cell.version] = cell.excuse
            cell.step = self._step_of_row(block, self.kv[block][offset], cell)
            self.kv[block][offset] = cell
        for result in results:
            self._advance(*result)
        for request, index, block, name in seals:
            if self.features['completion']:
                self.late_news.append((self._due('seal_late'), request, 'seal', block, index, name, self.step))
            else:
                self._note_seal(block)

    def _note_seal(self, block):
        self.sealed[block] = self.sealed[block] if self.sealed[block] is None else True

    def _step_of_row(self, block, before, cell):
        """A valid row of a sealed block is kept, if it is of the same weights."""
        if self.sealed[block] is False or before.version != cell.version:
            return self.step
        return before.step if self.sealed[block] and not before.excuse else None

    def _slot(self, request, at):
        return (request.blocks[at // self.size], at % self.size, False)[:3 if request.mute else 2]

    def _fate(self, any_rows):
        if any_rows and self.chance('cancel'):
            return {'told': 'not told', 'not_run': 'not run', 'lost': 'run in vain'}[self.cancel_as]
        if self.chance('lost'):
            return self.draw.choice(('lost', 'dropped'))
        return 'ready'

    def _tell_step(self, plan, writes, fate):
        if not plan and self.draw.random() < .5:
            return                       # a schedule without a forward
        values = [None if cell.excuse == 'silent' else (cell.prefix, cell.version) for _, cell in writes]
        padding = [None, None] if self.chance('padding') else []
        self.tape.step(self.step, self.version, [slot for slot, _ in writes] + padding, values + padding, fate)

    def _nothing_ran(self, plan, writes, seals):
        """The engine takes back what it announced, and reports it again when it runs."""
        for request, index, block, name in seals:
            if not self.features['completion'] and self.cached.get(name) == block:
                del self.cached[name]
                self.hash[block] = None
            request.sealed = min(request.sealed, index)
        for _, cell in writes:
            self.lost_elsewhere[cell.prefix, cell.version] = 'cancel'
        for request, *_ in plan:
            for at in range(request.computed, len(request.blocks) * self.size):
                cell = self.kv[request.blocks[at // self.size]][at % self.size]
                cell.excuse = cell.excuse or 'cancel'
        for request in list(self.running):       # that hit blocks which this forward would have filled
            cells = [self.kv[request.blocks[at // self.size]][at % self.size] for at in range(request.computed)]
            if any(cell.prefix != prefix for cell, prefix in zip(cells, request.chain)):
                self.give_up_blocks(request, True)

    def _advance(self, request, new, drafts, accepted, chain):
        start, tokens = request.computed, len(request.chain)
        if start + new < tokens:         # a chunk of a prompt
            request.computed = start + new
            return
        request.chain, request.computed = chain, start + new + accepted
        end = start + new + drafts
        if accepted < drafts and not self.features['silence_on_reject']:
            for at in range(request.computed, end):
                if at == request.computed or at % self.size == 0:
                    block = request.blocks[at // self.size]
                    self.late_news.append((self._due('truncate_late'), request, 'truncate', block, at % self.size, self.step))
        chain.append(hash((chain[-1], self.draw.random())))
        if len(chain) >= request.goal and request.done is None:
            request.done = self.step

    def _due(self, feature):
        return self.step + 1 + self.features['late'] + (self.draw.randrange(3) if self.chance(feature) else 0)

    # ---- reading ---------------------------------------------------------------------------------------------------
    def read(self, request, rows):
        rows = min(rows, len(request.blocks) * self.size)
        if rows <= 0:
            return
        first = self.draw.randrange(rows) if self.draw.random() < .2 else 0
        cells = [self.kv[request.blocks[at // self.size]][at % self.size].copy() for at in range(rows)]
        assert all(cell.prefix == prefix for cell, prefix in zip(cells, request.chain)), 'the engine itself is wrong'
        self.reading.append((self.store.snapshot(list(request.blocks), first, rows), cells[first:], self.draw.randrange(12)))

    def check(self, everything=False):
        """Reads the snapshots that are due."""
        left = []
        for snapshot, cells, delay in self.reading:
            if not everything and delay > 0 or not snapshot.ready():
                left.append((snapshot, cells, delay - 1))
                continue
            rows = snapshot.read()
            for cell, row in zip(cells, rows):
                self._check_row(cell, row)
            self.reads.append([(row.value, row.step, row.version, row.reason) for row in rows])
            snapshot.release()
        self.reading = left

    def _check_row(self, cell, row):
        if row.reason:
            excuse = self._excuse(cell, row)
            self.count('missing, %s (%s)' % (row.reason, excuse) if excuse else 'UNEXPLAINED: %s' % row.reason)
        elif row.value != (cell.prefix, cell.version) or row.version != cell.version:
            self.count('WRONG', 'step %d, %s' % (row.step, cell.excuse))
        elif cell.step not in (None, row.step) and not (cell.excuse or self.features['few'] or self.resets):
            self.count('ANOTHER STEP', 'step %d for %d' % (row.step, cell.step))
        elif cell.excuse == 'by key' and row.how == 'here':
            self.count('NOT MARKED', 'step %d' % row.step)
        else:
            self.count('valid')

    def _excuse(self, cell, row):
        return cell.excuse or self.lost_elsewhere.get((cell.prefix, cell.version)) or self.resets and 'reset' or \
            row.reason == CAPACITY and self.features['few'] and 'few pages'

    def run(self, steps=60):
        for _ in range(steps):
            self.one_step()
        self.tape.go_on(everything=True)
        self.check(everything=True)
        assert not self.reading and not self.store.log, 'snapshots or records are left over'
        return self


def mutations(first, seeds):
    """Prints which rules of the store can be left out unnoticed."""
    unnoticed = []
    for rule in sorted(rules()):
        for seed in range(first, first + seeds):
            try:
                counts = Engine(seed, off=(rule,)).run().counts
            except (AssertionError, AttributeError, KeyError):
                break
            if bad_counts(counts):
                break
        else:
            unnoticed.append(rule)
    print('left out unnoticed:', *unnoticed, sep='\n  ')
    return 0


def bad_counts(counts):
    return [what for what in counts if what.split(':')[0].isupper()]


def main(arguments):
    if arguments[:1] == ['--mutations']:
        return mutations(*(int(a) for a in arguments[1:]))
    numbers = [int(a) for a in arguments if '=' not in a]
    force = dict(a.split('=') for a in arguments if '=' in a)
    force = {name: value if name == 'cancel_as' else float(value) for name, value in force.items()}
    first, seeds = (numbers + [1, 200][len(numbers):])[:2]
    counts, where = collections.Counter(), {}
    for seed in range(first, first + seeds):
        engine, other = Engine(seed, 1, force).run(), Engine(seed, 2, force).run()
        counts.update(engine.counts)
        for what, seen in engine.seeds.items():
            where.setdefault(what, seen)
        # With few pages, what is evicted depends on when readers return their pages.
        if not engine.features['few'] and sorted(engine.reads, key=repr) != sorted(other.reads, key=repr):
            counts['TIME'] += 1
            where.setdefault('TIME', 'seed %d' % seed)
    for what in sorted(counts):
        print('%9d  %s   %s' % (counts[what], what, '' if 'valid' == what[-5:] else where.get(what, '')))
    bad = bad_counts(counts)
    print('seeds %d to %d: %s' % (first, first + seeds - 1, 'failed: %s' % bad if bad else 'right'))
    return 1 if bad or not counts['valid'] else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
