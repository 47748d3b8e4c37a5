/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * sched_yield(): who yields waits for somebody, and has had its turn.
 *
 * Programs wait so for less urgent threads as well (the yielding wait strategies of the Disruptor and
 * of JCTools, a JVM's own spin locks), and the order would let them spin for ever. So an operator that
 * yields is put aside until a turn of somebody who did not yield has ended: also where several yield
 * to each other, all of them more urgent than the one that they wait for. Nobody sleeps for it: where
 * nothing else wants the CPU, the first of them runs on.
 *
 * One of the others goes behind whoever of them is next, and gives up what it lagged behind the operators.
 */
#ifndef SCHED_CTL_YIELD_BPF_H
#define SCHED_CTL_YIELD_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "starve.bpf.h"

enum { MOST_BACK = 8 };

/* Put an operator aside that yielded. */
static __always_inline void put_aside(struct task_struct *p, u32 slot, u32 llc, u64 key, u64 slice,
				      u64 now_ns, u64 enq_flags)
{
	struct thread *t = &threads[slot];

	t->yielded = 0;
	t->left_ns = 0;
	wait_for_cpu(t, now_ns);
	t->hungry_ns = now_ns;
	set_vtime(p, key);
	sets[llc].any_yielded = 1;
	__sync_fetch_and_add(&sets[llc].yielders, 1);
	dsq_insert(p, YIELDED_DSQ + llc, slice, enq_flags);
}

/* Back into the queues with some of those who yielded: somebody else has had a turn. */
subprogram int take_back(u32 llc, u64 now_ns)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct thread *t;
	u32 i, slot, queue;

	llc &= MAX_LLCS - 1;
	bpf_iter_scx_dsq_new(&it, YIELDED_DSQ + llc, 0);
	for (i = unknown_zero; i < MOST_BACK && (p = bpf_iter_scx_dsq_next(&it)); i++) {
		slot = packed_slot(p->scx.dsq_vtime);
		queue = slots[slot].queue & (MAX_QUEUES - 1);
		t = &threads[slot];
		t->set = llc + 1;
		if (nr_cpus > 1)
			t->only_cpu = p->nr_cpus_allowed == 1 ? cpu_of(p) + 1 : 0;
		mark_waiting(llc, queue, p->scx.dsq_vtime);
		if (dsq_move_vtime(&it, p, dsq_of(llc, queue)))
			__sync_fetch_and_add(&sets[llc].yielders, -1);
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (i < MOST_BACK)
		sets[llc].yielders = 0;	/* the kernel takes threads out without a word; `repair` looks */
	return 0;
}

/* Nothing else wants this CPU: put the first of those here who yielded. */
static __always_inline bool run_yielder(u32 llc)
{
	if (!sets[llc].yielders)
		return false;
	if (!dsq_move_to_local(YIELDED_DSQ + llc))
		return false;
	__sync_fetch_and_add(&sets[llc].yielders, -1);
	return true;
}

SEC("struct_ops/sched_ctl_yield")
bool BPF_PROG(sched_ctl_yield, struct task_struct *from, struct task_struct *to)
{
	u32 cpu = cpu_of(from) & (MAX_CPUS - 1), llc = llc_of(cpu);
	struct cpu *c = &cpus[cpu];
	u64 vtime = from->scx.dsq_vtime, behind;

	set_slice(from, 0);
	c->yielded = 1;
	if (c->slot) {
		threads[c->slot & (MAX_SLOTS - 1)].yielded = 1;
		return to != NULL;
	}
	if (packed_slot(vtime))
		return to != NULL;
	behind = sets[llc].others_waiting ? first_other(llc, cpu) : 0;
	if (!operators_first && queues[llc].waiting && before(behind ?: vtime, operators_vtime))
		behind = operators_vtime;
	if (behind && !before(behind, vtime))
		set_vtime(from, behind + pack(256, 0));
	return to != NULL;
}

#endif
