/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether an interrupt is served, where the kernel's own counter cannot be found.
 *
 * A program that asks who wakes whom comes twice: with in_interrupt() of compat.bpf.h, and, for kernels
 * whose data has no symbols (x86 without CONFIG_KALLSYMS_ALL), with in_noted_interrupt(). That knows
 * what the programs below note: where a device's handler, a timer, and what follows from an interrupt
 * (softirq) begin and end, and which thread it cut short, as on real-time kernels another may run in
 * between. Whoever loads attaches these only for the second (kernel/tracing.py). A timer may interrupt
 * another one's work, but only that of a softirq, which is noted as well; one whose end was missed is
 * noted anew with the next.
 */
#ifndef SCHED_CTL_INTERRUPTS_BPF_H
#define SCHED_CTL_INTERRUPTS_BPF_H

#include "kernel.bpf.h"

enum { MAP_PERCPU_ARRAY = 6 };	/* enum bpf_map_type */
enum served { DEVICE, TIMER, SOFTIRQ, ALL_SERVED };

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, ALL_SERVED);
	__type(key, u32);
	__type(value, u32);
} serving SEC(".maps");

/* whom: thread id of who has the CPU. The idle task's, 0, wakes nobody itself. */
static __always_inline int note(u32 kind, u32 whom)
{
	u32 *noted = bpf_map_lookup_elem(&serving, &kind);

	if (noted)	/* always: the verifier does not know */
		*noted = whom;
	return 0;
}

static __always_inline bool in_noted_interrupt(void)
{
	u32 whom = bpf_get_current_pid_tgid();

	for (u32 kind = 0; kind < ALL_SERVED; kind++) {
		u32 one = kind, *noted = bpf_map_lookup_elem(&serving, &one);

		if (noted && *noted == whom)
			return true;
	}
	return false;
}

#define NOTES(name, event, kind, whom)					\
	SEC("tp_btf/" event)							\
	int name(void *ctx)							\
	{									\
		return note(kind, whom);					\
	}

NOTES(device_begins, "irq_handler_entry", DEVICE, bpf_get_current_pid_tgid())
NOTES(device_ends, "irq_handler_exit", DEVICE, 0)
NOTES(timer_begins, "hrtimer_expire_entry", TIMER, bpf_get_current_pid_tgid())
NOTES(timer_ends, "hrtimer_expire_exit", TIMER, 0)
NOTES(softirq_begins, "softirq_entry", SOFTIRQ, bpf_get_current_pid_tgid())
NOTES(softirq_ends, "softirq_exit", SOFTIRQ, 0)

#endif
