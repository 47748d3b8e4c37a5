/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The order of operator threads: their age, their key in a queue, and which queue is next.
 */
#ifndef SCHED_CTL_ORDER_BPF_H
#define SCHED_CTL_ORDER_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"

u64 groups_now_ns;			/* virtual time that groups have reached on any CPU */
#define GROUP_CREDIT (10 * MS)
#define STANDING (100 * MS)		/* a queue that is not empty for so long is never empty */

/* What a policy says of a thread (or queue head) of this packed key; see sched_ctl.h. */
static __always_inline u64 urgency(u32 queue, u64 key, u64 now_ns)
{
	return head_urgency(&control.queues[queue & (MAX_QUEUES - 1)], key, now_ns);
}

/* What the thread's engine says of it, or NULL: there is no such row (any more). */
static __always_inline volatile struct live *live_row(u32 slot)
{
	u32 engine = slots[slot].live >> LIVE_ROW_BITS;
	u32 row = slots[slot].live & ((1 << LIVE_ROW_BITS) - 1);
	void *rows = bpf_map_lookup_elem(&live, &engine);

	return rows ? bpf_map_lookup_elem(rows, &row) : NULL;
}

/*
 * When the oldest tuple of a thread's operator came in, as its engine says; now, if none waits.
 * An engine may write anything there: neither the future nor the distant past is believed.
 */
subprogram u64 live_origin(u32 slot, u64 now_ns)
{
	volatile struct live *row = live_row(slot & (MAX_SLOTS - 1));
	u64 head_ns = row ? row->head_ns : 0;
	s64 age_ns = now_ns + monotonic_offset_ns - head_ns;

	if (!head_ns || age_ns < 0)
		return now_ns;
	return now_ns - (age_ns > MAX_LEAD_US * US ? MAX_LEAD_US * US : age_ns);
}

/* The tuples that wait for a thread's operator, as its engine says. */
subprogram u64 live_tuples(u32 slot)
{
	volatile struct live *row = live_row(slot & (MAX_SLOTS - 1));
	u64 tuples = row ? row->queue_tuples : 0;

	return tuples > MAX_TUPLES ? MAX_TUPLES : tuples;
}

/* The key of a thread; brings its origin up to date if its engine shares it. */
static __always_inline u64 key_of(u32 slot, u64 now_ns)
{
	struct slot *s = &slots[slot];
	struct thread *t = &threads[slot];

	if (s->flags & SLOT_LIVE_AGE)
		t->origin_ns = live_origin(slot, now_ns);
	return key_at(t->origin_ns, s->lead_us, slot);
}

/* Of a thread in an exact queue. */
static __always_inline u64 exact_urgency(u32 slot, u64 now_ns)
{
	struct slot *s = &slots[slot];
	u64 origin_ns = now_ns, tuples = 0;

	if (s->slope) {
		origin_ns = threads[slot].origin_ns;
		if (s->flags & SLOT_LIVE_AGE)
			origin_ns = live_origin(slot, now_ns);
	}
	if (s->flags & SLOT_LIVE_LENGTH)
		tuples = live_tuples(slot);
	return form_urgency(s, origin_ns, tuples, now_ns);
}

/* Of the operator in this slot, which has this key, by what its queue goes by. */
static __always_inline u64 urgency_of(u32 slot, u64 key, u64 now_ns)
{
	u32 queue = slots[slot].queue & (MAX_QUEUES - 1);

	if (control.queues[queue].flags & QUEUE_EXACT)
		return exact_urgency(slot, now_ns);
	return urgency(queue, key, now_ns);
}

/* No thread is older than the head of its queue, as its driver knows it, where it does. */
static __always_inline void bound_age(u32 slot, u64 now_ns)
{
	struct thread *t = &threads[slot];
	u64 head_ns = heads[slot];

	if (!head_ns)
		return;
	head_ns -= monotonic_offset_ns;
	if ((s64)(now_ns - head_ns) < 0)
		head_ns = now_ns;
	if ((s64)(head_ns - t->origin_ns) > 0)
		t->origin_ns = head_ns;
}

/* When work came into the system that comes to this node now; see `arrivals`. */
static __always_inline u64 outside_origin(u32 slot, u64 now_ns)
{
	u32 age_us = arrivals[slot];

	return now_ns - (age_us > MAX_LEAD_US ? MAX_LEAD_US : age_us) * US;
}

static __always_inline void note_burst(struct thread *t)
{
	u64 burst_ns = t->run_ns - t->woken_run_ns;

	if (burst_ns > 1000 * MS)
		burst_ns = 1000 * MS;
	t->burst_ns = t->burst_ns - t->burst_ns / 4 + burst_ns / 4;
}

/*
 * A woken thread carries the work of the thread that woke it: if that is an operator, its origin
 * is inherited; else the work comes in from outside: now, or from another node, where it was for a
 * while. (An interrupt that wakes an operator is charged to whatever it interrupted. Timers of
 * operators are rare enough.)
 *
 * Work goes along the data's way. Who is woken by an operator of its own query further down got a
 * buffer back, not work, and goes on with what it had; other queries hand on nothing.
 */
static __always_inline void inherit(u32 slot, u64 now_ns, u32 cpu)
{
	struct thread *t = &threads[slot];
	u32 waker = cpus[cpu].slot & (MAX_SLOTS - 1);
	struct slot *s = &slots[slot], *w = &slots[waker];

	stats[cpu].wakeups++;
	t->wakeups++;
	note_burst(t);
	t->woken_run_ns = t->run_ns;
	t->woken_ns = now_ns;
	if (waker && s->query && w->query) {
		if (s->query != w->query) {
			waker = 0;
		} else if (s->depth && s->depth <= w->depth && t->origin_ns) {
			/* First in, first out: what the waker works on came in earlier. */
			if (t->outside)
				t->origin_ns = outside_origin(slot, now_ns);
			else if ((s64)(threads[waker].origin_ns - t->origin_ns) > 0)
				t->origin_ns = threads[waker].origin_ns;
			bound_age(slot, now_ns);
			return;
		}
	}
	t->outside = !waker;
	if (waker) {
		stats[cpu].inherits++;
		t->origin_ns = threads[waker].origin_ns;
		bound_age(slot, now_ns);
	} else {
		t->origin_ns = outside_origin(slot, now_ns);
	}
}

/*
 * An operator that ran and has not slept went through its queue, and what is first there came in
 * later. An ingress takes in what comes now. How far the others got nobody tells us: an age shrinks
 * by what the operator ran, so that one that gets less than half a CPU looks older, as its queue
 * grows, and one that has the CPU does not.
 *
 * Who has not slept for STANDING has a queue that stands, as that of a saturated query does: how
 * long tuples wait there says how much room there is, not that the operator was kept from the CPU,
 * and no order makes it shorter. So its age is the time that it has waited for the CPU since it ran
 * last; with the age of its tuples it would hold up every query that is not saturated. Where only
 * operators of its own query are compared with it nobody is held up, and the age of tuples keeps
 * the batches that a saturated query lives on.
 *
 * A turn that was lent, or is the only one in a long time by the bound of waiting (starve.bpf.h), has
 * not gone through a queue: it renews nothing, or whom the order keeps waiting would never get old
 * enough to have its turn.
 */
static __always_inline void renew_age(u32 slot, u64 now_ns, u64 ran_ns)
{
	struct thread *t = &threads[slot];

	if (t->lent || t->rescued)
		return;
	if ((slots[slot].flags & SLOT_RIVALS) && slots[slot].depth &&
	    (s64)(now_ns - t->woken_ns - STANDING) > 0) {
		t->origin_ns = now_ns;
		return;
	}
	if (t->outside) {
		t->origin_ns = outside_origin(slot, now_ns);
		return;
	}
	if (slots[slot].depth) {
		t->origin_ns += 2 * ran_ns;
		if ((s64)(t->origin_ns - now_ns) > 0)
			t->origin_ns = now_ns;
	}
	bound_age(slot, now_ns);
}

static __always_inline u64 slice_ns(u32 slot)
{
	struct slot *s = &slots[slot];

	if (s->flags & SLOT_UNTIL_BLOCK)
		return control.until_block_ms * MS;
	return (s->slice_us ?: control.slice_us) * US;
}

/*
 * Exact queues. The most urgent of all threads in the queue, by their own forms: O(threads), for
 * policies that look at queue lengths, which change while threads wait. Returns its packed vtime
 * (whose slot tells who it is) and its urgency.
 */
subprogram u64 exact_best(u64 dsq, s32 cpu, u64 now_ns, u64 *best_urgency)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 best = 0, best_u = 0, u;
	u32 slot;

	bpf_iter_scx_dsq_new(&it, dsq, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		if (!may_run(p, cpu))
			continue;
		slot = packed_slot(p->scx.dsq_vtime);
		u = exact_urgency(slot, now_ns);
		record(TRACE_COMPARE, slot, now_ns, u);
		if (!best || u > best_u ||
		    (u == best_u && slots[slot].slope > slots[packed_slot(best)].slope)) {
			best = p->scx.dsq_vtime;
			best_u = u;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (best_urgency)
		*best_urgency = best_u;
	return best;
}

/*
 * Move the thread with this packed vtime from the DSQ to this CPU. Its affinity may have changed
 * since it was chosen, and moving it to a forbidden CPU would be the end of us; if it changes
 * after it was looked at here, the thread is queued anew and the kernel does not move it. The
 * iterator is not advanced: it says which queue is meant, and what was queued by now.
 */
subprogram int move_exactly(u64 dsq, u64 packed, s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool moved = false;

	p = bpf_task_from_pid(threads[packed_slot(packed)].tid);
	if (!p)
		return 0;
	bpf_iter_scx_dsq_new(&it, dsq, 0);
	moved = p->scx.dsq_vtime == packed && may_run(p, cpu) && dsq_move(&it, p, SCX_DSQ_LOCAL);
	bpf_iter_scx_dsq_destroy(&it);
	bpf_task_release(p);
	return moved;
}

/* Do shares decide between these two? Inside a group its order does. */
static __always_inline bool of_two_groups(struct candidate *one, struct candidate *than)
{
	return control.nr_groups && control.queues[one->queue & (MAX_QUEUES - 1)].group !=
				    control.queues[than->queue & (MAX_QUEUES - 1)].group;
}

static __always_inline bool better(struct candidate *one, struct candidate *than)
{
	if (one->vtime_ns != than->vtime_ns && of_two_groups(one, than))
		return (s64)(one->vtime_ns - than->vtime_ns) < 0;
	return one->urgency > than->urgency;
}

static __always_inline struct group *group_of(u32 queue, u32 *index)
{
	*index = control.queues[queue & (MAX_QUEUES - 1)].group & (MAX_GROUPS - 1);
	return &control.groups[*index];
}

/*
 * Does its cap keep a group from this CPU? Who runs there is left out of the count: it has not
 * stopped yet as the CPU asks what is next, and gives its place to whoever comes instead.
 */
static __always_inline bool at_cap(struct group *group, u32 g, s32 cpu)
{
	s32 running = groups[g].running - (cpus[cpu & (MAX_CPUS - 1)].group == g + 1);

	return group->cap && running >= (s32)group->cap;
}

/* One whose turn it was on this CPU had got so far. */
static __always_inline void groups_reach(struct cpu *c, u64 vtime_ns)
{
	if ((s64)(vtime_ns - c->groups_ns) > 0)
		c->groups_ns = vtime_ns;
	if ((s64)(vtime_ns - groups_now_ns) > 0)
		groups_now_ns = vtime_ns;
}

/* The same of a group that ran while nobody waited: that needs no choice, so nobody has said so yet. */
static __always_inline void groups_reach_alone(struct cpu *c)
{
	u32 g = (c->group - 1) & (MAX_GROUPS - 1);

	if (c->group && control.groups[g].share)
		groups_reach(c, groups[g].vtime_ns);
}

/*
 * Virtual time that groups have reached where a thread may run. One that has another CPU alone may
 * be far ahead: who were put there would wait until all others on its own CPU have got as far.
 */
static __always_inline u64 groups_now_for(struct task_struct *p)
{
	u64 now_ns = 0, there_ns;
	u32 cpu;

	if (p->nr_cpus_allowed >= nr_cpus)
		return groups_now_ns;
	for_each_number(cpu, nr_cpus) {
		there_ns = cpus[cpu & (MAX_CPUS - 1)].groups_ns;
		if ((s64)(there_ns - now_ns) > 0 && bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			now_ns = there_ns;
	}
	return now_ns;
}

/* A group that slept, or is new, may lag behind the others by GROUP_CREDIT, no more. */
static __always_inline void forgive_group(u32 slot, u64 reached_ns)
{
	u64 floor_ns = reached_ns - GROUP_CREDIT;
	u32 g;

	group_of(slots[slot].queue, &g);
	threads[slot].group = g + 1;
	if ((s64)(groups[g].vtime_ns - floor_ns) < 0)
		groups[g].vtime_ns = floor_ns;
}

/* Was it in another group, or in none, when it was forgiven last? Then this one may have been made since. */
static __always_inline bool is_new_to_group(u32 slot)
{
	u32 g;

	group_of(slots[slot].queue, &g);
	return threads[slot].group != g + 1;
}

/* Look up the head of this queue. Returns its bit if it has none for this CPU, else 0. */
subprogram u64 refresh(u32 llc, s32 cpu, u32 queue)
{
	u64 key, bit;

	llc &= MAX_LLCS - 1;
	queue &= MAX_QUEUES - 1;
	bit = 1ULL << queue;
	barrier_var(bit);	/* or the verifier keeps a state for each set of bits */
	__sync_fetch_and_and(&sets[llc].stale, ~bit);
	key = peek(dsq_of(llc, queue), cpu);
	if (key & PASSED)
		__sync_fetch_and_or(&sets[llc].stale, bit);
	else if (!key)
		mark_empty(llc, queue);
	key &= ~PASSED;
	if (!key)
		return bit;
	queues[llc].head_key[queue] = key;
	return 0;
}

/* Look up the heads of these queues. Returns those that have none for this CPU. */
subprogram u64 refresh_all(u32 llc, s32 cpu, u64 unknown)
{
	u64 without = 0;
	u32 i;

	for_each_queue(i, unknown)
		without |= refresh(llc, cpu, i);
	return without;
}

/* The queues of the group whose turn it is, among these; its virtual time goes to `best`. */
subprogram u64 narrow(s32 cpu, u64 candidates, struct candidate *best)
{
	u64 mask = 0, vtime_ns = 0, least_ns = 0;
	u32 i, g, least = MAX_GROUPS;
	struct group *group;

	if (!best)
		return candidates;
	for_each_queue(i, candidates) {
		group = group_of(i, &g);
		if (at_cap(group, g, cpu)) {
			count(capped);
			continue;
		}
		vtime_ns = group->share ? groups[g].vtime_ns : 0;
		if (g != least) {
			if (least < MAX_GROUPS && (s64)(vtime_ns - least_ns) > 0)
				continue;
			if (least == MAX_GROUPS || vtime_ns != least_ns)
				mask = 0;
			least = g;
			least_ns = vtime_ns;
		}
		mask |= 1ULL << i;
	}
	best->vtime_ns = least_ns;
	return mask;
}

/* If this queue is better than `best`, it is that. */
subprogram int compare(u32 llc, s32 cpu, u64 now_ns, u32 queue, struct candidate *best)
{
	u64 u, exact = 0;

	if (!best)
		return 0;
	llc &= MAX_LLCS - 1;
	queue &= MAX_QUEUES - 1;
	if (control.queues[queue].flags & QUEUE_EXACT) {
		exact = exact_best(dsq_of(llc, queue), cpu, now_ns, &u);
		if (!exact) {
			if (!scx_bpf_dsq_nr_queued(dsq_of(llc, queue)))
				mark_empty(llc, queue);
			return 0;
		}
	} else {
		/* A queue that the controller no longer uses is drained first. */
		u = queue < control.nr_queues ? urgency(queue, queues[llc].head_key[queue], now_ns) : ~0ULL;
	}
	/* Of those of no age, the one that will be the most urgent. */
	if (best->queue < 0 || u > best->urgency ||
	    (u == best->urgency && control.queues[queue].slope >
				   control.queues[best->queue & (MAX_QUEUES - 1)].slope)) {
		best->urgency = u;
		best->exact = exact;
		best->queue = queue;
	}
	return 0;
}

static __always_inline bool is_one(u64 mask)
{
	return mask && !(mask & (mask - 1));
}

/* The best queue among those in `candidates`, into `best`. */
subprogram int pick(u32 llc, s32 cpu, u64 now_ns, u64 candidates, struct candidate *best)
{
	u64 unknown;
	u32 i;

	if (!best)
		return -1;
	llc &= MAX_LLCS - 1;
	best->queue = -1;
	best->vtime_ns = 0;
	best->urgency = 0;
	unknown = candidates & sets[llc].stale;
	if (is_one(unknown))
		candidates &= ~refresh(llc, cpu, lowest(unknown));
	else if (unknown)
		candidates &= ~refresh_all(llc, cpu, unknown);
	if (control.nr_groups)
		candidates = narrow(cpu, candidates, best);
	if (is_one(candidates)) {	/* nearly always, and a loop costs something */
		compare(llc, cpu, now_ns, lowest(candidates), best);
		return best->queue;
	}
	for_each_queue(i, candidates)
		compare(llc, cpu, now_ns, i, best);
	return best->queue;
}

/* Take the first thread of a queue to this CPU. False if there is none that may run here. */
static __always_inline bool take_first(u32 llc, u32 queue)
{
	if (!dsq_move_to_local(dsq_of(llc, queue))) {
		__sync_fetch_and_or(&sets[llc].stale, 1ULL << queue);
		return false;
	}
	mark_taken(llc, queue);
	return true;
}

/*
 * Take the thread that `pick` found to this CPU. False if it is gone or may not run here.
 *
 * `instead`: of an operator that could go on here, so none but this one will do. The kernel's own
 * way to take the first of a queue passes over a thread whose migration is disabled, and that seems
 * so for the moment in which the CPU that it was put off still runs our programs in its name. Then
 * whoever is next in the queue would have a whole turn here; by address we wait for that CPU.
 */
static __always_inline bool take(u32 llc, s32 cpu, struct candidate *best, bool instead)
{
	u32 queue = best->queue & (MAX_QUEUES - 1);
	u64 packed = best->exact;

	if (!packed && instead && nr_cpus > 1)
		packed = queues[llc].head_key[queue];
	if (!packed)
		return take_first(llc, queue);
	if (!move_exactly(dsq_of(llc, queue), packed, cpu)) {
		__sync_fetch_and_or(&sets[llc].stale, 1ULL << queue);
		return false;
	}
	mark_taken(llc, queue);
	return true;
}

/* Inside a query who runs goes on to the end of its slice, whoever woke up meanwhile. */
subprogram int batch_goes_on(u32 slot, u64 winner, u64 had_ns)
{
	u32 query;

	slot &= MAX_SLOTS - 1;
	query = slots[slot].query;
	return query && query == slots[packed_slot(winner)].query && had_ns < slice_ns(slot);
}

#endif
