// SPDX-License-Identifier: GPL-2.0-only
/*
 * A log of some seconds: who ran when on which CPU, and who woke the threads of some processes.
 *
 * All switches of the machine are kept, as whoever a thread waits behind may be of any process. Once the
 * log is full nothing more is written. It changes nothing.
 */
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "interrupts.bpf.h"
#include "runs.h"

char _license[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___runs {
	int pid;
	int tgid;
};

#pragma clang attribute pop

u64 followed[RUNS_IDS / 64] SEC(".bss.followed");	/* a bit a process; user space sets it */
struct run runs[RUNS_KEPT] SEC(".bss.runs");
u32 seen SEC(".bss.followed");				/* events so far, also those left out */

static __always_inline bool is_followed(const struct task_struct___runs *p)
{
	u32 id = p->tgid & (RUNS_IDS - 1);

	return followed[id / 64] >> id % 64 & 1;
}

static __always_inline void keep(u32 what, u32 from, u32 to)
{
	u32 at;

	if (seen >= RUNS_KEPT)
		return;
	at = __sync_fetch_and_add(&seen, 1);
	if (at >= RUNS_KEPT)
		return;
	runs[at].at_ns = bpf_ktime_get_ns();
	runs[at].from = from;
	runs[at].to = to;
	runs[at].cpu = bpf_get_smp_processor_id();
	runs[at].what = what;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(runs_switch, bool preempt, struct task_struct___runs *prev,
	     struct task_struct___runs *next, u32 prev_state)
{
	keep(preempt || !prev_state ? RUN_PREEMPTED : RUN_SWITCH, prev->pid, next->pid);
	return 0;
}

static __always_inline int waking(struct task_struct___runs *p, bool interrupt)
{
	struct task_struct___runs *waker = (void *)bpf_get_current_task_btf();

	if (is_followed(p))
		keep(RUN_WAKING, interrupt ? 0 : waker->pid, p->pid);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(runs_waking, struct task_struct___runs *p)
{
	return waking(p, in_interrupt());
}

/* Where data has no symbols, so that nobody finds the counter. */
SEC("tp_btf/sched_waking")
int BPF_PROG(runs_waking_noted, struct task_struct___runs *p)
{
	return waking(p, in_noted_interrupt());
}
