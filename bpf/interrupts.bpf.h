/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether an interrupt is served, where the kernel's own counter cannot be found.
 *
 * A program that asks who wakes whom comes twice: with in_interrupt() of compat.bpf.h, and, for kernels
 * whose data has no symbols (x86 without CONFIG_KALLSYMS_ALL), with in_noted_interrupt(). That knows
 * what the programs below note: where a device's handler, a timer, and what follows from an interrupt
 * (softirq) begin and end. Whoever loads attaches these only for the second (kernel/tracing.py). None
 * is ever served twice at once on one CPU, and one whose end was missed is noted anew with the next.
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

static __always_inline int note(u32 kind, u32 begins)
{
	u32 *noted = bpf_map_lookup_elem(&serving, &kind);

	if (noted)	/* always: the verifier does not know */
		*noted = begins;
	return 0;
}

static __always_inline bool in_noted_interrupt(void)
{
	for (u32 kind = 0; kind < ALL_SERVED; kind++) {
		u32 one = kind, *noted = bpf_map_lookup_elem(&serving, &one);

		if (noted && *noted)
			return true;
	}
	return false;
}

#define NOTES(name, event, kind, begins)					\
	SEC("tp_btf/" event)							\
	int name(void *ctx)							\
	{									\
		return note(kind, begins);					\
	}

NOTES(device_begins, "irq_handler_entry", DEVICE, 1)
NOTES(device_ends, "irq_handler_exit", DEVICE, 0)
NOTES(timer_begins, "hrtimer_expire_entry", TIMER, 1)
NOTES(timer_ends, "hrtimer_expire_exit", TIMER, 0)
NOTES(softirq_begins, "softirq_entry", SOFTIRQ, 1)
NOTES(softirq_ends, "softirq_exit", SOFTIRQ, 0)

#endif
