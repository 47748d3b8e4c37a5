/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The weights and limits of cgroups, for threads that are not adopted (full mode only).
 *
 * Nothing of this is in the program unless `use_cgroups` is set, which the controller does where
 * the cpu controller has cgroups at all.
 *
 * Where from? From what the fair class knows of a cgroup: struct task_group has its shares and
 * its bandwidth on every kernel, for both versions of cgroups, and cpu.weight, cpu.shares and
 * cpu.max are written there whoever schedules. So there are no callbacks, and a change counts at
 * once. A cgroup's state here is found by its id in the cpu controller, small numbers that are
 * used again; one beyond MAX_CGROUPS has none, and its threads count as the next cgroup's above it
 * that has. (Autogroups have none either: they count as the root.)
 *
 * WEIGHTS. Each cgroup keeps the sum of the weights of its runnable threads and of its children
 * with runnable threads. A thread's part of the machine is the product, from it to the root, of
 * weight / sum, and its virtual time runs that much slower: one queue remains, no queue for each
 * cgroup. That is the fair class's own meaning of weights, flattened.
 *
 *	sum(cgroup) = its runnable threads + `counted` of each child
 *	counted = the cgroup's weight while its sum is above 0, else 0
 *
 * Whoever changes a sum from or to 0 exchanges `counted` and hands the difference on to the
 * parent: in whatever order CPUs do that, the parent's sum holds what `counted` says. If two of
 * them leave it wrong, the next one who charges the cgroup puts it right (`count_in`).
 *
 * LIMITS. CPU time is charged to every limited cgroup above the thread. At the end of a period a
 * quota is taken off. Who has more than its quota is throttled: its threads are parked in a queue
 * of their own when they are next queued, and a timer puts back those who may run again: each
 * 10 ms while there are any, and with thousands of them in pieces of UNPARK_FOR. Where it cannot be
 * started nobody is parked, and those that are go on. A slice may overdraw; that is taken off the
 * periods to come. Bursts (cpu.max.burst) are not saved up.
 * Operators go first whatever cgroup they are in: they are not throttled and not charged.
 */
#ifndef SCHED_CTL_CGROUPS_BPF_H
#define SCHED_CTL_CGROUPS_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"

enum { MAX_CGROUPS = 4096, MAX_DEPTH = 12, MOST_LEVELS = 1000, ROOT = 1 };

#define UNPARK_EVERY (10 * MS)
#define PARKS_GO_ON (100 * MS)		/* the timer goes on for so long when nobody is parked any more */
#define UNPARK_FOR (100 * US)		/* the longest look ... */
#define UNPARK_SOON (2 * MS)		/* ... after which the next one goes on */

struct cgroup_state {
	s64 sum;			/* weights of who wants the CPU in it */
	u64 counted;			/* its own weight in its parent's sum */
	u64 period_ns;			/* when the period of its limit began */
	s64 used_ns;			/* in this period */
	u32 parent;
	u32 reserved;
};
struct cgroup_state cgroup_states[MAX_CGROUPS];
u32 many_parked;			/* the last look came not to the end of those who are parked */
u32 unparks;				/* the timer that puts them back is set */
u64 last_parked_ns;

struct counted {			/* a runnable thread, as it was counted */
	u32 cgroup;
	u32 weight;			/* 0: it is not */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct counted);
} counted SEC(".maps");

struct unpark {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct unpark);
} unpark_timer SEC(".maps");

static __always_inline struct cgroup_state *state_of(u32 cgroup)
{
	return &cgroup_states[cgroup & (MAX_CGROUPS - 1)];
}

/*
 * Cgroups are handed on as addresses, not as pointers that the verifier follows: so each loop over
 * them is verified once, not once for each place that it is called from.
 */
/* To read from: each field is one load, which gives 0 where nothing can be read. */
static __always_inline struct task_group *group_at(u64 address)
{
	return bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct task_group));
}

/* What a field points to. Of all types, this one begins with a number: then the verifier sees no pointer. */
static __always_inline u64 address_in(const void *field)
{
	const struct load_weight *number =
		bpf_rdonly_cast(field, bpf_core_type_id_kernel(struct load_weight));

	return number->weight;
}

static __always_inline bool has_state(int id)
{
	return id > 0 && id < MAX_CGROUPS;
}

subprogram u64 first_with_state(u64 group)
{
	u32 level;

	for_each_number(level, MOST_LEVELS) {
		if (!group || has_state(group_at(group)->css.id))
			break;
		group = address_in(&group_at(group)->parent);
	}
	return group;
}

/* The first of this cgroup and those above it that has a state here. */
static __always_inline u64 with_state(u64 group)
{
	return has_state(group_at(group)->css.id) ? group : first_with_state(group);
}

static __always_inline u64 group_of_thread(struct task_struct *p)
{
	return with_state(address_in(&p->sched_task_group));
}

static __always_inline u64 parent_of(u64 group)
{
	return with_state(address_in(&group_at(group)->parent));
}

static __always_inline u32 cgroup_id(u64 group)
{
	int id = group ? group_at(group)->css.id : 0;

	return has_state(id) ? id : ROOT;
}

/* 1024 = cpu.weight 100 = cpu.shares 1024. */
static __always_inline u64 cgroup_weight(u64 group)
{
	return (group_at(group)->shares >> 10) ?: 1;
}

/* 1024 = nice 0. */
static __always_inline u32 thread_weight(struct task_struct *p)
{
	return (p->scx.weight ?: 100) * 1024 / 100;
}

/* A thread of this weight wants the CPU: count it, and the cgroups that it makes active. */
subprogram int enter(u64 group, u64 weight)
{
	struct cgroup_state *s;
	u32 cgroup, i;
	u64 own;

	for_each_number(i, MAX_DEPTH) {
		if (!group)
			break;
		cgroup = cgroup_id(group);
		s = state_of(cgroup);
		if (__sync_fetch_and_add(&s->sum, weight) > 0 || cgroup == ROOT)
			return 0;
		own = cgroup_weight(group);
		group = parent_of(group);
		s->parent = cgroup_id(group);
		weight = own - __sync_lock_test_and_set(&s->counted, own);
	}
	return 0;
}

/* Add to an active cgroup's sum, and take it out of those above if that makes it idle. */
subprogram int adjust(u32 cgroup, s64 weight)
{
	struct cgroup_state *s;
	u32 i;

	for (i = 0; i < MAX_DEPTH; i++) {
		s = state_of(cgroup);
		if (__sync_fetch_and_add(&s->sum, weight) + weight > 0 || cgroup <= ROOT)
			return 0;
		weight = -(s64)__sync_lock_test_and_set(&s->counted, 0);
		cgroup = s->parent;
	}
	return 0;
}

/* Bring what the parent counts for an active cgroup up to date. */
subprogram int count_in(u32 cgroup, u32 parent, u64 own)
{
	struct cgroup_state *s = state_of(cgroup);
	s64 difference;

	s->parent = parent;
	if (s->counted == own || s->sum <= 0)
		return 0;
	difference = (s64)own - (s64)__sync_lock_test_and_set(&s->counted, own);
	return adjust(parent, difference);
}

/* The part of this weight among all in the cgroup, of a part of 2^20. */
subprogram u64 part_in(u32 cgroup, u64 weight, u64 part)
{
	u64 sum = state_of(cgroup)->sum;

	return (s64)sum > (s64)weight ? part * weight / sum : part;
}

/* CPU time of a thread of this weight as virtual time, by the weights from it up to the root. */
subprogram u64 cgroup_charge(u64 group, u64 weight, u64 ran_ns)
{
	u32 cgroup = cgroup_id(group), parent, i;
	u64 part = 1 << 20;

	for_each_number(i, MAX_DEPTH) {
		if (!group)
			break;
		part = part_in(cgroup, weight, part);
		if (cgroup == ROOT)
			break;
		weight = cgroup_weight(group);
		group = parent_of(group);
		parent = cgroup_id(group);
		count_in(cgroup, parent, weight);
		cgroup = parent;
	}
	if (part < 1 << 10)
		part = 1 << 10;		/* no weight is less than a thousandth */
	return (ran_ns << 20) / part;
}

/* Charge CPU time to a limited cgroup, after the quotas of past periods. Is its quota used up? */
subprogram int charge_limit(u32 cgroup, u64 quota_ns, u64 period_ns, u64 ran_ns, u64 now_ns)
{
	struct cgroup_state *s = state_of(cgroup);
	u64 began_ns = s->period_ns, periods = 0;
	s64 paid_ns;

	if (period_ns < MS)
		period_ns = MS;
	/* Clocks of CPUs differ a little: this one may be behind that of who began the period. */
	if ((s64)(now_ns - began_ns) > 0)
		periods = (now_ns - began_ns) / period_ns;
	/* One CPU takes the quotas off; what others charge meanwhile stays. */
	if (periods && __sync_bool_compare_and_swap(&s->period_ns, began_ns,
						    began_ns + periods * period_ns)) {
		paid_ns = s->used_ns;
		if (periods <= 1000 && paid_ns > (s64)(quota_ns * periods))
			paid_ns = quota_ns * periods;
		__sync_fetch_and_add(&s->used_ns, -paid_ns);
	}
	if (ran_ns)
		__sync_fetch_and_add(&s->used_ns, ran_ns);
	return s->used_ns >= (s64)quota_ns;
}

/* Charge CPU time to the limits from a cgroup up. Is one of them used up? */
subprogram int charge_limits(u64 group, u64 ran_ns, u64 now_ns)
{
	struct task_group *g;
	int found = 0;
	u32 cgroup, i;
	u64 quota;

	for_each_number(i, MAX_DEPTH) {
		if (!group)
			break;
		cgroup = cgroup_id(group);
		if (cgroup == ROOT)
			break;			/* it has no limit */
		g = group_at(group);
		if (!bpf_core_field_exists(g->cfs_bandwidth))
			break;			/* CONFIG_CFS_BANDWIDTH */
		quota = g->cfs_bandwidth.quota;
		if ((s64)quota > 0)		/* ~0: no limit */
			found |= charge_limit(cgroup, quota, g->cfs_bandwidth.period,
					      ran_ns, now_ns);
		group = parent_of(group);
	}
	return found;
}

static __always_inline bool throttled(struct task_struct *p, u64 ran_ns, u64 now_ns)
{
	return use_cgroups && charge_limits(group_of_thread(p), ran_ns, now_ns);
}

/*
 * The thread wants the CPU. Returns whether it was counted now. Where there is no memory it weighs
 * nothing against its siblings until the next attempt, after its slice. slot: an operator's, of
 * whose weight a part counts (fair.bpf.h).
 */
static __always_inline bool count_thread(struct task_struct *p, u32 slot)
{
	u64 group = group_of_thread(p), part = control.weight_part;
	struct counted *entry = bpf_task_storage_get(&counted, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!entry || entry->weight)
		return false;
	entry->cgroup = cgroup_id(group);
	entry->weight = thread_weight(p);
	if (slot) {
		if (part)
			entry->weight = (entry->weight * part / WEIGHT_ONE) ?: 1;
		threads[slot & (MAX_SLOTS - 1)].part = part;
	}
	enter(group, entry->weight);
	return true;
}

static __always_inline void discount_thread(struct task_struct *p)
{
	struct counted *entry = bpf_task_storage_get(&counted, p, 0, 0);
	u32 weight;

	if (!entry || !entry->weight)
		return;
	weight = entry->weight;
	entry->weight = 0;
	adjust(entry->cgroup, -(s64)weight);
}

static int unpark(void *map, int *key, struct bpf_timer *timer);

static __always_inline int unpark_init(void)
{
	struct unpark *u;
	u32 zero = 0;

	u = bpf_map_lookup_elem(&unpark_timer, &zero);
	if (!u)
		return -2;		/* ENOENT */
	return ready(bpf_timer_init(&u->timer, &unpark_timer, CLOCK_MONOTONIC)) ?:
	       bpf_timer_set_callback(&u->timer, unpark);
}

/* A thread is about to be parked: is there a timer for it? Else it must not be. */
static __always_inline bool unpark_later(u64 now_ns)
{
	struct unpark *u;
	u32 zero = 0;

	__sync_lock_test_and_set(&last_parked_ns, now_ns);	/* before who stops the timer looks */
	if (unparks)
		return true;
	u = bpf_map_lookup_elem(&unpark_timer, &zero);
	if (u && control.fault != FAULT_TIMERS && !bpf_timer_start(&u->timer, UNPARK_EVERY, 0)) {
		unparks = 1;
		return true;
	}
	count(no_timers);
	return false;
}

#endif
