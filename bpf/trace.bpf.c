// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long each thread of some processes waits for a CPU, who runs meanwhile, and who wakes whom.
 *
 * The kernel itself keeps since when a thread that could run does not (sched_info, which schedstat
 * shows), by the clock of its run queue. When the thread gets a CPU (sched_switch), the time since then
 * goes into its histogram. Whoever ran on that CPU meanwhile has held it up for so long: each CPU
 * remembers its last runs, since when by the kernel's account and who came next. Those that are older
 * than all of them, or came before a switch that was not seen, are not followed.
 *
 * Who wakes is the current thread (sched_waking), unless an interrupt does: then it is somebody from
 * outside, as whoever was interrupted has nothing to do with it. What the kernel does after an interrupt
 * (softirq) is one, too, and so is what it hands over on the loopback device. That program is attached,
 * and `graph` set, only for a reader that asks who wakes whom: it costs as much again.
 *
 * Every switch of the machine comes by here, so what is asked of each is asked of arrays: a bit a
 * process, whether it is followed; a number a thread, where its row is. A pair of threads goes into
 * a hash table only when another one comes in between.
 *
 * A row is written by the CPU on which its thread runs or is switched to, and by the one that
 * wakes it, in different fields but for awake_ns. Two CPUs that see a thread first at one moment give
 * it two rows, of which one stays. Nothing is protected beyond that. An error is one wrong wait.
 *
 * It changes nothing, and works on every kernel with BTF since 5.18, which gave sched_switch the
 * state of the one who leaves, with CONFIG_SCHED_INFO and CONFIG_FAIR_GROUP_SCHED, as all
 * distributions have.
 */
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "interrupts.bpf.h"
#include "trace.h"

char _license[] SEC("license") = "GPL";

enum { MAP_LRU_HASH = 9 };	/* enum bpf_map_type */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cfs_rq___trace {
	struct rq *rq;
};

struct sched_entity___trace {
	struct cfs_rq___trace *cfs_rq;	/* of its cgroup, on its CPU, whatever its class is */
};

struct sched_info___trace {
	unsigned long pcount;		/* how often it got a CPU */
	unsigned long long run_delay;	/* ns it waited, all waits that have ended */
	unsigned long long last_arrival; /* when it got a CPU last; 0 = never, or the idle task */
	unsigned long long last_queued;	/* since when it waits; 0 = it does not */
};

struct task_struct___trace {
	int pid;
	int tgid;
	unsigned long long start_boottime;
	struct sched_entity___trace se;
	struct sched_info___trace sched_info;
};

#pragma clang attribute pop

/* 1. What is known. */

u64 followed[TRACE_IDS / 64] SEC(".bss.followed");	/* a bit a process; user space sets it */
static u16 row_of[TRACE_IDS] SEC(".bss.rows");		/* of a thread; 0 = none, or the first */
struct waits waits[TRACE_THREADS] SEC(".bss.waits");
u32 graph SEC(".bss.followed");				/* who wakes whom is asked for; set like `followed` */
static u32 seen;					/* threads so far */

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

/* One turn of a thread on a CPU. It ended when that of `then` began. */
struct run {
	u64 begin_ns;
	u32 tid;
	u32 then;		/* who got the CPU after it */
};

/* The last ones of a CPU, a ring. */
struct runs {
	struct run of[TRACE_RUNS];
	u64 idle_ns;		/* when the idle task got the CPU last, of which the kernel counts nothing */
	u32 next;
};

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct runs);
} recent SEC(".maps");

/* 2. Helpers. */

static __always_inline bool is_followed(const struct task_struct___trace *p)
{
	u32 id = p->tgid & (TRACE_IDS - 1);

	return followed[id / 64] >> id % 64 & 1;
}

/*
 * A place for a thread that has none: that of a dead one with its id, else that of whoever has had it
 * longest, if all are taken.
 */
static __noinline u32 enter(u32 tid, u64 born_ns)
{
	u32 row = row_of[tid & (TRACE_IDS - 1)] & (TRACE_THREADS - 1);
	struct waits *its;

	if (waits[row].tid != tid) {
		row = __sync_fetch_and_add(&seen, 1) & (TRACE_THREADS - 1);
		row_of[waits[row].tid & (TRACE_IDS - 1)] = 0;
	}
	its = &waits[row];
	__builtin_memset(its, 0, sizeof(*its));
	its->tid = tid;
	its->born_ns = born_ns;
	row_of[tid & (TRACE_IDS - 1)] = row;
	return row;
}

static __always_inline struct waits *row_at(u32 tid)
{
	return &waits[row_of[tid & (TRACE_IDS - 1)] & (TRACE_THREADS - 1)];
}

static __always_inline struct waits *waits_of(const struct task_struct___trace *p)
{
	struct waits *its = row_at(p->pid);

	if (its->tid != p->pid || its->born_ns != p->start_boottime)
		its = &waits[enter(p->pid, p->start_boottime) & (TRACE_THREADS - 1)];
	return its;
}

static __noinline int add(void *map, u32 from, u32 to, u64 much)
{
	struct pair key = { .from = from, .to = to };
	u64 *sum;

	if (!map || !much)
		return 0;
	sum = bpf_map_lookup_elem(map, &key);
	if (sum)
		__sync_fetch_and_add(sum, much);
	else	/* one that another CPU enters meanwhile is overwritten: a count is lost */
		bpf_map_update_elem(map, &key, &much, 0);
	return 0;
}

/* Who ran on this CPU since `ready`, up to now. Before a switch that was not seen nobody knows. */
static __noinline int blame(struct runs *runs, struct waits *its, u64 ready, u64 now)
{
	u32 then = its->tid;
	u64 begin;

	for (u32 i = 1; i <= TRACE_RUNS; i++) {
		struct run *run = &runs->of[(runs->next - i) % TRACE_RUNS];

		begin = run->begin_ns;
		if (run->then != then || begin > now)
			break;
		then = run->tid;
		if (its->behind != then) {
			add(&occupants, its->behind, its->tid, its->behind_ns);
			its->behind = then;
			its->behind_ns = 0;
		}
		its->behind_ns += now - (begin > ready ? begin : ready);
		if (begin <= ready)
			break;
		now = begin;
	}
	return 0;
}

/*
 * Whether it had turns that were not seen, before this one. A kernel may hide what happens while some
 * threads have the CPU; and most have had some before they were followed.
 */
static __always_inline bool missed(const struct waits *its, u64 turns)
{
	return its->turns != turns;
}

/* Bits of a byte without its leading zeros. */
#define TWO(n) n, n
#define FOUR(n) TWO(n), TWO(n)
#define EIGHT(n) FOUR(n), FOUR(n)
#define SIXTEEN(n) EIGHT(n), EIGHT(n)
#define THIRTY_TWO(n) SIXTEEN(n), SIXTEEN(n)
#define SIXTY_FOUR(n) THIRTY_TWO(n), THIRTY_TWO(n)
static const u8 bits_of[256] = {
	0, 1, TWO(2), FOUR(3), EIGHT(4), SIXTEEN(5), THIRTY_TWO(6), SIXTY_FOUR(7),
	SIXTY_FOUR(8), SIXTY_FOUR(8),
};

static __noinline u32 slot_of_long(u64 ns)
{
	u64 left = ns >> 10;
	u32 slot = 0;

	if (left >> (TRACE_SLOTS - 2))
		return TRACE_SLOTS - 1;
	for (; left >= 256 && slot < 24; left >>= 8)
		slot += 8;
	return slot + bits_of[left & 255];
}

static __always_inline u32 slot_of(u64 ns)
{
	return ns < 256 << 10 ? bits_of[ns >> 10] : slot_of_long(ns);
}

/* 3. Events. */

static __always_inline int waking(struct task_struct___trace *p, bool interrupt)
{
	struct task_struct___trace *waker;
	struct waits *its;
	u32 from = 0;

	if (!is_followed(p))
		return 0;
	waker = (void *)bpf_get_current_task_btf();
	if (is_followed(waker) && !interrupt) {
		from = waker->pid;
		waits_of(waker)->wakes++;
	}
	its = waits_of(p);
	its->wakeups++;
	its->awake_ns = bpf_ktime_get_ns();	/* even if nobody saw it fall asleep */
	if (its->waker != from) {
		add(&wakings, its->waker, its->tid, its->woken);
		its->waker = from;
		its->woken = 0;
	}
	its->woken++;
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(trace_waking, struct task_struct___trace *p)
{
	return waking(p, in_interrupt());
}

/* Where data has no symbols, so that nobody finds the counter. */
SEC("tp_btf/sched_waking")
int BPF_PROG(trace_waking_noted, struct task_struct___trace *p)
{
	return waking(p, in_noted_interrupt());
}

static __noinline int asleep(u64 *ctx)
{
	waits_of((struct task_struct___trace *)ctx[1])->awake_ns = 0;
	return 0;
}

static __noinline int awake(u64 *ctx)
{
	struct waits *its = waits_of((struct task_struct___trace *)ctx[2]);

	/* After turns that were missed, too: whoever never sleeps has most of them. */
	if (!its->awake_ns)
		its->awake_ns = bpf_ktime_get_ns();
	return 0;
}

/* Not `runqueues`: where data has no symbols (CONFIG_KALLSYMS_ALL), that is not found. */
static __always_inline u64 clock_of(const struct task_struct___trace *p)
{
	return p->se.cfs_rq->rq->clock;
}

/* A thread gets the CPU after `run`, and has waited for that. */
static __always_inline int arrive(struct task_struct___trace *next, struct waits *its,
				  struct runs *runs, struct run *run)
{
	u64 now, queued, wait, delay, turns = next->sched_info.pcount;

	queued = next->sched_info.last_queued;
	now = clock_of(next);
	if (!queued || queued > now)
		return 0;
	wait = now - queued;
	/* The kernel counts this wait and this turn next. */
	delay = next->sched_info.run_delay + wait;
	if (!missed(its, turns))	/* the rest was spent in queues of other CPUs */
		wait = delay - its->delay_ns;
	its->turns = turns + 1;
	its->delay_ns = delay;
	its->wait_ns += wait;
	its->slots[slot_of(wait) & (TRACE_SLOTS - 1)]++;
	if (its->behind != run->tid || run->begin_ns > now - wait)
		return blame(runs, its, now - wait, now);
	its->behind_ns += wait;
	return 0;
}

static __noinline int arrive_first(u64 *ctx, struct runs *runs)
{
	struct task_struct___trace *next = (void *)ctx[2];

	return arrive(next, waits_of(next), runs, &runs->of[(runs->next - 1) % TRACE_RUNS]);
}

SEC("tp_btf/sched_switch")
int trace_switch(u64 *ctx)
{
	struct task_struct___trace *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u64 begin = prev->sched_info.last_arrival;
	u32 zero = 0, tid = next->pid;
	struct waits *its;
	struct runs *runs;
	struct run *run;

	if (graph) {
		/* Preempted before it could sleep, it is awake whatever it had set as its state. */
		if (!(bool)ctx[0] && (u32)ctx[3] && is_followed(prev))
			asleep(ctx);
		if (is_followed(next))
			awake(ctx);
	}
	runs = bpf_map_lookup_elem(&recent, &zero);
	if (!runs)	/* never: the verifier does not know */
		return 0;
	run = &runs->of[runs->next++ % TRACE_RUNS];
	run->begin_ns = begin ? begin : runs->idle_ns;
	run->tid = prev->pid;
	run->then = tid;
	if (!is_followed(next)) {
		if (!tid)
			runs->idle_ns = clock_of(next);
		return 0;
	}
	its = row_at(tid);
	if (its->tid != tid || its->born_ns != next->start_boottime)
		return arrive_first(ctx, runs);
	return arrive(next, its, runs, run);
}
