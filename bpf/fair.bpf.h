/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The fair tier: what operators get of a CPU beside everybody else, and who interrupts whom.
 *
 * SHARES. All operators together are one entity whose weight is the sum of the weights of those
 * that want a CPU; every other thread is one of its own. An entity's virtual time grows by CPU time
 * / weight, and the one that lags behind goes first. That is what the kernel's fair class gives to
 * the same threads, so to schedule an engine takes nothing from its own other threads (garbage
 * collection, network, timers) nor from its neighbours: the order counts among operators alone.
 * (`operators_first` gives that up: see others.bpf.h for the share that is left to others then.)
 * Who is last in the order wants a CPU for longer than the fair class would let it: so the
 * controller says which part of the sum counts (ctl/backends/scx/weight.py).
 *
 * OWN RIGHT. One entity would wait as one: what the first in the order may have at once without an
 * order would have to wait until the time of the last has been paid for, behind each of a dozen
 * helpers that the engine's heartbeat woke. So each operator has a virtual time of its own, too, kept
 * as if it were one of the others; where that is not behind theirs, it runs before them. Its CPU time
 * is charged to all operators as ever, and of its weight only the part counts that does of theirs: so
 * they have no more than their share for it.
 *
 * Whoever comes back from sleep starts where the rest has got to, less what it lagged behind, which
 * is bounded: `lag_ns`.
 *
 * WAKE-UPS. As in the fair class, who wakes up and lags behind what runs interrupts that, but not
 * before it has run for base_slice_us. (An operator: since it woke up. Turns among operators are
 * shorter than that, and one that never sleeps would keep everybody else waiting at each.) Among
 * operators the order decides, and only between
 * queries: inside one a switch for each tuple would cost more than it gives, so a batch goes on to
 * the end of its slice. A more urgent operator of another query interrupts after control.least_us,
 * unless it is used to run for longer than the slice that it would cut short.
 *
 * Most who wake up beside a saturated query are helpers that run for some microseconds, thousands a
 * second. To interrupt a CPU means another interrupt, and then a decision; so one of the others who has
 * the next turn anyway, and at once, does not wait in the queue but goes straight to the CPU.
 *
 * The kernel ends slices at its ticks only. So each CPU has a timer, which is started where a run
 * has to end before that, and not at all if nobody asks. Where it cannot be started the run ends at a
 * tick: at the next one if that is known when the run begins, else with its slice.
 *
 * A higher class may be at work when somebody wakes up: then the operator that it interrupted waits
 * on this CPU (`resting`), and goes on until its least time is over.
 */
#ifndef SCHED_CTL_FAIR_BPF_H
#define SCHED_CTL_FAIR_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "order.bpf.h"
#include "cgroups.bpf.h"
#include "floor.bpf.h"

#define MOST_AHEAD (100 * MS)		/* how far operators may be ahead of the rest */
#define LEAST_WEIGHT 16
#define FORGOTTEN (1000 * MS)		/* who lags further behind does not hold up the rest */

struct alarm {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct alarm);
} alarms SEC(".maps");

/*
 * Times that several CPUs move: never with a plain store, which would undo what another CPU adds. Who
 * loses leaves it at what the other has made of it; the next one looks again.
 */
static __always_inline void raise(u64 *vtime, u64 least)
{
	u64 old = *vtime;

	if (before(old, least))
		__sync_bool_compare_and_swap(vtime, old, least);
}

static __always_inline void lower(u64 *vtime, u64 most)
{
	u64 old = *vtime;

	if (before(most, old))
		__sync_bool_compare_and_swap(vtime, old, most);
}

static __always_inline u64 lag_ns(void)
{
	return operators_first ? 10 * MS : 2 * base_slice_us * US;
}

/*
 * What an operator would be queued by if it were one of the others. Who has run since it woke up for
 * longer than a lag lasts has had that: it goes by the time of all.
 */
static __always_inline u64 own_vtime(u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	u64 least = others_now - pack(lag_ns(), 0);

	if ((s64)(t->run_ns - t->woken_run_ns - lag_ns()) >= 0)
		return operators_vtime;
	return before(t->vtime, least) ? least : t->vtime;
}

/*
 * CPU time of an operator in its own virtual time. Of its weight only the part counts that does of all
 * operators': together they have no more rights than time.
 */
static __always_inline u64 own_charge(struct task_struct *p, u64 ran_ns)
{
	u64 weight = thread_weight(p);

	if (control.weight_part)
		weight = weight * control.weight_part / WEIGHT_ONE;
	if (weight < LEAST_WEIGHT)
		weight = LEAST_WEIGHT;
	if (use_cgroups)
		return pack(cgroup_charge(group_of_thread(p), weight, ran_ns), 0);
	return pack(ran_ns * 1024 / weight, 0);
}

/* Who ran ahead of the rest and slept owes a slice of it, as others do. */
static __always_inline void forgive_own(u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	u64 most = others_now + pack(other_slice_us * US, 0);

	if (before(most, t->vtime))
		t->vtime = most;
}

/* An operator wants a CPU. */
static __always_inline void enter_operator(u32 slot, struct task_struct *p)
{
	struct thread *t = &threads[slot];
	u64 least;

	if (!t->query)
		floor_join(slot);
	if (t->weight)
		return;
	t->weight = thread_weight(p);
	if (__sync_fetch_and_add(&operators_weight, t->weight) > 0)
		return;
	least = others_now - pack(lag_ns(), 0);
	raise(&operators_vtime, least);
}

static __always_inline void leave_operator(u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	u32 weight = t->weight;

	if (!weight)
		return;
	t->weight = 0;
	floor_part(slot);
	__sync_fetch_and_add(&operators_weight, -(s64)weight);
}

/* What all operators that want a CPU weigh together. */
static __always_inline u64 counted_weight(void)
{
	s64 weight = operators_weight;

	return weight < LEAST_WEIGHT ? LEAST_WEIGHT : weight;
}

/* What counts of it. */
static __always_inline u64 weight_of_all(void)
{
	u64 weight = counted_weight();

	if (control.weight_part)
		weight = weight * control.weight_part / WEIGHT_ONE;
	return weight < LEAST_WEIGHT ? LEAST_WEIGHT : weight;
}

/* CPU time of an operator as virtual time of them all. */
static __always_inline u64 operators_charge(struct task_struct *p, u64 ran_ns)
{
	u64 weight = weight_of_all();

	if (use_cgroups)
		return pack(cgroup_charge(group_of_thread(p), weight, ran_ns) + 255, 0);
	return pack(ran_ns * 1024 / weight + 255, 0);
}

/* The virtual time of the first of the others that wait, wherever it may run; 0 if there is none. */
static __always_inline u64 front_of_others(u32 llc)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 vtime = 0;

	if (!sets[llc].others_waiting || sets[llc].others_head)
		return sets[llc].others_head;
	bpf_iter_scx_dsq_new(&it, others_dsq(llc), 0);
	p = bpf_iter_scx_dsq_next(&it);
	if (p)
		vtime = p->scx.dsq_vtime;
	bpf_iter_scx_dsq_destroy(&it);
	return vtime;
}

/* A thread with this virtual time begins to run: the rest has got as far, unless one waits behind. */
subprogram int fair_advance(u32 llc, u64 vtime)
{
	u64 front = front_of_others(llc & (MAX_LLCS - 1));

	if (front && before(front, vtime))
		vtime = front;
	if (!operators_first && operators_weight > 0 && before(operators_vtime, vtime) &&
	    before(others_now - pack(FORGOTTEN, 0), operators_vtime))
		vtime = operators_vtime;
	raise(&others_now, vtime);
	return 0;
}

/*
 * What the operator has run since it was charged last, into the time of its group, which is compared
 * with others' while it runs, and of all.
 */
static __always_inline void charge_operator(struct cpu *c, struct task_struct *p, u32 llc)
{
	u64 ran_ns = p->se.sum_exec_runtime - c->charged_ns, most;
	u32 g = (c->group - 1) & (MAX_GROUPS - 1);

	c->charged_ns += ran_ns;
	floor_ran(c->slot, ran_ns);
	if (c->group)
		__sync_fetch_and_add(&groups[g].vtime_ns,
				     ran_ns * SHARE_ONE / (control.groups[g].share ?: SHARE_ONE));
	if (operators_first)
		return;
	add(weighed_ns, ran_ns * 1024 / counted_weight());
	__sync_fetch_and_add(&operators_vtime, operators_charge(p, ran_ns));
	most = others_now + pack(MOST_AHEAD, 0);
	lower(&operators_vtime, most);
	if (sets[llc].others_waiting)
		fair_advance(llc, operators_vtime);
	else
		raise(&others_now, operators_vtime);
}

static int ring(void *map, int *key, struct bpf_timer *timer)
{
	struct cpu *c = &cpus[*key & (MAX_CPUS - 1)];
	u64 armed_ns = c->armed_ns;

	/* Another CPU may set it anew at this moment, for a run that has begun since. */
	if (!armed_ns || !__sync_bool_compare_and_swap(&c->armed_ns, armed_ns, 0))
		return 0;
	if (armed_ns == c->since_ns) {
		if (c->tier == TIER_NONE)
			c->wanted_us = 1;	/* a higher class runs: as soon as it is done */
		count(preempts);
		scx_bpf_kick_cpu(*key & (MAX_CPUS - 1), SCX_KICK_PREEMPT);
	}
	return 0;
}

/*
 * Let this CPU choose again as soon as what runs there, and has for had_ns, has for least_ns. 0: there
 * is no timer for it.
 */
subprogram int interrupt(u32 cpu, u64 had_ns, u64 least_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 since_ns = c->since_ns, old_ns = c->due_ns, armed_ns = c->armed_ns, due_ns;
	struct alarm *alarm;

	if ((s64)(had_ns - least_ns) >= 0) {
		count(preempts);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return 1;
	}
	due_ns = clock_ns() + least_ns - had_ns;
	if (armed_ns == since_ns && (s64)(due_ns - old_ns) >= 0)
		return 1;
	alarm = bpf_map_lookup_elem(&alarms, &cpu);
	if (!alarm)
		return 1;		/* there are no such CPUs */
	if (!__sync_bool_compare_and_swap(&c->armed_ns, armed_ns, since_ns) ||
	    !__sync_bool_compare_and_swap(&c->due_ns, old_ns, due_ns))
		return 1;		/* it rang, or another CPU set it: that one's time counts */
	count(alarms);
	if (control.fault != FAULT_TIMERS &&
	    !bpf_timer_start(&alarm->timer, least_ns - had_ns, BPF_F_TIMER_CPU_PIN))
		return 1;
	count(no_timers);
	if (armed_ns == since_ns)
		c->due_ns = old_ns;	/* the one before it still rings */
	else
		__sync_bool_compare_and_swap(&c->armed_ns, since_ns, 0);
	return 0;
}

/* The same for what begins to run here, now. */
static __always_inline void end_after(struct task_struct *p, u32 cpu, u64 had_ns,
				      u64 least_ns)
{
	if (!interrupt(cpu, had_ns, least_ns) && p->scx.slice > least_ns)
		set_slice(p, least_ns);		/* and so at the tick after that */
}

/* As `interrupt`, or when the operator goes on that waits for a higher class to finish there. */
static __always_inline void claim(u32 cpu, u64 had_ns, u32 least_us)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];

	if (c->tier != TIER_NONE)
		interrupt(cpu, had_ns, least_us * US);
	else if (!c->wanted_us || least_us < c->wanted_us)
		c->wanted_us = least_us;
}

/* Does the woken operator interrupt this one, of those that run or rest? */
subprogram int outranks(u32 slot, u64 key, u32 rival, u64 now_ns)
{
	struct slot *s = &slots[slot & (MAX_SLOTS - 1)], *r = &slots[rival & (MAX_SLOTS - 1)];
	u64 mine, its;
	u32 g, h;

	slot &= MAX_SLOTS - 1;
	rival &= MAX_SLOTS - 1;
	if (!s->query || !r->query || s->query == r->query || goes_first(rival, slot))
		return 0;
	if (control.nr_groups) {
		struct group *group = group_of(s->queue, &g);

		group_of(r->queue, &h);
		if (g != h && group->share)
			return (s64)(groups[g].vtime_ns - groups[h].vtime_ns) < 0;
	}
	mine = urgency_of(slot, key, now_ns);
	its = urgency_of(rival, key_of(rival, now_ns), now_ns);
	if (mine <= its)
		return 0;
	return mine >> RANK_SHIFT > its >> RANK_SHIFT ||
	       threads[slot].burst_ns < slice_ns(rival);
}

/* An operator woke up and waits for this CPU. */
static __always_inline void claim_for_operator(u32 slot, u64 key, u32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u32 rival = c->slot ?: c->resting;

	if (c->tier == TIER_OTHER) {
		u64 its = c->vtime + pack(now_ns - c->since_ns, 0);

		if (before(operators_vtime, its) || before(own_vtime(slot), its))
			interrupt(cpu, now_ns - c->turn_ns, base_slice_us * US);
	} else if (rival && control.least_us && outranks(slot, key, rival, now_ns)) {
		claim(cpu, now_ns - c->turn_ns, control.least_us);
	}
}

/*
 * Would an operator go before one of the others with this virtual time: the best of those that wait,
 * or the one that runs here, where its batch goes on?
 */
subprogram int any_by_right(u64 vtime, u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u32 slot = c->slot & (MAX_SLOTS - 1);
	u64 ran_ns = now_ns - c->since_ns, waiting, key;

	llc &= MAX_LLCS - 1;
	waiting = queues[llc].waiting;
	if (waiting && pick(llc, cpu, now_ns, waiting, &c->there) >= 0) {
		key = c->there.exact ?: queues[llc].head_key[c->there.queue & (MAX_QUEUES - 1)];
		if (!batch_goes_on(slot, key, now_ns - c->turn_ns))
			return !before(vtime, own_vtime(packed_slot(key)));
	}
	return !before(vtime, own_vtime(slot) + pack(ran_ns * 1024 / (threads[slot].weight ?: 1024), 0));
}

/*
 * One of the others woke up, of this virtual time, and is about to wait for this CPU. Returns whether
 * it has the next turn, now: then nothing has to be asked again.
 */
static __always_inline bool claim_for_other(u64 vtime, u32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 its = operators_vtime, ran_ns = now_ns - c->since_ns, had_ns = now_ns - c->turn_ns;
	struct thread *t = &threads[c->slot & (MAX_SLOTS - 1)];
	u32 llc = llc_of(cpu);

	if (c->tier == TIER_OTHER) {
		its = c->vtime + pack(ran_ns, 0);
	} else if (c->slot) {
		its += pack(ran_ns * 1024 / weight_of_all(), 0);
		had_ns = t->run_ns - t->woken_run_ns + ran_ns;
	} else if (!c->resting) {
		return false;
	}
	if (!before(vtime, its))
		return false;
	if (c->slot && (s64)(had_ns - base_slice_us * US) >= 0 && !sets[llc].others_waiting &&
	    !any_by_right(vtime, llc, cpu, now_ns))
		return true;
	claim(cpu, had_ns, base_slice_us);
	return false;
}

static __always_inline int fair_init(void)
{
	struct alarm *alarm;
	int error;
	u32 i;

	operators_vtime = others_now;
	for_each_number(i, nr_cpus) {
		u32 cpu = i;

		alarm = bpf_map_lookup_elem(&alarms, &cpu);
		if (!alarm)
			return -2;	/* ENOENT */
		error = ready(bpf_timer_init(&alarm->timer, &alarms, CLOCK_MONOTONIC)) ?:
			bpf_timer_set_callback(&alarm->timer, ring);
		if (error)
			return error;
	}
	return 0;
}

#endif
