/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel functions, and what stands in for those that a kernel lacks.
 *
 * Never a kernel version: a function is declared weak and its symbol tested, newest form first.
 * The verifier drops the branches that the running kernel cannot take, so a shim costs nothing.
 */
#ifndef SCHED_CTL_COMPAT_BPF_H
#define SCHED_CTL_COMPAT_BPF_H

#include "kernel.bpf.h"

/* libbpf has bpf_ksym_exists() from 1.2 on; Debian 12 ships the headers of 1.1. */
#define kernel_has(function) (!!(function))

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 __opaque[1];
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
				  bool *is_idle) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern void scx_bpf_cpuperf_set(s32 cpu, u32 perf) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern u32 scx_bpf_nr_cpu_ids(void) __ksym;
extern void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 size) __ksym;
extern void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, u32 size) __ksym;
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;

extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

/* 6.13 renamed dispatch to dsq_insert, consume to dsq_move_to_local; 6.18 dropped the old names. */
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
	__ksym __weak;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
				     u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym __weak;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
			     u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
				   u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dispatch_vtime_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					    u64 dsq_id, u64 enq_flags) __ksym __weak;
extern void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
	__ksym __weak;
extern void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
				   u64 enq_flags) __ksym __weak;
extern bool scx_bpf_consume(u64 dsq_id) __ksym __weak;
extern bool scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p,
				      u64 dsq_id, u64 enq_flags) __ksym __weak;

/* 6.14: a clock that is read once a scheduling event. */
extern u64 scx_bpf_now(void) __ksym __weak;

/*
 * 6.19: the head of a queue without its lock. Before 7.1 it may be of a thread that has gone (71d7847cad44,
 * 2f2ea7709266; the fixes have no mark of their own), so it is used from there on, which another function of
 * 7.1 tells: never called, and not worth a look at a version.
 */
extern struct task_struct *scx_bpf_dsq_peek(u64 dsq_id) __ksym __weak;
extern bool scx_bpf_sub_dispatch(u64 cgroup_id) __ksym __weak;

#define can_peek() (kernel_has(scx_bpf_dsq_peek) && kernel_has(scx_bpf_sub_dispatch))

/* 6.19: instead of writes to the thread, which are deprecated since, and of many arguments. */
extern bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;
extern bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime) __ksym __weak;
extern bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				       struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;

static __always_inline void set_slice(struct task_struct *p, u64 slice_ns)
{
	if (kernel_has(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice_ns);
	else
		p->scx.slice = slice_ns;
}

static __always_inline void set_vtime(struct task_struct *p, u64 vtime)
{
	if (kernel_has(scx_bpf_task_set_dsq_vtime))
		scx_bpf_task_set_dsq_vtime(p, vtime);
	else
		p->scx.dsq_vtime = vtime;
}

static __always_inline void dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice_ns, u64 flags)
{
	if (kernel_has(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, dsq_id, slice_ns, flags);
	else
		scx_bpf_dispatch(p, dsq_id, slice_ns, flags);
}

static __always_inline void dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice_ns,
					     u64 vtime, u64 flags)
{
	struct scx_bpf_dsq_insert_vtime_args args = { dsq_id, slice_ns, vtime, flags };

	if (kernel_has(__scx_bpf_dsq_insert_vtime))
		__scx_bpf_dsq_insert_vtime(p, &args);
	else if (kernel_has(scx_bpf_dsq_insert_vtime))
		scx_bpf_dsq_insert_vtime(p, dsq_id, slice_ns, vtime, flags);
	else
		scx_bpf_dispatch_vtime(p, dsq_id, slice_ns, vtime, flags);
}

static __always_inline bool dsq_move_to_local(u64 dsq_id)
{
	if (kernel_has(scx_bpf_dsq_move_to_local))
		return scx_bpf_dsq_move_to_local(dsq_id);
	return scx_bpf_consume(dsq_id);
}

static __always_inline bool dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id)
{
	if (kernel_has(scx_bpf_dsq_move))
		return scx_bpf_dsq_move(it, p, dsq_id, 0);
	return scx_bpf_dispatch_from_dsq(it, p, dsq_id, 0);
}

/* Into another queue, which is ordered by vtime. */
static __always_inline bool dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					   u64 dsq_id)
{
	if (kernel_has(scx_bpf_dsq_move_vtime))
		return scx_bpf_dsq_move_vtime(it, p, dsq_id, 0);
	return scx_bpf_dispatch_vtime_from_dsq(it, p, dsq_id, 0);
}

static __always_inline u64 clock_ns(void)
{
	if (kernel_has(scx_bpf_now))
		return scx_bpf_now();
	return bpf_ktime_get_ns();
}

/*
 * The same clock while this CPU chooses what to run or begins to run it: scx_bpf_now() does not
 * know there that the run queue's time is fresh and reads the hardware, 90 instructions each time.
 */
extern const struct rq runqueues __ksym __weak;

static __always_inline u64 switch_clock_ns(s32 cpu)
{
	const struct rq *rq;

	if (kernel_has(scx_bpf_now) && kernel_has(&runqueues)) {
		rq = bpf_per_cpu_ptr(&runqueues, cpu);
		if (rq)
			return rq->clock;
	}
	return clock_ns();
}

/* The performance that the kernel asks the governor for; 0 where it does not tell. */
static __always_inline u32 asked_for(s32 cpu)
{
	const struct rq *rq = NULL;

	if (kernel_has(&runqueues) && bpf_core_field_exists(rq->scx.cpuperf_target)) {
		rq = bpf_per_cpu_ptr(&runqueues, cpu);
		if (rq)
			return rq->scx.cpuperf_target;
	}
	return 0;
}

static __always_inline s32 cpu_of(const struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return scx_bpf_task_cpu(p);
}

/*
 * Is the thread's migration disabled, and is it for us to mind? From 6.15 on the kernel leaves such a
 * thread on its CPU and does not ask (SCX_OPS_ENQ_MIGRATION_DISABLED is not set). Before, it asks, and
 * ends who moves it to another CPU. Each of our programs disables the migration of who runs meanwhile.
 */
static __always_inline bool is_held_here(struct task_struct *p)
{
	if (bpf_core_enum_value_exists(enum scx_ops_flags, SCX_OPS_ENQ_MIGRATION_DISABLED) ||
	    !bpf_core_field_exists(p->migration_disabled))
		return false;
	return p->migration_disabled > (p == bpf_get_current_task_btf());
}

/*
 * What this CPU is at, of linux/preempt.h; 0 where nobody tells: the counter of what must not be
 * preempted is in another place on each architecture (6.15 took it out of pcpu_hot). Where it counts
 * who disables interrupts, too (7.3), hardware interrupts have the bits 24 to 27. All have a type: for one that
 * is `void`, libbpf reads all of /proc/kallsyms, two fifths of what it takes to load this program.
 */
extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern const unsigned long local_interrupt_disable_state __ksym __weak;

static __always_inline int preempt_count(void)
{
	int depth = 0;
#if defined(__TARGET_ARCH_x86)
	if (kernel_has(&__preempt_count))
		depth = *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (kernel_has(&pcpu_hot))
		depth = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
#elif defined(__TARGET_ARCH_arm64)
	depth = bpf_get_current_task_btf()->thread_info.preempt.count;
#endif
	return depth;
}

/* Does it serve a hardware interrupt, such as a timer's (HARDIRQ_MASK)? */
static __always_inline bool in_hard_interrupt(void)
{
	return preempt_count() & (kernel_has(&local_interrupt_disable_state) ? 0xf000000 : 0xf0000);
}

/* The same, or what follows from one (softirq)? */
static __always_inline bool in_interrupt(void)
{
	return in_hard_interrupt() || preempt_count() & 0x100;	/* SOFTIRQ_OFFSET */
}

#define scx_error(text)								\
	({									\
		static char message[] = text;					\
		unsigned long long none[1] = {};				\
		scx_bpf_error_bstr(message, none, 0);				\
	})

#define scx_dump(text, args...)							\
	({									\
		static char format[] = text;					\
		unsigned long long data[] = { args };				\
		scx_bpf_dump_bstr(format, data, sizeof(data));			\
	})

#endif
