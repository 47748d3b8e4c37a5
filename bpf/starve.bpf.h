/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The bound of waiting for operators: who waits too long runs, whatever the hints say.
 *
 * A queue in the order of a policy tells nothing of who waits longest in it. The table of threads
 * does: now and then each CPU goes through ROWS of its rows, takes the one that has waited longest
 * for a place where this CPU may help, and moves that thread out of whichever queue it is in, by
 * address, at a cost that is the same for any number of threads.
 *
 * How often? `rescue_ms` apart, for the order shall decide; but every other slice once somebody
 * waited for LONG_WAIT, so that half of the CPU stays with the order; and at each decision once
 * somebody waited for LONGEST_WAIT, half of the kernel's patience. From LONG_WAIT on nobody's turn
 * is longer than HURRIED_SLICE. With n never-sleeping threads a CPU, t = 4 ms a turn (a tick at
 * 250 Hz; 3 ms at 1,000 Hz) and the default `rescue_ms` of 50, each runs after at most
 *
 *	starvation + n * 50 ms		while that is below LONG_WAIT (n = 90)
 *	the larger of LONG_WAIT and n * 2 t, up to LONGEST_WAIT (n = 1,875)
 *	the larger of LONGEST_WAIT and n * t
 *
 * and beyond 7,500 a CPU the kernel ends us (timeout_ms): turns of 4 ms are too long for them. What
 * decides is how long they have waited, not their number, so it holds as well for threads that are
 * bound to one CPU of many, and where a higher class takes some of the CPUs.
 *
 * A thread that is in none of these queues (another CPU is about to run it, or would if a higher
 * class let it) cannot be helped. `tried_ns` passes over those that could not be moved, in the
 * order of their waits, or a few of them would hide all others.
 *
 * LOCKS. Who waits may hold a lock, of the program or of the kernel, or keep a JVM from what all its
 * threads must agree to. A more urgent thread that needs it sleeps, so no order helps: it would sleep
 * until the holder's turn by the bound above, with less urgent ones running meanwhile. Nobody tells a
 * scheduler who holds what: it may be one that was interrupted amid its work, and it may be one that
 * woke up (the kernel hands a read-write semaphore, as of a process's memory map, to those that sleep
 * for it before they run). So whoever waits for LENT_AFTER is lent LENT_TURN, which nearly all critical
 * sections end in: one each CHORES_NS a CPU, so 2% of it at most. The bound above counts from the
 * thread's last turn of its own.
 */
#ifndef SCHED_CTL_STARVE_BPF_H
#define SCHED_CTL_STARVE_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "order.bpf.h"
#include "fair.bpf.h"

#define LONG_WAIT (5000 * MS)
#define LONGEST_WAIT (15000 * MS)
#define HURRIED_SLICE (3 * MS)
#define TRY_AGAIN (1 * MS)
#define LENT_AFTER (20 * MS)
#define LENT_TURN (200 * US)

enum { ROWS = 512, TRIES = 4 };

u32 slots_used = 1;			/* slots from here on were never queued */

/* To be called when an operator is about to be queued on the CPUs of this set. */
static __always_inline void wait_in(struct thread *t, struct task_struct *p, u32 slot, u32 llc,
				    u64 now_ns, bool woken)
{
	/* One that waits is queued anew when its affinity, weight or cgroup changes: it waits on. */
	if (woken || !t->queued_ns || !t->set) {
		t->queued_ns = now_ns;
		if (woken || !t->lent)
			t->hungry_ns = now_ns;
	}
	t->lent = t->rescued = 0;
	t->set = llc + 1;
	if (nr_cpus > 1)
		t->only_cpu = p->nr_cpus_allowed == 1 ? cpu_of(p) + 1 : 0;
	if (slot >= slots_used)
		slots_used = slot + 1;	/* if another CPU overwrites this, the next time will do */
}

/* It is no operator any more, or not for now. What was its slot may be another's since it slept. */
static __always_inline void operator_no_more(struct task_struct *p, u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];

	if (t->tid != p->pid)
		return;
	leave_operator(slot);
	t->queued_ns = 0;
}

/* When it is about to be put on a CPU without a queue: there nobody else can help it. */
static __always_inline void wait_for_cpu(struct thread *t, u64 now_ns)
{
	t->queued_ns = now_ns;
	t->set = 0;
	t->lent = t->rescued = 0;
}

struct search {
	bool lends;			/* since its last turn, lent or not */
	u64 oldest_ns;			/* since when the longest waiting one waits, of those seen */
	u64 tried_ns;
	u32 found;			/* its slot; 0 = none yet */
	u32 hand;
	u32 only_cpu;
	u8 set;
};

/* Does the cap of its group keep the operator in this slot from this CPU? */
static __always_inline bool held_by_cap(u32 slot, s32 cpu)
{
	u32 g;
	struct group *group = group_of(slots[slot & (MAX_SLOTS - 1)].queue, &g);

	return control.nr_groups && at_cap(group, g, cpu);
}

/* The queue of this set in which the operator waits and this CPU may take it; else -1. */
static __always_inline int queue_of(struct task_struct *p, u32 llc, u32 slot, s32 cpu)
{
	u64 id = BPF_CORE_READ(p, scx.dsq, id), first = dsq_of(llc & (MAX_LLCS - 1), 0);

	if (id < first || id >= first + MAX_QUEUES || packed_slot(p->scx.dsq_vtime) != slot ||
	    !may_run(p, cpu))
		return -1;
	return id - first;
}

/*
 * Could this CPU take the operator in this slot, in as far as one CPU cannot tell by itself? Who may
 * run on some CPUs, or waits for a higher class on another one, would hide all who wait for less.
 */
static __always_inline bool movable(u32 slot, u32 llc, s32 cpu)
{
	struct task_struct *p;
	bool found;

	if (nr_cpus == 1)
		return true;
	p = bpf_task_from_pid(threads[slot & (MAX_SLOTS - 1)].tid);
	if (!p)
		return false;
	found = queue_of(p, llc, slot, cpu) >= 0;
	bpf_task_release(p);
	return found;
}

static long look_at_row(u64 i, struct search *search)
{
	u32 slot = search->hand + i;
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	u64 since_ns = search->lends ? t->queued_ns : t->hungry_ns;

	if (slot >= slots_used)
		return 1;
	if (!t->queued_ns)
		return 0;
	if (t->set != search->set || (nr_cpus > 1 && t->only_cpu && t->only_cpu != search->only_cpu))
		return 0;
	if ((s64)(since_ns - search->oldest_ns) >= 0 ||
	    (search->tried_ns && (s64)(since_ns - search->tried_ns) <= 0))
		return 0;
	if (search->lends && (held_by_cap(slot, search->only_cpu - 1) ||
			      !movable(slot, search->set - 1, search->only_cpu - 1)))
		return 0;
	search->oldest_ns = since_ns;
	search->found = slot;
	return 0;
}

/* Slot of the operator that waits longest for this CPU among the rows at its hand; 0: none. */
subprogram u32 longest_waiting(u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct search search = {
		.oldest_ns = now_ns - control.starvation_ms * MS,
		.tried_ns = c->tried_ns,
		.hand = c->hand,
		.only_cpu = cpu + 1,
		.set = llc + 1,
	};

	bpf_loop(ROWS, look_at_row, &search, 0);
	return search.found;
}

/* Move the operator in this slot here from whichever queue of the set it waits in: that, or -1. */
subprogram int move_slot(u32 llc, u32 slot, s32 cpu)
{
	struct task_struct *p;
	u64 packed;
	int queue;

	p = bpf_task_from_pid(threads[slot & (MAX_SLOTS - 1)].tid);
	if (!p)
		return -1;
	queue = queue_of(p, llc, slot, cpu);
	packed = p->scx.dsq_vtime;
	bpf_task_release(p);
	if (queue < 0 || !move_exactly(dsq_of(llc & (MAX_LLCS - 1), queue), packed, cpu))
		return -1;
	return queue;
}

/* Lend a turn to the operator that waits longest since its last one. */
subprogram int lend(u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct search search = {
		.lends = true,
		.oldest_ns = now_ns - LENT_AFTER,
		.hand = c->lending_hand,
		.only_cpu = cpu + 1,
		.set = llc + 1,
	};
	u32 slot;
	int queue;

	bpf_loop(ROWS, look_at_row, &search, 0);
	c->lending_hand += ROWS;
	if (c->lending_hand >= slots_used)
		c->lending_hand = 0;
	slot = search.found & (MAX_SLOTS - 1);
	if (!slot)
		return 0;
	queue = move_slot(llc, slot, cpu);
	if (queue < 0)
		return 0;
	threads[slot].lent = 1;
	c->next_lend_ns = now_ns + CHORES_NS;
	record(TRACE_LEND, slot, now_ns, 0);
	mark_taken(llc & (MAX_LLCS - 1), queue & (MAX_QUEUES - 1));
	return 1;
}

/* The next rows; after the last of them, the first. */
static __always_inline void advance_hand(struct cpu *c)
{
	c->tried_ns = 0;
	c->hand += ROWS;
	if (c->hand >= slots_used)
		c->hand = 0;
}

/* Run the operator that waits longest beyond the bound, if there is one, and say when to look again. */
subprogram int rescue(u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 every_ns = control.rescue_ms * MS, waited_ns;
	u32 i, slot, used = slots_used;
	int queue;

	for (i = 0; i < TRIES; i++) {
		slot = longest_waiting(llc, cpu, now_ns) & (MAX_SLOTS - 1);
		if (!slot) {
			if (!c->hand)
				c->hurried = 0;
			/* All rows are looked at in this time, as if they were few. */
			if (used > ROWS)
				every_ns = every_ns * ROWS / used;
			advance_hand(c);
			c->next_rescue_ns = now_ns + every_ns;
			return 0;
		}
		count(starved);
		waited_ns = now_ns - threads[slot].hungry_ns;
		queue = move_slot(llc, slot, cpu);
		if (queue < 0) {
			c->tried_ns = threads[slot].hungry_ns;
			continue;
		}
		threads[slot].rescues++;
		threads[slot].rescued = 1;
		record(TRACE_RESCUE, slot, now_ns, waited_ns);
		mark_taken(llc & (MAX_LLCS - 1), queue & (MAX_QUEUES - 1));
		c->hurried = waited_ns > LONG_WAIT;
		if (!c->hurried)
			advance_hand(c);
		else if (every_ns > 2 * HURRIED_SLICE)
			every_ns = waited_ns > LONGEST_WAIT ? 0 : 2 * HURRIED_SLICE;
		c->tried_ns = 0;
		c->next_rescue_ns = now_ns + every_ns;
		return 1;
	}
	c->next_rescue_ns = now_ns + TRY_AGAIN;
	return 0;
}

#endif
