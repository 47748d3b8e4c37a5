// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where threads of some processes sleep, how long, and who wakes them from where: by stacks.
 *
 * When a thread leaves its CPU to sleep (sched_switch), both its stacks are noted; when it is woken
 * (sched_waking), the waker's, and the time since counts for this kind of sleep. What a thread waits
 * after that is for a CPU, which trace.bpf.c knows about.
 *
 * Apart from trace.bpf.c, which runs for hours: to walk stacks costs ten times what that does. User
 * stacks go by frame pointers, so code built without them (glibc of most distributions, what a JVM
 * compiles unless -XX:+PreserveFramePointer) shows its innermost function, and what is found by chance.
 *
 * It changes nothing. An error is one sleep counted wrong.
 */
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "interrupts.bpf.h"
#include "stacks.h"

char _license[] SEC("license") = "GPL";

enum { MAP_STACK_TRACE = 7, MAP_LRU_HASH = 9 };	/* enum bpf_map_type */
enum { USER_STACK = 1 << 8 };			/* BPF_F_USER_STACK */
enum { DEAD = 0x80 };				/* TASK_DEAD, include/linux/sched.h */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___stacks {
	int pid;
	int tgid;
};

#pragma clang attribute pop

u64 followed[STACKS_IDS / 64] SEC(".bss.followed");	/* a bit a process; user space sets it */

struct asleep {
	u64 since_ns;
	s32 kernel;
	s32 user;
};

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, STACKS_SLEEPERS);
	__type(key, u32);
	__type(value, struct asleep);
} sleepers SEC(".maps");

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, STACKS_SLEEPS);
	__type(key, struct sleep_kind);
	__type(value, struct sleep_sum);
} sleeps SEC(".maps");

struct {
	__uint(type, MAP_STACK_TRACE);
	__uint(max_entries, STACKS_KEPT);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACKS_DEPTH * sizeof(u64));
} stacks SEC(".maps");

static __always_inline bool is_followed(const struct task_struct___stacks *p)
{
	u32 id = p->tgid & (STACKS_IDS - 1);

	return followed[id / 64] >> id % 64 & 1;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(stacks_switch, bool preempt, struct task_struct___stacks *prev,
	     struct task_struct___stacks *next, u32 prev_state)
{
	struct asleep begun = {};
	u32 tid = next->pid;

	/* Another CPU may have woken it before this noted that it sleeps: that sleep is not known. */
	if (is_followed(next))
		bpf_map_delete_elem(&sleepers, &tid);
	tid = prev->pid;
	/*
	 * Preempted before it could sleep, it is awake whatever it had set as its state. One that has
	 * ended is never woken.
	 */
	if (preempt || !prev_state || prev_state & DEAD || !is_followed(prev))
		return 0;
	begun.since_ns = bpf_ktime_get_ns();
	begun.kernel = bpf_get_stackid(ctx, &stacks, 0);
	begun.user = bpf_get_stackid(ctx, &stacks, USER_STACK);
	bpf_map_update_elem(&sleepers, &tid, &begun, 0);
	return 0;
}

static __always_inline int waking(void *ctx, struct task_struct___stacks *p, bool interrupt)
{
	struct task_struct___stacks *waker;
	struct sleep_kind kind = {};
	struct sleep_sum *sum, first = { .times = 1 };
	struct asleep *begun;
	u32 tid = p->pid;

	if (!is_followed(p))
		return 0;
	begun = bpf_map_lookup_elem(&sleepers, &tid);
	if (!begun)	/* it fell asleep before it was followed */
		return 0;
	first.ns = bpf_ktime_get_ns() - begun->since_ns;
	kind.tid = tid;
	kind.kernel = begun->kernel;
	kind.user = begun->user;
	kind.waker_kernel = kind.waker_user = -1;
	bpf_map_delete_elem(&sleepers, &tid);
	if (!interrupt) {
		waker = (void *)bpf_get_current_task_btf();
		kind.waker = waker->pid;
		kind.waker_kernel = bpf_get_stackid(ctx, &stacks, 0);
		kind.waker_user = bpf_get_stackid(ctx, &stacks, USER_STACK);
	}
	sum = bpf_map_lookup_elem(&sleeps, &kind);
	if (sum) {
		__sync_fetch_and_add(&sum->ns, first.ns);
		__sync_fetch_and_add(&sum->times, 1);
	} else {
		bpf_map_update_elem(&sleeps, &kind, &first, 0);
	}
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(stacks_waking, struct task_struct___stacks *p)
{
	return waking(ctx, p, in_interrupt());
}

/* Where data has no symbols, so that nobody finds the counter. */
SEC("tp_btf/sched_waking")
int BPF_PROG(stacks_waking_noted, struct task_struct___stacks *p)
{
	return waking(ctx, p, in_noted_interrupt());
}
