/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everything the scheduler remembers: tunables, shared sections, per-CPU state, and which slot
 * a thread has.
 *
 * All of it is global data: an access is one address, not a map lookup. The lookups are those of
 * rows that engines write, where they count, and of a thread's slot in task storage, when it is
 * first queued. Its result rides along in the
 * low bits of p->scx.dsq_vtime, which sched_ext leaves to us:
 *
 *	63                          16 15      0
 *	[ nanoseconds, in units of 256 ][ slot ]	slot 0: a thread that is not adopted
 *
 * The kernel orders queues by this value, so equal times are ordered by slot. Differences of two
 * such times are right as long as they are less than a year.
 */
#ifndef SCHED_CTL_STATE_BPF_H
#define SCHED_CTL_STATE_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"

/* Tunables: set before load. */
const volatile bool operators_first ABOUT(
	"operators go before all others, who have guarantee_percent; else both share fairly") = false;
const volatile u32 base_slice_us ABOUT(
	"what runs is left alone for so long before somebody who lags behind it preempts it, us") = 700;
const volatile u32 guarantee_percent ABOUT(
	"share of each CPU guaranteed to threads that are not adopted, 0..90 %") = 5;
const volatile u32 debt_ms ABOUT(
	"leftover CPU time that others took and that counts against their guarantee, ms") = 100;
const volatile u32 other_slice_us ABOUT("slice of threads that are not adopted, us") = 3000;
const volatile u32 other_starvation_ms ABOUT(
	"a thread that is not adopted and waits longer runs next, whatever its weight, ms") = 5000;
const volatile bool use_cgroups ABOUT(
	"weights and limits of cgroups count for threads that are not adopted") = false;
const volatile bool follow_use ABOUT(
	"the governor is asked for as much of each CPU as is used, else for all of it") = true;
const volatile u32 trace_records ABOUT(
	"size of the map trace, a power of two; 0 = no tracing") = TRACE_OFF;
const volatile u32 nr_llcs ABOUT("sets of queues, one a last-level cache or more, 1..MAX_LLCS") = 1;
const volatile u32 nr_cpus ABOUT("CPUs that there can be, 1..MAX_CPUS") = MAX_CPUS;
const volatile u8 llc_of_cpu[MAX_CPUS] ABOUT("index of each CPU's set of queues") = {};
const volatile u16 cpus_of_llc[MAX_LLCS * SET_CPUS] ABOUT(
	"rows of SET_CPUS: the CPUs of each set of queues, + 1; 0 = no more") = {};

struct control control SEC(".data.control") = {
	.nr_queues = 1,
	.slice_us = 3000,
	.least_us = 500,
	.until_block_ms = 100,
	.starvation_ms = 500,
	.rescue_ms = 50,
	.queues = { { .slope = 1024 } },
};
struct slot slots[MAX_SLOTS] SEC(".bss.slots");
u64 heads[MAX_SLOTS] SEC(".bss.heads");
u32 arrivals[MAX_SLOTS] SEC(".bss.arrivals");
u32 weights[MAX_QUERIES] SEC(".bss.weights");
struct thread threads[MAX_SLOTS] SEC(".bss.threads");
struct queue_state queues[MAX_LLCS] SEC(".bss.queues");
struct group_state groups[MAX_GROUPS] SEC(".bss.groups");
struct stats stats[MAX_CPUS] SEC(".bss.stats");
struct exit_report exit_report SEC(".bss.exit");
char exit_dump[DUMP_BYTES] SEC(".bss.dump");

/*
 * Enums of which only constants are used would be left out of BTF, where the controller reads them,
 * and so would a struct that is only in inner maps.
 */
struct {
	struct live live;
	enum limits limits;
	enum slot_flags slot_flags;
	enum queue_flags queue_flags;
	enum trace_event trace_event;
	enum fault fault;
} published;

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct adoption);
} adopted SEC(".maps");

struct live_rows {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct live);
};
struct {				/* one an engine that writes live rows */
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_ENGINES);
	__type(key, u32);
	__array(values, struct live_rows);
} live SEC(".maps");

struct {				/* resized by whoever sets trace_records */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct trace_record);
} trace SEC(".maps");

enum tier { TIER_NONE, TIER_OPERATOR, TIER_OTHER };

/* What a decision compares: a group's virtual time first (smaller wins), then urgency. */
struct candidate {
	u64 vtime_ns;
	u64 urgency;
	u64 exact;			/* packed vtime of the thread, if its queue is exact */
	s32 queue;			/* -1: none */
};

struct cpu {
	u64 start_ns;			/* sum_exec_runtime of what runs when it began to run */
	u64 since_ns;			/* when it began to run */
	s64 credit_ns;			/* CPU time owed to others by the guarantee */
	u64 next_chores_ns;
	u64 next_rescue_ns;
	u32 slot;			/* of the operator that runs here; 0 = none */
	u8 tier;			/* enum tier of what runs here */
	u8 woken;			/* 1: an operator was, since this CPU last chose what to run */
	u16 group;			/* group that it was counted to, + 1; 0 = none */
	u64 interrupted;		/* key of the operator that a higher class preempted here; 0 = none */
	u64 next_look_ns;		/* when to look for others that starve */
	u64 next_lend_ns;
	u64 stopped_ns;			/* when what ran here last stopped */
	u64 groups_ns;			/* virtual time that groups have reached here */
	u64 charged_ns;			/* sum_exec_runtime up to which operators were charged */
	u64 vtime;			/* packed, of the other that runs here, when it began to */
	u64 armed_ns;			/* since_ns of the run that the timer here is to end */
	u64 due_ns;			/* when that timer rings */
	u64 turn_ns;			/* when it was chosen, without times of a higher class since */
	u32 resting;			/* slot of the operator that a higher class interrupted here */
	u32 wanted_us;			/* it is to give way when its turn took so long; 0 = it is not */
	u64 tried_ns;			/* who waits since then or longer could not be moved; 0 = nobody */
	u32 hand;			/* the first row of `threads` that it looks at next ... */
	u32 lending_hand;		/* ... and for whom to lend a turn */
	u8 hurried;			/* 1: somebody waits so long that turns are short */
	u8 contended;			/* 1: others of another set could run here */
	u8 yielded;			/* 1: what runs here gave its turn up */
	u8 pulled;			/* 1: the other that runs next lagged behind in another set */
	u8 rescued;			/* 1: its last chores were one of the others that had starved */
	u8 from_tail;			/* 1: it looks for others that starve from the tail on */
	u32 done;			/* slot of an operator that went to sleep here, whose flushers wait */
	u32 floor_hand;			/* the first row in which it looks for who lags */
	u64 next_floor_ns;		/* when it may look again, while somebody lags: until ... */
	u64 floor_until_ns;		/* ... then */
	u64 next_far_ns;		/* when to look at the operators of other sets */
	u64 from_vtime;			/* of whom `from` tells, packed */
	u16 from;			/* set whose others have the next turn here, + 1; 0 = ours */
	u16 far;			/* which set it looked at last, from its own on */
	/* Of the decision at hand: for the stack they would be too much. */
	u8 by_right;			/* 1: the operator that runs next goes before others who lag */
	u64 own;			/* vtime of the operator that could go on, as one of the others */
	struct candidate mine;		/* the operator that could go on */
	struct candidate here, there;	/* the best that wait in its own set, and in another */
} LINES;
struct cpu cpus[MAX_CPUS];

u64 trace_next;				/* records written so far */
u64 others_now LINES;			/* virtual time that the fair tier has reached, packed */
u64 operators_vtime LINES;		/* of all operators together, packed */
s64 operators_weight;			/* sum of the weights of those that want a CPU */
u64 monotonic_offset_ns LINES;		/* CLOCK_MONOTONIC - scheduler clock */
u64 others_first_until_ns;		/* hints came back: operators still queue among the others */
u32 hints_valid = 1;			/* the heartbeat is young enough */

/* A timer is there since the last time that this object was attached. */
static __always_inline int ready(long error)
{
	return error == -16 ? 0 : error;	/* EBUSY */
}

#define MS 1000000LL
#define US 1000LL
#define CHORES_NS (10 * MS)
#define here() (bpf_get_smp_processor_id() & (MAX_CPUS - 1))
#define this_cpu() (&cpus[here()])
#define count(counter) (stats[here()].counter++)
#define add(counter, n) (stats[here()].counter += (n))

#include "urgency.h"

/*
 * The slot of a thread, or 0: not adopted, or hints are not to be trusted now. Nor is it an operator
 * any more that exits: soon no pid leads to it, so nobody could move it by that out of a queue of ours.
 */
static __always_inline u32 find_slot(struct task_struct *p)
{
	struct adoption *adoption;
	u32 slot = packed_slot(p->scx.dsq_vtime);

	if (!hints_valid || (p->flags & PF_EXITING))
		return 0;
	/* As when it was queued last? Then its slot is still in dsq_vtime. */
	if (slot && threads[slot].tid == p->pid && (slots[slot].flags & SLOT_ACTIVE))
		return slot;
	adoption = bpf_task_storage_get(&adopted, p, 0, 0);
	if (!adoption)
		return 0;
	slot = adoption->slot & (MAX_SLOTS - 1);
	if (!slot || !(slots[slot].flags & SLOT_ACTIVE))
		return 0;
	threads[slot].tid = p->pid;
	return slot;
}

static __always_inline u32 llc_of(s32 cpu)
{
	return nr_llcs > 1 ? llc_of_cpu[cpu & (MAX_CPUS - 1)] & (MAX_LLCS - 1) : 0;
}

static __always_inline void record(u32 event, u32 slot, u64 now_ns, u64 key)
{
	struct trace_record *r;
	u32 i;

	if (!trace_records)
		return;
	i = __sync_fetch_and_add(&trace_next, 1) & (trace_records - 1);
	r = bpf_map_lookup_elem(&trace, &i);
	if (!r)
		return;			/* resized without setting trace_records */
	slot &= MAX_SLOTS - 1;
	r->time_ns = now_ns;
	r->key = key;
	r->origin_ns = threads[slot].origin_ns;
	r->event = event;
	r->slot = slot;
	r->cpu = bpf_get_smp_processor_id();
	r->queue = slots[slot].queue;
}

/*
 * Every CHORES_NS: is the heartbeat young enough? Between two looks a dead controller's hints
 * stay in force, which adds that to the TTL.
 */
static __always_inline void check_heartbeat(u64 now_ns)
{
	u64 monotonic_ns, offset_ns;
	u32 valid;

	monotonic_ns = bpf_ktime_get_ns();
	offset_ns = monotonic_ns - now_ns;
	/* All CPUs read these: write what has changed only. */
	if (offset_ns - monotonic_offset_ns + US > 2 * US)
		monotonic_offset_ns = offset_ns;
	valid = !control.ttl_ms || (s64)(monotonic_ns - control.heartbeat_ns) < control.ttl_ms * MS;
	if (!valid && hints_valid)
		count(expired);
	if (valid && !hints_valid)
		others_first_until_ns = now_ns + 100 * MS;
	if (valid != hints_valid)
		hints_valid = valid;
}

#endif
