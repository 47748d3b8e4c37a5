/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler and the controller share: the memory between them, and nothing else.
 *
 * The controller never repeats a layout: it reads structs, enums, sections and the texts below
 * (`ABOUT`, a BTF declaration tag) from the BTF of the compiled object. All shared memory is
 * global data that can be mapped, one section (= one map of one value) each:
 *
 *	.rodata        tunables            set before load, constants for the verifier
 *	.data.control  struct control      the controller writes: heartbeat, queues, groups
 *	.bss.slots     struct slot[]       the controller writes: hints, one slot a thread
 *	.bss.heads     u64[]               the controller writes: when the head of a thread's queue
 *	                                   came in, CLOCK_MONOTONIC; 0 = not known; index as slots
 *	.bss.arrivals  u32[]               the controller writes: how old work is that comes in from
 *	                                   outside, us: it was on another node; index as slots
 *	.bss.weights   u32[]               the controller writes: of each query, by the number in slot
 *	                                   .query, in a fair class, WEIGHT_ONE = a thread of nice 0; 0 =
 *	                                   it has no floor (floor.bpf.h)
 *	.bss.threads   struct thread[]     the scheduler writes: age, waits; same index as slots
 *	.bss.queues    struct queue_state  the scheduler writes
 *	.bss.groups    struct group_state  the scheduler writes
 *	.bss.stats     struct stats[]      the scheduler writes: counters, one struct a CPU
 *	.bss.exit      struct exit_report  the scheduler writes when it is ejected
 *	.bss.dump      char[]              what the kernel wrote down then
 *
 * What an engine writes it has in a map of its own, so that it can touch nothing else: each is an
 * array of struct live in the map of maps `live`, mapped by the engine and by the controller. Row 0
 * has only the engine's last sign of life, in head_ns; the others belong to its operators.
 *
 * A thread finds its slot through the task storage map `adopted` (value: struct adoption), which
 * the controller sets by pidfd when it adopts the thread, after the slot is filled; a dead or a
 * reused tid can never match. Slot 0 means "no slot" and is never used.
 *
 * How urgent is a queued thread? Every queue is ordered by key = origin - lead, oldest first,
 * where origin is when the work that the thread carries came in. At dispatch the heads of the
 * queues are compared by
 *
 *	urgency = base + slope * (now - key)		(larger wins; see struct queue)
 *
 * so the controller expresses
 *	strict priority		one queue, lead = position in the order (larger = more urgent);
 *				a thread overtakes a more urgent one when it is older by the
 *				difference of their leads, which bounds starvation
 *	FCFS			one queue, lead 0
 *	LSF, BSD		logarithmic clusters: one queue a cluster, slope of the cluster, lead 0
 *	ranks, multi-class	the rank in the upper byte of base
 *	QS, any exact form	one queue with QUEUE_EXACT: all its threads are compared by their own
 *				base + slope * age + per_tuple * queue length, read from `live`
 *	shares of queries	one or more queues a group, `share` in the group
 *	concurrency caps	`cap` in the group
 */
#ifndef SCHED_CTL_H
#define SCHED_CTL_H

#define ABOUT(text) __attribute__((btf_decl_tag(text)))
#define LINES __attribute__((aligned(64)))	/* on cache lines of its own */

enum limits {
	MAX_SLOTS = 16384,		/* a power of two; slot 0 is never used */
	MAX_CPUS = 512,			/* a power of two */
	MAX_QUEUES = 64,		/* bits of queue_state.waiting */
	MAX_GROUPS = 64,
	MAX_LLCS = 64,			/* sets of queues: one a last-level cache, or several ... */
	SET_CPUS = 16,			/* ... for those of more CPUs than this */
	RANK_SHIFT = 56,		/* base = rank << RANK_SHIFT | static part */
	MAX_SLOPE = 1 << 20,		/* so that slope * (age + lead) stays below a rank */
	MAX_LEAD_US = 1 << 30,		/* 18 minutes; larger leads count as this, as do live ages */
	MAX_TUPLES = 1 << 20,		/* longer queues count as this, so that they stay below a rank */
	MAX_QUERIES = 4096,		/* a power of two; beyond, queries share an entry; 0 is none */
	MAX_ENGINES = 64,		/* that write live rows; a power of two; 0 is never used */
	LIVE_ROW_BITS = 16,		/* slot.live = engine << LIVE_ROW_BITS | row */
	WEIGHT_ONE = 1024,
	SHARE_ONE = 1024,		/* the share of 1; shares are relative, 1..2^20 */
	TRACE_OFF = 0,
	DUMP_BYTES = 32768,		/* what the kernel keeps, unless told otherwise */
};

enum fault {
	FAULT_ERROR = 1,		/* scx_bpf_error() */
	FAULT_LOSS = 2,			/* lose every thread */
	FAULT_TIMERS = 3,		/* no timer can be started */
};

enum slot_flags {
	SLOT_ACTIVE = 1,		/* hints are valid; without it the thread is nobody's */
	SLOT_UNTIL_BLOCK = 2,		/* slice: until it blocks (at most until_block_ms) */
	SLOT_LIVE_AGE = 4,		/* origin is the live row's head_ns, not inherited */
	SLOT_LIVE_LENGTH = 8,		/* the live row's queue_tuples count in its exact urgency */
	SLOT_RIVALS = 16,		/* its age is compared with those of other queries */
};

enum queue_flags {
	QUEUE_EXACT = 1,		/* compare all its threads by their own forms, O(threads) */
};

/* Hints for one thread. 32 bytes, so that ten thousand are copied in tens of microseconds. */
struct slot {
	__u32 lead_us;			/* counts as this much older in its queue's order */
	__u8 queue;			/* index into control.queues */
	__u8 flags;			/* enum slot_flags */
	__u16 query;			/* whose work it does, any number; 0 = not known */
	__u16 slice_us;			/* how long it runs before others are compared; 0 = default */
	__u16 depth;			/* how far along its query's data way; 0 = not known */
	__u32 slope;			/* exact form: urgency per 1.024 us of age, <= MAX_SLOPE */
	__u64 base;			/* exact form: rank << RANK_SHIFT | static part */
	__u32 per_tuple;		/* exact form: urgency per tuple in its queue */
	__u32 live;			/* engine and row in `live`, if a flag says that they count */
};

/* What an engine tells about one operator, at each push and pop. A cache line: one writer each. */
struct live {
	__u64 head_ns;			/* CLOCK_MONOTONIC arrival of the oldest tuple; 0 = none */
	__u64 queue_tuples;		/* tuples waiting or in work */
} __attribute__((aligned(64)));

struct queue {
	__u64 base;			/* rank << RANK_SHIFT | static part (< 2^55) */
	__u32 slope;			/* urgency per 1.024 us of (age + lead), <= MAX_SLOPE */
	__u16 group;			/* index into control.groups; counts if nr_groups > 0 */
	__u16 flags;			/* enum queue_flags */
};

struct group {
	__u32 share;			/* relative to other groups; SHARE_ONE = 1; 0 = by urgency */
	__u32 cap;			/* threads of it that may run at once; 0 = any number */
};

struct control {
	__u64 heartbeat_ns;		/* CLOCK_MONOTONIC of the controller's last sign of life */
	__u32 ttl_ms;			/* hints count while the heartbeat is younger; 0 = always */
	__u32 nr_queues;		/* queues in use: 0..nr_queues-1 */
	__u32 nr_groups;		/* groups in use; 0 = queues are compared by urgency alone */
	__u32 slice_us;			/* default slice */
	__u32 until_block_ms;		/* longest slice of SLOT_UNTIL_BLOCK */
	__u32 preempt_times;		/* a wake-up preempts what is this many times less urgent; 0 = never */
	__u32 starvation_ms;		/* operators that wait longer run, in their turn ... */
	__u32 rescue_ms;		/* ... one in this time on each CPU, or more (starve.bpf.h) */
	__u32 fault;			/* tests only: enum fault */
	__u32 least_us;			/* an operator runs so long before a more urgent one of
					 * another query that wakes up preempts it; 0 = never */
	__u32 weight_part;		/* of the operators' weights, WEIGHT_ONE = all; 0 = all */
	__u32 hold_us;			/* a flusher is held for so long at most; 0 = never */
	__u32 floor_us;			/* how far a query may lag behind its fair share of the CPU
					 * before it goes first, us of a thread of nice 0; 0 = any */
	__u32 reserved;
	struct queue queues[MAX_QUEUES];
	struct group groups[MAX_GROUPS];
};

/* What became of one adopted thread. Written by the scheduler only. */
struct thread {
	__u64 origin_ns;		/* when the work that it carries came in (scheduler clock) */
	__u64 queued_ns;		/* since when it waits for a CPU; 0 = it does not wait */
	__u64 run_ns;			/* CPU time since adoption */
	__u64 wait_ns;			/* time spent queued since adoption */
	__u64 wait_max_ns;		/* longest single wait; the controller may zero it */
	__u64 runs;			/* times it got a CPU: a busy one, 2^32 times in days */
	__u32 wakeups;			/* times it was woken */
	__u32 rescues;			/* times it ran by the starvation bound */
	__u8 outside;			/* 1: last woken by a thread that is not adopted (an ingress) */
	__u8 set;			/* in whose queues it waits, + 1; 0 = in nobody's */
	__u16 cpu;			/* where it ran last */
	__u32 left_ns;			/* rest of the slice that a higher class interrupted; 0 = none */
	__u32 tid;			/* whose slot this was seen to be */
	__u32 weight;			/* as counted while it wants a CPU, 1024 = nice 0; 0 = it does not */
	__u16 only_cpu;			/* the one CPU that it may use, + 1; 0 = several */
	__u16 part;			/* control.weight_part when its cgroup counted it */
	__u32 burst_ns;			/* CPU time from a wake-up until it sleeps, moving average */
	__u64 woken_run_ns;		/* run_ns when it was woken last */
	__u64 woken_ns;			/* when that was */
	__u64 vtime;			/* packed: what it would have if it were not an operator */
	__u64 hungry_ns;		/* as queued_ns, but turns that were lent do not count */
	__u64 slept_ns;			/* when it went to sleep last */
	__u8 lent;			/* 1: its turn is a lent one */
	__u8 held;			/* 1: a flusher of it may be held until it sleeps */
	__u8 rescued;			/* 1: its turn is one by the starvation bound */
	__u8 group;			/* whose lag was forgiven for it last, + 1; 0 = nobody's */
	__u16 query;			/* whose floor counts that it wants a CPU; 0 = nobody's */
	__u8 yielded;			/* 1: it gave its turn up, and was not put aside yet */
} LINES;

struct queue_state {			/* one a set of queues */
	__u64 waiting;			/* bit q: queue q may have threads */
	__u64 head_key[MAX_QUEUES];	/* key of the head of each queue, where its bit is set */
} LINES;

struct group_state {
	__u64 vtime_ns;			/* CPU time / share */
	__s32 running;			/* threads of it on a CPU */
	__u32 reserved;
};

struct adoption {
	__u32 slot;			/* 1..MAX_SLOTS-1; 0 = it is no operator ... */
	__u32 flushes;			/* ... but hands on what the operator in this slot makes */
	/* The scheduler writes these, of a flusher: */
	__u64 flushed_ns;		/* when it was last let run */
	__u64 held_ns;			/* for how long it is held at most ... */
	__u64 until_ns;			/* ... which is until then */
	__u32 misses;			/* times in a row that it was held in vain */
	__u32 period_us;		/* of its timer, about */
};

/* Counters, one struct a CPU. The controller sums them up and shows these texts. */
struct stats {
	__u64 dispatches	ABOUT("decisions: times a CPU asked what to run next");
	__u64 operator_runs	ABOUT("operator threads put on a CPU");
	__u64 other_runs	ABOUT("other threads put on a CPU");
	__u64 operator_ns	ABOUT("CPU time of operator threads, ns");
	__u64 other_ns		ABOUT("CPU time of other threads, ns");
	__u64 keeps		ABOUT("operator threads kept at slice end because they still won");
	__u64 other_keeps	ABOUT("other threads kept at slice end");
	__u64 idle_wakeups	ABOUT("wake-ups placed on an idle CPU at once");
	__u64 wakeups		ABOUT("wake-ups of operator threads");
	__u64 inherits		ABOUT("wake-ups whose age came from the waking operator");
	__u64 guaranteed	ABOUT("runs that others got from their guaranteed share");
	__u64 leftovers		ABOUT("runs that others got because no operator waited");
	__u64 rescues		ABOUT("operator threads run by the starvation bound");
	__u64 starved		ABOUT("looks that found an operator waiting beyond the bound");
	__u64 preempts		ABOUT("wake-ups of an operator that preempted what ran");
	__u64 kicks		ABOUT("idle CPUs woken for a queued thread");
	__u64 repairs		ABOUT("queues found to have threads that no bit told of");
	__u64 steals		ABOUT("threads taken from another set of queues by a CPU without work");
	__u64 capped		ABOUT("decisions in which a concurrency cap left out a group");
	__u64 kernel_threads	ABOUT("per-CPU kernel threads run at once");
	__u64 expired		ABOUT("times hints began to be ignored for want of a heartbeat");
	__u64 interrupted	ABOUT("threads preempted by a higher class within their slice");
	__u64 other_rescues	ABOUT("other threads run because they waited beyond their bound");
	__u64 parked		ABOUT("other threads held back because their cgroup used its quota up");
	__u64 lost_ns		ABOUT("time that operators waited while a higher class had the CPU, ns");
	__u64 recounts		ABOUT("threads whose weight was not counted when they woke up");
	__u64 alarms		ABOUT("timers started to end a run before its slice does");
	__u64 weighed_ns	ABOUT("CPU time of operators over the sum of their weights, ns");
	__u64 pulls		ABOUT("operators taken from another set of queues as more urgent");
	__u64 other_pulls	ABOUT("other threads taken from another set of queues as behind");
	__u64 looks		ABOUT("looks at the operators of another set of queues");
	__u64 by_right		ABOUT("operators run before others who lag behind, as they would without an order");
	__u64 owed		ABOUT("operators run because their query lagged behind its fair share");
	__u64 lent		ABOUT("short turns lent to operators that wait for long: they may hold locks");
	__u64 held		ABOUT("flushers held back until their operator has done its batch");
	__u64 no_timers		ABOUT("timers that the kernel did not start: done without, at a tick or a decision");
	__u64 held_in_vain	ABOUT("flushers let go because that took too long");
} LINES;

struct exit_report {
	__s32 kind;			/* enum scx_exit_kind of the kernel; 0 = still attached */
	__u32 reserved;
	__s64 exit_code;
	char reason[128];
	char message[1024];
};

enum trace_event {
	TRACE_NONE = 0,
	TRACE_ENQUEUE = 1,		/* key = its key in the queue */
	TRACE_RUN = 2,			/* key = waited_ns */
	TRACE_STOP = 3,			/* key = ran_ns */
	TRACE_PICK = 4,			/* dispatch chose; key = urgency of the winner */
	TRACE_KEEP = 5,			/* dispatch kept prev; key = its urgency */
	TRACE_RESCUE = 6,
	TRACE_COMPARE = 7,		/* a thread of an exact queue; key = its urgency */
	TRACE_LEND = 8,			/* a short turn to one that waits for long */
	TRACE_OWED = 9,			/* its query lagged behind its fair share */
};

/* One record of the map `trace`, a ring that is off unless trace_records > 0. */
struct trace_record {
	__u64 time_ns;			/* scheduler clock */
	__u64 key;
	__u64 origin_ns;
	__u16 event;			/* enum trace_event */
	__u16 slot;			/* 0 = a thread that is not adopted */
	__u16 cpu;
	__u16 queue;
};

#endif
