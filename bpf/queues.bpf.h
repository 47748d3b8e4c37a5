/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The queues, and what is remembered of them.
 *
 * The kernel keeps each queue (a DSQ) sorted. What it does not tell cheaply is which queues have
 * threads and what their heads are, and asking at each decision would cost more than the rest of
 * it. So both are remembered, and how many threads each queue has: an insertion can only set a bit
 * and bring a head forward; a removal clears the bit of a queue that is empty then, and else marks
 * the head as unknown, to be looked up when it is next compared.
 *
 * The kernel takes threads out of queues without a word (affinity, class), so a count may be too
 * high until the queue is found to be empty. Races (several CPUs only): the mark is set before
 * the kernel inserts the thread, so another CPU may look in between, find nothing and clear it.
 * A CPU that finds no work therefore asks the kernel about every queue before it idles, and so
 * does any CPU every 10 ms. A head lost in a race makes a queue look too young until it is next
 * picked. Neither loses a thread.
 */
#ifndef SCHED_CTL_QUEUES_BPF_H
#define SCHED_CTL_QUEUES_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"

enum { PARKED_DSQ = 1 << 20, HELD_DSQ, YIELDED_DSQ = PARKED_DSQ + 16 };

#define PASSED (1ULL << 15)		/* a bit of packed times that no slot uses */

/* Verified once, on its own: loops inside would multiply with the states of each caller. */
#define subprogram __noinline

/*
 * LOOPS. The verifier goes through each round of a counted loop, and with a few branches inside that
 * takes a small machine half a minute. It goes through two or three rounds of one that an iterator ends,
 * if no number tells the rounds apart: so what is counted beside an iterator starts from a 0 that it
 * does not know.
 */
u32 unknown_zero;

static __always_inline void end_rounds(struct bpf_iter_num *it)
{
	bpf_iter_num_destroy(it);
}

/* For each number from 0 on, less than `most`. */
#define for_each_number(number, most)						\
	for (struct bpf_iter_num it_ __attribute__((cleanup(end_rounds))),	\
	     *p_ __attribute__((unused)) = (bpf_iter_num_new(&it_, 0, most), NULL); \
	     ({ int *next_ = bpf_iter_num_next(&it_);				\
		if (next_)							\
			(number) = *next_;					\
		next_ != NULL; });)

struct set {				/* of queues; one a last-level cache, or several */
	u64 stale;			/* bit q: head_key[q] is not known */
	u64 used;			/* bit q: queue q had threads at some time */
	u64 next_repair_ns;
	u64 others_head;		/* vtime of the first of the others; 0 = not known */
	s32 others_queued;		/* others that wait, or more */
	u32 others_waiting;		/* 0: no other waits */
	s32 yielders;			/* operators that yielded and were put aside, or more */
	u32 any_yielded;		/* 1: there were some */
} LINES;
struct set sets[MAX_LLCS];
s32 queued[MAX_LLCS][MAX_QUEUES] LINES;	/* threads in each queue, or more */

/* Sets of queues are masks. */
const volatile u8 de_bruijn[64] = {
	0, 1, 48, 2, 57, 49, 28, 3, 61, 58, 50, 42, 38, 29, 17, 4,
	62, 55, 59, 36, 53, 51, 43, 22, 45, 39, 33, 30, 24, 18, 12, 5,
	63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21, 44, 32, 23, 11,
	46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9, 13, 8, 7, 6,
};

static __always_inline u32 lowest(u64 mask)
{
	u64 hash = (mask & -mask) * 0x03f79d71b4cb0a89ULL;
	u32 queue;

	/* Or the compiler sees what this is and puts its own table there, without the mask. */
	barrier_var(hash);
	queue = de_bruijn[hash >> 58] & (MAX_QUEUES - 1);
	barrier_var(queue);
	return queue;
}

/* For each queue in the mask, which is used up. */
#define for_each_queue(queue, mask)						\
	for (struct bpf_iter_num it_ __attribute__((cleanup(end_rounds))),	\
	     *p_ __attribute__((unused)) = (bpf_iter_num_new(&it_, 0, MAX_QUEUES), NULL); \
	     (mask) && bpf_iter_num_next(&it_) && ((queue) = lowest(mask), 1);	\
	     (mask) &= (mask) - 1)

static __always_inline u64 dsq_of(u32 llc, u32 queue)
{
	return 1 + llc * (MAX_QUEUES + 1) + queue;	/* the last of each LLC: the others */
}

static __always_inline u64 others_dsq(u32 llc)
{
	return dsq_of(llc, MAX_QUEUES);
}

/* To be called when a thread is about to be queued: remember that its queue has threads. */
static __always_inline void mark_waiting(u32 llc, u32 queue, u64 key)
{
	struct queue_state *state = &queues[llc];
	u64 bit = 1ULL << queue;

	__sync_fetch_and_add(&queued[llc][queue], 1);
	if (!(state->waiting & bit)) {
		state->head_key[queue] = key;
		if (nr_cpus > 1 && !(sets[llc].used & bit))
			__sync_fetch_and_or(&sets[llc].used, bit);
		if (sets[llc].stale & bit)
			__sync_fetch_and_and(&sets[llc].stale, ~bit);
		__sync_fetch_and_or(&state->waiting, bit);
	} else if (!(sets[llc].stale & bit) && before(key, state->head_key[queue])) {
		state->head_key[queue] = key;
	}
}

/* To be called when a thread was taken from a queue. */
static __always_inline void mark_taken(u32 llc, u32 queue)
{
	u64 bit = 1ULL << queue;
	s32 had = __sync_fetch_and_add(&queued[llc][queue], -1);

	if (had > 1) {
		if (!(sets[llc].stale & bit))
			__sync_fetch_and_or(&sets[llc].stale, bit);
		return;
	}
	if (had < 1)					/* it was thought to be empty */
		__sync_fetch_and_add(&queued[llc][queue], 1);
	__sync_fetch_and_and(&queues[llc].waiting, ~bit);
	if (nr_cpus > 1 && queued[llc][queue] > 0) {	/* one came meanwhile, and saw the bit */
		__sync_fetch_and_or(&sets[llc].stale, bit);
		__sync_fetch_and_or(&queues[llc].waiting, bit);
	}
}

/* To be called when a queue was seen to be empty. */
static __always_inline void mark_empty(u32 llc, u32 queue)
{
	queued[llc][queue] = 0;
	__sync_fetch_and_and(&queues[llc].waiting, ~(1ULL << queue));
}

/*
 * A thread whose migration is disabled does not wait in a queue of ours: it stays on its CPU, by the
 * kernel's doing or ours (`is_held_here`). Only up to 6.14 it may seem so of one that waits, while the
 * CPU that it was put off still runs our programs in its name.
 */
static __always_inline bool may_run(struct task_struct *p, s32 cpu)
{
	if (nr_cpus > 1 && is_held_here(p) && cpu_of(p) != cpu)
		return false;
	return nr_cpus == 1 || p->nr_cpus_allowed >= nr_cpus ||
	       bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * The packed vtime of the first thread of a DSQ that may run here; 0 if there is none. With
 * PASSED, others were passed over that may not: then the answer holds for this CPU alone.
 */
subprogram u64 peek(u64 dsq, s32 cpu)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 key = 0;

	if (can_peek()) {
		p = scx_bpf_dsq_peek(dsq);
		if (!p)
			return 0;
		if (may_run(p, cpu))
			return p->scx.dsq_vtime;
	}
	bpf_iter_scx_dsq_new(&it, dsq, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		if (!may_run(p, cpu)) {
			key = PASSED;
			continue;
		}
		key |= p->scx.dsq_vtime;
		break;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return key;
}

/* To be called when one of the others is about to be queued. */
static __always_inline void mark_other(u32 llc, struct task_struct *p, u64 vtime)
{
	struct set *set = &sets[llc];
	u64 head = nr_cpus == 1 || p->nr_cpus_allowed >= nr_cpus ? vtime : 0;

	__sync_fetch_and_add(&set->others_queued, 1);
	if (!set->others_waiting) {
		set->others_head = head;
		set->others_waiting = 1;
	} else if (set->others_head && before(vtime, set->others_head)) {
		set->others_head = head;
	}
}

/* To be called when one of them was taken. */
static __always_inline void mark_other_taken(u32 llc)
{
	struct set *set = &sets[llc];
	s32 had = __sync_fetch_and_add(&set->others_queued, -1);

	set->others_head = 0;
	if (had > 1)
		return;
	if (had < 1)					/* as above */
		__sync_fetch_and_add(&set->others_queued, 1);
	__sync_lock_test_and_set(&set->others_waiting, 0);
	if (nr_cpus > 1 && set->others_queued > 0)	/* one came meanwhile, and saw the mark */
		set->others_waiting = 1;
}

/* To be called when none of them was seen. */
static __always_inline void mark_no_others(u32 llc)
{
	sets[llc].others_head = 0;
	sets[llc].others_queued = 0;
	sets[llc].others_waiting = 0;
}

/* The virtual time of the first of the others that may run here; 0 if there is none. */
subprogram u64 first_other(u32 llc, s32 cpu)
{
	u64 vtime;

	llc &= MAX_LLCS - 1;
	vtime = sets[llc].others_head;
	if (vtime)
		return vtime;
	vtime = peek(others_dsq(llc), cpu);
	if (nr_cpus == 1)
		sets[llc].others_head = vtime;
	return vtime & ~PASSED;
}

/*
 * Ask the kernel which queues have threads, of those that had any so far: each costs a look into a
 * table, and a CPU does this whenever it idles. Returns whether any bit was missing.
 */
subprogram int repair(u32 llc)
{
	int missing = 0;
	u64 unmarked;
	s32 n;
	u32 i;

	llc &= MAX_LLCS - 1;
	unmarked = sets[llc].used & ~queues[llc].waiting;
	for_each_queue(i, unmarked) {
		barrier_var(llc);
		llc &= MAX_LLCS - 1;
		n = scx_bpf_dsq_nr_queued(dsq_of(llc, i));
		if (n <= 0)
			continue;
		queued[llc][i] = n;
		__sync_fetch_and_or(&sets[llc].stale, 1ULL << i);
		__sync_fetch_and_or(&queues[llc].waiting, 1ULL << i);
		missing = 1;
	}
	if (sets[llc].any_yielded && sets[llc].yielders <= 0) {
		n = scx_bpf_dsq_nr_queued(YIELDED_DSQ + llc);
		sets[llc].yielders = n;
		missing |= n > 0;
	}
	if (missing)
		count(repairs);
	return missing;
}

#endif
