// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long each thread of a process waits for a CPU, who runs meanwhile, and who wakes whom.
 *
 * A thread is ready from the moment it is woken (sched_waking), or loses its CPU while it could go
 * on (sched_switch), until it gets one (sched_switch). Each such wait goes into the histogram of its
 * thread. Whoever ran on the CPU on which a wait ends, while it lasted, has held it up for so long:
 * each CPU remembers its last runs, and those that are older than all of them are not followed.
 *
 * Who wakes is the current thread. In an interrupt that is whoever was interrupted: false edges
 * are rare and light, and readers leave out what is.
 *
 * An entry is written by the CPU on which its thread runs or is switched to, and by the one that
 * wakes it, in different fields but for ready_ns, which each sets only when the other does not:
 * on_cpu says whose turn it is. Nothing is protected beyond that. An error is one wrong wait.
 *
 * It changes nothing, and works on every kernel with BTF since 5.18, which gave sched_switch the
 * state of the one who leaves.
 */
#include "kernel.bpf.h"
#include "trace.h"

char _license[] SEC("license") = "GPL";

enum { MAP_PERCPU_ARRAY = 6, MAP_LRU_HASH = 9 };	/* enum bpf_map_type */

struct task_struct___trace {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

/* 1. What is known. */

const volatile u32 process;		/* the one to look at, set before load */

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, TRACE_THREADS);
	__type(key, u32);
	__type(value, struct waits);
} threads SEC(".maps");

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, TRACE_PAIRS);
	__type(key, struct pair);
	__type(value, u64);
} wakings SEC(".maps");			/* how often `from` woke `to` */

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, TRACE_PAIRS);
	__type(key, struct pair);
	__type(value, u64);
} occupants SEC(".maps");		/* for how many ns of its waits `to` saw `from` run */

/* The last runs of one CPU, a ring: each began when the one before it ended. */
struct runs {
	u32 next;
	u32 tid[TRACE_RUNS];
	u64 end_ns[TRACE_RUNS];
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct runs);
} recent SEC(".maps");

/* 2. Helpers. */

static __always_inline bool is_watched(const struct task_struct___trace *p)
{
	return p->tgid == process;
}

static __always_inline struct waits *waits_of(const struct task_struct___trace *p)
{
	static const struct waits nothing;
	u32 tid = p->pid;
	struct waits *found = bpf_map_lookup_elem(&threads, &tid);

	if (found)
		return found;
	/* Fails if another CPU was quicker: then there is one to be found. */
	bpf_map_update_elem(&threads, &tid, &nothing, 1 /* BPF_NOEXIST */);
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline void add(void *map, u32 from, u32 to, u64 much)
{
	struct pair key = { .from = from, .to = to };
	u64 *sum = bpf_map_lookup_elem(map, &key);

	if (sum)
		__sync_fetch_and_add(sum, much);
	else	/* one that another CPU enters meanwhile is overwritten: a count is lost */
		bpf_map_update_elem(map, &key, &much, 0);
}

/* Who ran on this CPU since `ready`, up to the last run that has ended. */
static __always_inline void blame(struct runs *runs, u32 tid, u64 ready)
{
	u32 at = runs->next;

	for (u32 i = 0; i < TRACE_RUNS - 1; i++) {
		u32 run = (at - 1 - i) % TRACE_RUNS, before = (at - 2 - i) % TRACE_RUNS;
		u64 end = runs->end_ns[run], begin = runs->end_ns[before];

		if (!begin || end <= ready)	/* not known, or before it waited */
			break;
		add(&occupants, runs->tid[run], tid, end - (begin > ready ? begin : ready));
	}
}

static __always_inline u32 slot_of(u64 ns)
{
	u64 us = ns / 1000;
	u32 slot = 0;

	for (u32 i = 0; i < TRACE_SLOTS - 1; i++)
		slot += us >> i > 0;
	return slot;
}

/* 3. Events. */

SEC("tp_btf/sched_waking")
int BPF_PROG(trace_waking, struct task_struct___trace *p)
{
	struct task_struct___trace *waker = (void *)bpf_get_current_task_btf();
	struct waits *its;
	bool inside;

	if (!is_watched(p))
		return 0;
	inside = is_watched(waker);
	its = waits_of(p);
	if (!its)	/* no memory: this wait is not seen */
		return 0;
	its->wakeups++;
	if (!its->on_cpu && !its->ready_ns)
		its->ready_ns = bpf_ktime_get_ns();
	add(&wakings, inside ? waker->pid : 0, p->pid, 1);
	if (inside && (its = waits_of(waker)))
		its->wakes++;
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(trace_switch, bool preempt, struct task_struct___trace *prev,
	     struct task_struct___trace *next, u32 prev_state)
{
	u64 now = bpf_ktime_get_ns();
	struct waits *its;
	u32 zero = 0, place;
	struct runs *runs = bpf_map_lookup_elem(&recent, &zero);

	if (runs) {
		place = runs->next++ % TRACE_RUNS;
		runs->tid[place] = prev->pid;
		runs->end_ns[place] = now;
	}
	if (is_watched(prev) && (its = waits_of(prev))) {
		its->on_cpu = 0;
		/* Preempted before it could sleep, it is ready whatever it had set as its state. */
		its->ready_ns = preempt || !prev_state ? now : 0;
	}
	if (is_watched(next) && (its = waits_of(next))) {
		its->on_cpu = 1;
		if (its->ready_ns && its->ready_ns <= now) {
			u64 ready = its->ready_ns, wait = now - ready;

			its->ready_ns = 0;
			its->wait_ns += wait;
			its->turns++;
			its->slots[slot_of(wait)]++;
			if (runs)
				blame(runs, next->pid, ready);
		}
	}
	return 0;
}
