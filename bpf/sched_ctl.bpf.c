// SPDX-License-Identifier: GPL-2.0-only
/*
 * sched_ctl: a sched_ext scheduler that gives the operator threads of stream processing engines
 * the CPU in the order that a streaming policy wants.
 *
 * 1. WHO. A thread is an operator if the controller put it into the task storage map `adopted`
 *    and filled the slot that this names; anybody else is "other". In partial mode
 *    (SCX_OPS_SWITCH_PARTIAL, the default) only threads with policy SCHED_EXT come here, and the
 *    kernel's fair class ranks above us. In full mode every normal thread does. The program is
 *    the same: in partial mode, others are threads that inherited the policy.
 *
 * 2. ORDER of operators (order.bpf.h). Up to 64 queues (queues.bpf.h), each sorted by age plus a
 *    head start; the heads are compared by urgency when a CPU asks what to run. So wait-dependent
 *    policies are decided at that moment, the one thing that user space cannot do. The controller
 *    expresses policies through the queues' slopes and the threads' leads (sched_ctl.h says how),
 *    so a change of policy is a write to shared memory.
 *
 * 3. AGE. A thread is as old as the work that it carries: woken by an operator, it inherits the
 *    waker's origin; woken from outside (an ingress), its origin is now, and again at the end of
 *    each slice, or an ingress that never sleeps would look ever older. That needs nothing from
 *    the engine and was measured to be as good as the engine's true head ages, which it may
 *    share in `live`.
 *
 *    The order takes from no query the share that it would have without one (floor.bpf.h).
 *
 * 4. OTHERS (others.bpf.h): weighted fair, with a small guaranteed and prepaid share; in full
 *    mode by the weights and limits of their cgroups, where there are any (cgroups.bpf.h).
 *
 *    Flushers, which hand on what an operator has made by timers of their own, are others that
 *    may be held until it is done (flushers.bpf.h).
 *
 * 5. LIFE of a thread:
 *
 *	woken -> select_cpu -> idle CPU found: runs there at once
 *	      -> enqueue -> its queue -> dispatch (of any CPU it may use) -> running
 *	running -> blocks: stopping
 *	        -> slice ends: dispatch; if it still wins it keeps the CPU with a new slice, else
 *	           stopping -> enqueue
 *	        -> a higher class preempts it: afterwards it goes on with the rest of its slice
 *
 *    Were that a new decision instead, input that comes through real-time threads (network
 *    interrupts are such) would make one for each tuple, and a switch for each operator: no
 *    batches. On one CPU the kernel keeps the thread at the head of the local queue. With several
 *    it goes back to its own queue, where any CPU may take it in its turn, for the higher class
 *    may run for long; its CPU looks for it first. Others get no rest: stopping zeroes their slice,
 *    for at the head of the local queue they would go before operators.
 *
 *    A wake-up does not preempt a running operator (unless control.preempt_times says so): order
 *    is decided when a slice ends or a thread blocks. Others who run on leftovers are preempted;
 *    so are those chosen before the wake-up who begin to run after it: up to 6.18 the kernel asks
 *    what to run although a higher class goes first, and that one may wake operators meanwhile.
 *    Exiting threads queue among the others (SCX_OPS_ENQ_EXITING), or each would go before operators.
 *    There is no cpu_release callback: re-queueing from there was seen to renew a hog's slice.
 *
 *    Who yields has had its turn (yield.bpf.h): the next decision leaves it out.
 *
 * 6. TRUST. Hints count while the heartbeat is young; after that every thread is "other". Leads
 *    are bounded, and an operator that waits longer than control.starvation_ms runs whatever the
 *    hints say, in its turn (starve.bpf.h). All indices from shared memory are masked. If the
 *    controller dies, the link closes and the kernel takes all threads back to the fair class.
 */
#include "kernel.bpf.h"

#include "sched_ctl.h"

#include "compat.bpf.h"
#include "state.bpf.h"

#include "queues.bpf.h"
#include "order.bpf.h"
#include "cgroups.bpf.h"
#include "floor.bpf.h"
#include "fair.bpf.h"
#include "others.bpf.h"
#include "perf.bpf.h"
#include "flushers.bpf.h"
#include "starve.bpf.h"
#include "owed.bpf.h"
#include "yield.bpf.h"
#include "caches.bpf.h"

#define LEAST_LOSS (MS / 2)	/* the fair class takes more than this; interrupts and drivers less */

char _license[] SEC("license") = "GPL";

/* Does this CPU give leftover time, which nobody owes them, to others? */
static __always_inline bool runs_leftovers(struct cpu *c, u64 now_ns)
{
	return c->tier == TIER_OTHER && c->credit_ns - (s64)(now_ns - c->since_ns) < QUANTUM / 4;
}

/* A CPU of this set that runs leftovers, or -1. */
subprogram int find_leftovers(u32 llc, u64 now_ns)
{
	u32 i, cpu;

	for (i = 0; i < SET_CPUS; i++) {
		cpu = cpus_of_llc[(llc & (MAX_LLCS - 1)) * SET_CPUS + i];
		if (!cpu)
			break;
		if (runs_leftovers(&cpus[(cpu - 1) & (MAX_CPUS - 1)], now_ns))
			return cpu - 1;
	}
	return -1;
}

static __always_inline void preempt_others(struct task_struct *p, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u32 llc;

	if (runs_leftovers(c, now_ns)) {
		count(preempts);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return;
	}
	if (nr_cpus < 2 || p->nr_cpus_allowed < 2)
		return;
	if (kick_idle(p))
		return;
	llc = llc_of(cpu);
	cpu = find_leftovers(llc, now_ns);
	if (cpu < 0 && nr_llcs > 1)
		cpu = find_leftovers(next_set(this_cpu(), llc), now_ns);
	if (cpu >= 0 && may_run(p, cpu)) {
		count(preempts);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

/* Tests only. */
static __always_inline bool loses_all(void)
{
	return control.fault == FAULT_ERROR || control.fault == FAULT_LOSS;
}

SEC("struct_ops/sched_ctl_select_cpu")
s32 BPF_PROG(sched_ctl_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	u64 now_ns;
	u32 slot, g;

	if (!idle || loses_all())
		return cpu;
	count(idle_wakeups);
	slot = find_slot(p);
	if (!slot) {
		if (throttled(p, 0, clock_ns()) || flusher(p))
			return cpu;		/* the idle CPU asks, if it is not held */
		set_vtime(p, others_start(p, true));
		dsq_insert(p, SCX_DSQ_LOCAL, others_slice_ns(), 0);
		return cpu;
	}
	if (control.nr_groups) {
		if (group_of(slots[slot].queue, &g)->cap)
			return cpu;		/* the idle CPU asks, and counts who runs */
		/* Nobody else wants this CPU: who does later is compared with how far this one got. */
		forgive_group(slot, groups_now_ns);
		if (control.groups[g].share)
			groups_reach(&cpus[cpu & (MAX_CPUS - 1)], groups[g].vtime_ns);
	}
	now_ns = clock_ns();
	inherit(slot, now_ns, here());
	enter_operator(slot, p);
	wait_for_cpu(&threads[slot], now_ns);
	set_vtime(p, key_of(slot, now_ns));
	dsq_insert(p, SCX_DSQ_LOCAL, slice_ns(slot), 0);
	return cpu;
}

/*
 * The kernel's own per-CPU workers: short, and others wait for them. (One CPU is all that any
 * thread has on a machine with one CPU; those that the kernel bound to it nobody may move.)
 */
static __always_inline bool is_worker(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 && (p->flags & PF_BOUND_KTHREAD) == PF_BOUND_KTHREAD;
}

static __always_inline void enqueue_other(struct task_struct *p, u64 enq_flags)
{
	/*
	 * At once, but only when they wake up: two that go on would preempt each other for ever,
	 * and nobody else would run.
	 */
	if (is_worker(p) && (enq_flags & SCX_ENQ_WAKEUP)) {
		count(kernel_threads);
		set_vtime(p, others_start(p, true));
		dsq_insert(p, SCX_DSQ_LOCAL, others_slice_ns(), enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	if ((enq_flags & SCX_ENQ_WAKEUP) && hold_flusher(p, enq_flags))
		return;
	queue_other(p, enq_flags);
	/* Not at wake-ups only: it may have been preempted, or been allowed on more CPUs. */
	kick_idle(p);
}

/* Does the woken thread beat the operator that runs on `cpu` by preempt_times? */
subprogram int preempts(u32 slot, u64 key, s32 cpu, u64 now_ns)
{
	u32 running = cpus[cpu & (MAX_CPUS - 1)].slot & (MAX_SLOTS - 1);

	slot &= MAX_SLOTS - 1;
	if (!running || held_by_cap(slot, cpu))
		return 0;
	/* Not the other one's times so many: that may be more than a number holds. */
	return urgency_of(slot, key, now_ns) / control.preempt_times >
	       urgency_of(running, key_of(running, now_ns), now_ns);
}

SEC("struct_ops/sched_ctl_enqueue")
void BPF_PROG(sched_ctl_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 slot = find_slot(p), queue, llc;
	struct thread *t;
	u64 now_ns, key, slice;
	s32 cpu = cpu_of(p);

	if (loses_all()) {
		if (control.fault == FAULT_ERROR)
			scx_error("a fault was asked for");
		return;
	}
	if (nr_cpus > 1 && is_held_here(p)) {
		dsq_insert(p, SCX_DSQ_LOCAL, others_slice_ns(), enq_flags);
		return;
	}
	if (!slot) {
		operator_no_more(p, packed_slot(p->scx.dsq_vtime));
		enqueue_other(p, enq_flags);
		return;
	}
	t = &threads[slot];
	enter_operator(slot, p);
	now_ns = clock_ns();
	if ((enq_flags & SCX_ENQ_WAKEUP) || !t->origin_ns)
		inherit(slot, now_ns, here());
	if (enq_flags & SCX_ENQ_WAKEUP)
		forgive_own(slot);
	key = key_of(slot, now_ns);
	queue = slots[slot].queue & (MAX_QUEUES - 1);
	record(TRACE_ENQUEUE, slot, now_ns, key);

	if (control.preempt_times && (enq_flags & SCX_ENQ_WAKEUP) &&
	    preempts(slot, key, cpu, now_ns)) {
		count(preempts);
		wait_for_cpu(t, now_ns);
		set_vtime(p, key);
		dsq_insert(p, SCX_DSQ_LOCAL, slice_ns(slot), enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	llc = llc_of(cpu);
	if (t->yielded && !(enq_flags & SCX_ENQ_WAKEUP)) {
		put_aside(p, slot, llc, key, slice_ns(slot), now_ns, enq_flags);
		kick_idle(p);
		return;
	}
	if (control.nr_groups && ((enq_flags & SCX_ENQ_WAKEUP) || is_new_to_group(slot)))
		forgive_group(slot, groups_now_for(p));
	slice = slice_ns(slot);
	if (t->left_ns) {
		if (!(enq_flags & SCX_ENQ_WAKEUP)) {
			cpus[cpu & (MAX_CPUS - 1)].interrupted = key;
			slice = t->left_ns;
		}
		t->left_ns = 0;
	}
	wait_in(t, p, slot, llc, now_ns, enq_flags & SCX_ENQ_WAKEUP);
	mark_waiting(llc, queue, key);
	dsq_insert_vtime(p, dsq_of(llc, queue), slice, key, enq_flags);
	if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		kick_idle(p);
		return;
	}
	cpus[cpu & (MAX_CPUS - 1)].woken = 1;
	if (operators_first)
		preempt_others(p, cpu, now_ns);
	else if (kick_idle(p))
		return;
	claim_for_operator(slot, key, cpu, now_ns);
}

enum { RUN_NOTHING, RUN_MOVED, RUN_KEEP };

/* Let the operator go on that a higher class preempted on this CPU, if no other CPU has it. */
subprogram int resume(u32 llc, s32 cpu)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 key = c->interrupted;
	u32 queue = slots[packed_slot(key)].queue & (MAX_QUEUES - 1), g;
	struct group *group = group_of(queue, &g);

	llc &= MAX_LLCS - 1;
	c->interrupted = 0;
	if (control.nr_groups && at_cap(group, g, cpu))
		return 0;		/* another of its group took its place */
	if (!move_exactly(dsq_of(llc, queue), key, cpu))
		return 0;
	mark_taken(llc, queue);
	return 1;
}

/* It goes on: a new turn, unless it was only asked to end its turn early and did not have to. */
static __always_inline void keep_operator(struct cpu *c, struct task_struct *prev, u32 slot,
					  u64 now_ns)
{
	u64 slice = slice_ns(slot);

	if (c->hurried && slice > HURRIED_SLICE)
		slice = HURRIED_SLICE;
	if (now_ns - c->turn_ns >= slice)
		c->turn_ns = now_ns;
	threads[slot & (MAX_SLOTS - 1)].lent = threads[slot & (MAX_SLOTS - 1)].rescued = 0;
	threads[slot & (MAX_SLOTS - 1)].yielded = 0;
	set_slice(prev, slice);
}

/* Put the most urgent operator here, if there is one. */
subprogram int take_any(u32 llc, s32 cpu, u64 now_ns)
{
	struct candidate best;

	llc &= MAX_LLCS - 1;
	return pick(llc, cpu, now_ns, queues[llc].waiting, &best) >= 0 && take(llc, cpu, &best, false);
}

/* Put the most urgent operator on this CPU, if it is more urgent than the one in `slot` (0: none). */
subprogram int run_operator(u32 llc, s32 cpu, u64 now_ns, u32 slot)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct candidate *best = &c->here;
	u64 waiting, key, lost = 0;
	bool goes_on;
	u32 i;

	llc &= MAX_LLCS - 1;
	/* Another look if the winner may not run here (pinned), or was taken meanwhile. */
	waiting = queues[llc].waiting;
	for (i = 0; i < 4 && waiting; i++) {
		if (pick(llc, cpu, now_ns, waiting, best) < 0)
			return RUN_NOTHING;
		key = best->exact ?: queues[llc].head_key[best->queue & (MAX_QUEUES - 1)];
		goes_on = slot && (!better(best, &c->mine) ||
				   batch_goes_on(slot, key, now_ns - c->turn_ns));
		if (!i && floor_due(c, now_ns)) {
			switch (floor_instead(llc, cpu, now_ns, goes_on ? slot : packed_slot(key), slot)) {
			case FLOOR_MOVED:
				return RUN_MOVED;
			case FLOOR_KEEP:
				return RUN_KEEP;
			}
		}
		if (goes_on) {
			groups_reach(c, c->mine.vtime_ns);
			return RUN_KEEP;
		}
		record(TRACE_PICK, 0, now_ns, best->urgency);
		groups_reach(c, best->vtime_ns);
		best->queue &= MAX_QUEUES - 1;
		if (take(llc, cpu, best, slot))
			return RUN_MOVED;
		/* Of an exact queue another CPU took this thread; the next one waits on. */
		if (!best->exact || best->exact == lost)
			waiting &= ~(1ULL << best->queue);
		lost = best->exact;
	}
	return RUN_NOTHING;
}

/* Does one of the others lag behind the operators? `mine`: vtime of the one that runs, or 0. */
subprogram int others_lag(u64 mine, u32 llc, s32 cpu)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 head;

	llc &= MAX_LLCS - 1;
	if (mine && before(mine, operators_vtime))
		return 1;
	if (nr_llcs > 1 && c->from && before(c->from_vtime, operators_vtime))
		return 1;
	if (!sets[llc].others_waiting)
		return 0;
	head = first_other(llc, cpu);
	if (!head && (nr_cpus == 1 || scx_bpf_dsq_nr_queued(others_dsq(llc)) <= 0))
		mark_no_others(llc);		/* or each decision would look again */
	return head && before(head, operators_vtime);
}

/* What a decision compares, of the operator that runs here and could go on: into cpu.mine. */
subprogram int note_mine(s32 cpu, u32 slot, u64 key, u64 now_ns)
{
	struct candidate *mine = &cpus[cpu & (MAX_CPUS - 1)].mine;
	u32 queue, g;

	slot &= MAX_SLOTS - 1;
	queue = slots[slot].queue & (MAX_QUEUES - 1);
	mine->vtime_ns = 0;
	mine->queue = queue;
	mine->urgency = urgency_of(slot, key, now_ns);
	if (control.nr_groups) {
		struct group *group = group_of(queue, &g);

		/* One slice ahead of the others is still its turn. */
		if (group->share)
			mine->vtime_ns = groups[g].vtime_ns - slice_ns(slot) * SHARE_ONE / group->share;
	}
	return 0;
}

/*
 * One of the others lags behind the operators; `its`: vtime of the one that runs, or 0. Is the
 * operator whose turn it would be before them by a right of its own (fair.bpf.h)? Then put it here,
 * if it is not the one in `slot` (0: none), which has run up to cpu.own.
 */
subprogram int run_by_right(u64 its, u32 llc, s32 cpu, u64 now_ns, u32 slot)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct candidate *best = &c->here;
	u64 waiting, key;

	llc &= MAX_LLCS - 1;
	if (sets[llc].others_waiting) {
		key = first_other(llc, cpu);
		if (key && (!its || before(key, its)))
			its = key;
	}
	if (nr_llcs > 1 && c->from && (!its || before(c->from_vtime, its)))
		its = c->from_vtime;
	waiting = queues[llc].waiting;
	if (!waiting || pick(llc, cpu, now_ns, waiting, best) < 0 || (slot && !better(best, &c->mine)))
		return slot && !before(its, c->own) ? RUN_KEEP : RUN_NOTHING;
	best->queue &= MAX_QUEUES - 1;
	key = best->exact ?: queues[llc].head_key[best->queue];
	if (slot && batch_goes_on(slot, key, now_ns - c->turn_ns))
		return !before(its, c->own) ? RUN_KEEP : RUN_NOTHING;
	if (before(its, own_vtime(packed_slot(key))) || !take(llc, cpu, best, slot))
		return RUN_NOTHING;
	count(by_right);
	c->by_right = 1;
	record(TRACE_PICK, 0, now_ns, best->urgency);
	groups_reach(c, best->vtime_ns);
	return RUN_MOVED;
}

/* What is done now and then instead of at each decision. Returns whether a thread was taken. */
subprogram int do_chores(struct cpu *c, u32 llc, s32 cpu, u64 now_ns)
{
	int taken = 0;

	if (!c)
		return 0;
	llc &= MAX_LLCS - 1;
	c->next_chores_ns = now_ns + CHORES_NS;
	check_heartbeat(now_ns);
	if (use_cgroups && !unparks && scx_bpf_dsq_nr_queued(PARKED_DSQ) > 0)
		unpark_some(now_ns, true);
	if (control.hold_us)
		end_late_holds(now_ns);
	perf_of_idle(now_ns);
	if (nr_llcs > 1)
		find_laggard(c, llc, cpu);
	if (nr_cpus > 1 && (s64)(now_ns - sets[llc].next_repair_ns) > 0) {
		sets[llc].next_repair_ns = now_ns + CHORES_NS;
		repair(llc);
		rouse(llc);
	}
	/* Not twice in a row while operators wait: what is done for them below has its turn between. */
	if (!(c->rescued && queues[llc].waiting) && sets[llc].others_waiting &&
	    (s64)(now_ns - c->next_look_ns) >= 0 && rescue_other(llc, cpu, now_ns)) {
		count(other_rescues);
		c->rescued = 1;
		if (queues[llc].waiting)
			c->next_chores_ns = now_ns;
		else if (before(c->next_look_ns, c->next_chores_ns))
			c->next_chores_ns = c->next_look_ns;
		return 1;
	}
	c->rescued = 0;
	if (queues[llc].waiting && (s64)(now_ns - c->next_rescue_ns) >= 0 && rescue(llc, cpu, now_ns)) {
		count(rescues);
		taken = 1;
	}
	if (control.floor_us && queues[llc].waiting && !floor_due(c, now_ns))
		find_lag(llc, cpu, now_ns);
	if (!taken && queues[llc].waiting && (s64)(now_ns - c->next_lend_ns) >= 0 &&
	    lend(llc, cpu, now_ns)) {
		count(lent);
		taken = 1;
	}
	if (queues[llc].waiting && before(c->next_rescue_ns, c->next_chores_ns))
		c->next_chores_ns = c->next_rescue_ns;
	if (sets[llc].others_waiting && before(c->next_look_ns, c->next_chores_ns))
		c->next_chores_ns = c->next_look_ns;
	return taken;
}

SEC("struct_ops/sched_ctl_dispatch")
void BPF_PROG(sched_ctl_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct stats *s = &stats[cpu & (MAX_CPUS - 1)];
	u32 llc = llc_of(cpu), slot = 0, rival = 0, queue = 0;	/* rival: it may go on by its own right */
	bool runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED);
	u64 now_ns = switch_clock_ns(cpu), ran_ns = 0, more_ns = 0, key = 0, waiting;
	s64 credit_ns = c->credit_ns;

	s->dispatches++;
	c->woken = 0;
	c->resting = 0;
	if (runnable) {
		perf_note(cpu, now_ns, true);
		ran_ns = prev->se.sum_exec_runtime - c->start_ns;
		slot = hints_valid ? c->slot & (MAX_SLOTS - 1) : 0;
		if (slot) {
			credit_ns += earned(ran_ns);
			more_ns = prev->se.sum_exec_runtime - c->charged_ns;
			charge_operator(c, prev, llc);
			renew_age(slot, now_ns, more_ns);
			key = key_of(slot, now_ns);
			rival = c->yielded ? 0 : slot;
		} else {
			credit_ns -= ran_ns;
		}
	}
	if (sets[llc].yielders > 0 && !(runnable && c->yielded))
		take_back(llc, now_ns);
	if (c->done) {
		let_go(c->done, now_ns);
		c->done = 0;
	}

	/* Before it is anybody's turn: the bounds of waiting hold whatever the weights are. */
	if ((s64)(now_ns - c->next_chores_ns) >= 0 && do_chores(c, llc, cpu, now_ns))
		return;
	/* Is it the turn of one of the others? */
	if ((sets[llc].others_waiting || (runnable && !slot) || (nr_llcs > 1 && c->from)) &&
	    ((s64)(others_first_until_ns - now_ns) > 0 ||
	     (operators_first ? credit_ns >= QUANTUM :
	      (slot || queues[llc].waiting || may_look(c, llc, slot, now_ns)) &&
	      others_lag(runnable && !slot ? others_vtime(prev, ran_ns) : 0, llc, cpu)))) {
		if (!operators_first) {
			if (rival) {
				note_mine(cpu, slot, key, now_ns);
				c->own = own_vtime(slot) + own_charge(prev, ran_ns);
			}
			switch (run_by_right(runnable && !slot ? others_vtime(prev, ran_ns) : 0, llc, cpu,
					     now_ns, rival)) {
			case RUN_MOVED:
				return;
			case RUN_KEEP:
				if (!prev)
					return;		/* for the verifier: it is there */
				keep_operator(c, prev, slot, now_ns);
				end_after(prev, cpu, 0, base_slice_us * US);
				return;
			}
		}
		if (runnable && !slot && keep_other(prev, llc, cpu, now_ns))
			return;
		if ((sets[llc].others_waiting || (nr_llcs > 1 && c->from)) &&
		    run_next_other(llc, c)) {
			count(guaranteed);
			return;
		}
	}

	if (c->wanted_us)
		c->interrupted = c->wanted_us = 0;
	if (c->interrupted && resume(llc, cpu))
		return;
	waiting = queues[llc].waiting;

	if (rival) {
		if (!waiting && !may_look(c, llc, slot, now_ns)) {
			s->keeps++;
			groups_reach_alone(c);
			keep_operator(c, prev, slot, now_ns);
			return;
		}
		note_mine(cpu, slot, key, now_ns);
	}

	if (may_look(c, llc, slot, now_ns) && (slot || waiting || runnable || sets[llc].others_waiting) &&
	    pull(llc, cpu, now_ns, rival))
		return;

	/* A single queue and nobody to compare it with: no need to look at its head. */
	if (waiting && !rival && !(waiting & (waiting - 1)) && !control.nr_groups &&
	    !floor_due(c, now_ns)) {
		queue = waiting == 1 ? 0 : lowest(waiting);
		if (!(control.queues[queue].flags & QUEUE_EXACT) && take_first(llc, queue))
			return;
	}
	if (waiting) {
		switch (run_operator(llc, cpu, now_ns, rival)) {
		case RUN_MOVED:
			return;
		case RUN_KEEP:
			record(TRACE_KEEP, slot, now_ns, c->mine.urgency);
			break;
		}
	}
	if (rival) {
		count(keeps);
		keep_operator(c, prev, slot, now_ns);
		return;
	}

	/* No operator wants this CPU, but for those that have yielded. */
	if (runnable && !slot && !sets[llc].yielders && keep_other(prev, llc, cpu, now_ns))
		return;
	if (run_next_other(llc, c)) {
		count(leftovers);
		return;
	}
	if (run_yielder(llc) || (nr_llcs > 1 && steal(llc, cpu, now_ns)))
		return;
	if (slot && prev) {
		keep_operator(c, prev, slot, now_ns);
		return;
	}
	if (runnable && !throttled(prev, 0, now_ns)) {
		set_slice(prev, others_slice_ns());	/* else the kernel refills 20 ms */
		return;
	}
	/*
	 * About to idle: make sure that no queue was overlooked (see queues.bpf.h), nor one whose mark
	 * another CPU took off and has put back since.
	 */
	if (nr_cpus > 1 && (repair(llc) || (queues[llc].waiting & ~waiting)))
		take_any(llc, cpu, now_ns);
}

SEC("struct_ops/sched_ctl_running")
void BPF_PROG(sched_ctl_running, struct task_struct *p)
{
	u32 cpu = cpu_of(p) & (MAX_CPUS - 1), slot = packed_slot(p->scx.dsq_vtime), g;
	struct cpu *c = &cpus[cpu];
	u64 now_ns = switch_clock_ns(cpu);

	perf_note(cpu, now_ns, false);
	c->start_ns = p->se.sum_exec_runtime;
	c->since_ns = now_ns;
	c->charged_ns = c->start_ns;
	if (slot && slot == c->resting)
		c->turn_ns += now_ns - c->stopped_ns;
	else
		c->turn_ns = now_ns;
	c->resting = 0;
	c->yielded = 0;
	c->slot = slot;
	if (slot) {
		struct thread *t = &threads[slot];
		u64 waited_ns = t->queued_ns ? now_ns - t->queued_ns : 0;
		u64 lost_ns = now_ns - c->stopped_ns;

		if ((s64)waited_ns < 0)
			waited_ns = 0;	/* this CPU's clock is behind that of who queued it */
		/* Without queued_ns a higher class preempted it, and it waited here all the time. */
		if (t->queued_ns && lost_ns > waited_ns)
			lost_ns = waited_ns;
		if ((s64)lost_ns > LEAST_LOSS && c->stopped_ns)
			stats[cpu].lost_ns += lost_ns;
		if (c->hurried && p->scx.slice > HURRIED_SLICE)
			set_slice(p, HURRIED_SLICE);
		/* Changed while it runs (nice value, policy, cgroup), it is put back without `enqueue`. */
		if (!t->weight && find_slot(p) == slot)
			enter_operator(slot, p);
		t->vtime = own_vtime(slot);
		c->tier = TIER_OPERATOR;
		t->yielded = 0;
		stats[cpu].operator_runs++;
		t->queued_ns = 0;
		t->cpu = cpu;
		t->runs++;
		t->wait_ns += waited_ns;
		if (waited_ns > t->wait_max_ns)
			t->wait_max_ns = waited_ns;
		if (control.nr_groups) {
			group_of(slots[slot].queue, &g);
			c->group = g + 1;
			__sync_fetch_and_add(&groups[g].running, 1);
		}
		record(TRACE_RUN, slot, now_ns, waited_ns);
		if (t->lent) {
			c->turn_ns = now_ns - slice_ns(slot);	/* it has none of its own */
			end_after(p, cpu, 0, LENT_TURN);
		} else if (c->by_right) {
			end_after(p, cpu, 0, base_slice_us * US);	/* others lag behind */
		} else if (c->wanted_us) {
			end_after(p, cpu, now_ns - c->turn_ns, c->wanted_us * US);
		}
	} else {
		c->tier = is_worker(p) ? TIER_NONE : TIER_OTHER;	/* nobody preempts workers */
		count(other_runs);
		c->vtime = p->scx.dsq_vtime;
		if (c->woken && queues[llc_of(cpu)].waiting) {
			if (!operators_first) {
				end_after(p, cpu, 0, base_slice_us * US);
			} else if (runs_leftovers(c, now_ns)) {
				count(preempts);
				scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			}
		}
		if (nr_llcs > 1 && c->pulled) {
			u64 least = others_now - pack(MOST_LAG, 0);

			c->pulled = 0;
			if (before(p->scx.dsq_vtime, least)) {
				c->vtime = least;
				set_vtime(p, least);
			}
		}
		if (before(others_now, p->scx.dsq_vtime))
			fair_advance(llc_of(scx_bpf_task_cpu(p)), p->scx.dsq_vtime);
	}
	c->wanted_us = 0;
	c->by_right = 0;
}

SEC("struct_ops/sched_ctl_stopping")
void BPF_PROG(sched_ctl_stopping, struct task_struct *p, bool runnable)
{
	u32 cpu = cpu_of(p) & (MAX_CPUS - 1);
	struct cpu *c = &cpus[cpu];
	u64 ran_ns = p->se.sum_exec_runtime - c->start_ns;
	s64 credit_ns = c->credit_ns;
	u32 slot = c->slot & (MAX_SLOTS - 1), g;

	if (slot) {
		credit_ns += earned(ran_ns);
		if (credit_ns > MOST_CREDIT)
			credit_ns = MOST_CREDIT;
		threads[slot].run_ns += ran_ns;
		stats[cpu].operator_ns += ran_ns;
		if (runnable)
			renew_age(slot, c->since_ns + ran_ns, p->se.sum_exec_runtime - c->charged_ns);
		charge_operator(c, p, llc_of(cpu));
		if (!operators_first)
			threads[slot].vtime += own_charge(p, ran_ns);
		if (!runnable) {
			if (!queues[llc_of(cpu)].waiting)
				groups_reach_alone(c);
			threads[slot].slept_ns = c->since_ns + ran_ns;
			if (threads[slot].held)
				c->done = slot;
		}
		if (runnable && use_cgroups && !operators_first &&
		    threads[slot].part != (u16)control.weight_part) {
			discount_thread(p);
			count_thread(p, slot);
		}
		if (!runnable || !(slots[slot].flags & SLOT_ACTIVE))
			leave_operator(slot);
		record(TRACE_STOP, slot, clock_ns(), ran_ns);
		if (c->group) {
			g = (c->group - 1) & (MAX_GROUPS - 1);
			c->group = 0;
			__sync_fetch_and_add(&groups[g].running, -1);
		}
	} else {
		credit_ns -= ran_ns;
		if (credit_ns < -(s64)(debt_ms * MS))
			credit_ns = -(s64)(debt_ms * MS);
		if (use_cgroups && runnable && count_thread(p, 0))
			count(recounts);
		set_vtime(p, p->scx.dsq_vtime + others_charge(p, ran_ns));
		throttled(p, ran_ns, clock_ns());
		stats[cpu].other_ns += ran_ns;
	}
	c->credit_ns = credit_ns;
	/* Not what it began at and ran: interrupts and what a host takes are no time that others had. */
	c->stopped_ns = switch_clock_ns(cpu);
	perf_note(cpu, c->stopped_ns, true);
	c->slot = 0;
	c->tier = TIER_NONE;
	if (runnable && p->scx.slice) {
		count(interrupted);
		if (slot)
			c->resting = slot;
		if (slot && nr_cpus == 1)
			return;
		if (slot)
			threads[slot].left_ns = p->scx.slice;
		set_slice(p, 0);
	}
}

/* These two only where there are cgroups: the loader takes them out else. */
SEC("struct_ops/sched_ctl_runnable")
void BPF_PROG(sched_ctl_runnable, struct task_struct *p, u64 enq_flags)
{
	u32 slot;

	if (!use_cgroups)
		return;
	slot = find_slot(p);
	if (!slot || !operators_first)
		count_thread(p, slot);
}

SEC("struct_ops/sched_ctl_quiescent")
void BPF_PROG(sched_ctl_quiescent, struct task_struct *p, u64 deq_flags)
{
	if (use_cgroups)
		discount_thread(p);
}

SEC("struct_ops/sched_ctl_enable")
void BPF_PROG(sched_ctl_enable, struct task_struct *p)
{
	set_vtime(p, others_now);
}

/* It leaves for another class; or it ends. */
SEC("struct_ops/sched_ctl_disable")
void BPF_PROG(sched_ctl_disable, struct task_struct *p)
{
	operator_no_more(p, packed_slot(p->scx.dsq_vtime));
}

SEC("struct_ops/sched_ctl_dump")
void BPF_PROG(sched_ctl_dump, struct scx_dump_ctx *dump)
{
	scx_dump("sched_ctl: hints valid %llu, queues %llu, groups %llu, waiting %llx\n", hints_valid,
		 control.nr_queues, control.nr_groups, queues[0].waiting);
}

SEC("struct_ops/sched_ctl_dump_task")
void BPF_PROG(sched_ctl_dump_task, struct scx_dump_ctx *dump, struct task_struct *p)
{
	u32 slot = packed_slot(p->scx.dsq_vtime);

	if (slot)
		scx_dump("slot %llu queue %llu, queued at %llu ns, longest wait %llu ns\n", slot,
			 slots[slot].queue, threads[slot].queued_ns, threads[slot].wait_max_ns);
}

SEC("struct_ops.s/sched_ctl_init")
s32 BPF_PROG(sched_ctl_init)
{
	u32 llc, queue;
	s32 error;

	others_init();
	error = fair_init() ?: flushers_init() ?: perf_init();
	if (error)
		return error;
	if (use_cgroups) {
		error = scx_bpf_create_dsq(PARKED_DSQ, -1);
		if (error)
			return error;
		error = unpark_init();
		if (error)
			return error;
	}
	if (scx_bpf_nr_cpu_ids() > nr_cpus) {
		scx_error("more CPUs than nr_cpus says");
		return -7;		/* E2BIG */
	}
	for_each_number(queue, nr_llcs * (MAX_QUEUES + 1)) {
		error = scx_bpf_create_dsq(dsq_of(0, queue), -1);	/* one set's begin where the last's end */
		if (error)
			return error;
	}
	for_each_number(llc, nr_llcs) {
		error = scx_bpf_create_dsq(YIELDED_DSQ + llc, -1);
		if (error)
			return error;
	}
	return 0;
}

SEC("struct_ops/sched_ctl_exit")
void BPF_PROG(sched_ctl_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_report.reason, sizeof(exit_report.reason), info->reason);
	bpf_probe_read_kernel_str(exit_report.message, sizeof(exit_report.message), info->msg);
	bpf_probe_read_kernel_str(exit_dump, sizeof(exit_dump), info->dump);
	exit_report.exit_code = info->exit_code;
	exit_report.kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops sched_ctl = {
	.select_cpu = (void *)sched_ctl_select_cpu,
	.enqueue = (void *)sched_ctl_enqueue,
	.dispatch = (void *)sched_ctl_dispatch,
	.running = (void *)sched_ctl_running,
	.stopping = (void *)sched_ctl_stopping,
	.yield = (void *)sched_ctl_yield,
	.runnable = (void *)sched_ctl_runnable,
	.quiescent = (void *)sched_ctl_quiescent,
	.enable = (void *)sched_ctl_enable,
	.disable = (void *)sched_ctl_disable,
	.dump = (void *)sched_ctl_dump,
	.dump_task = (void *)sched_ctl_dump_task,
	.init = (void *)sched_ctl_init,
	.exit = (void *)sched_ctl_exit,
	/* The loader clears SWITCH_PARTIAL for full mode. */
	.flags = SCX_OPS_SWITCH_PARTIAL | SCX_OPS_ENQ_EXITING,
	.timeout_ms = 30000,
	.name = "sched_ctl",
};
