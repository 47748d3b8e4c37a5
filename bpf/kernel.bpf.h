/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel types and constants that the scheduler uses.
 *
 * A full vmlinux.h would tie the object to one kernel and hide what is used. Here each field is
 * looked up by name in the running kernel's BTF when the object is loaded (CO-RE), and struct
 * sched_ext_ops is a subset whose members libbpf copies by name.
 */
#ifndef SCHED_CTL_KERNEL_BPF_H
#define SCHED_CTL_KERNEL_BPF_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_F_INNER_MAP = 1 << 12,	/* maps of other sizes may take its place */
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_F_TIMER_CPU_PIN = 2,	/* since 6.7 */
};
enum { CLOCK_MONOTONIC = 1 };
struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* A forward declaration would leave weak kfuncs that take a cpumask silently unresolved. */
struct cpumask {
	unsigned long bits[1];
};

struct load_weight {
	unsigned long weight;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct thread_info {
	u32 cpu;
#if defined(__TARGET_ARCH_arm64)
	struct {
		u32 count;
	} preempt;
#endif
};

struct pcpu_hot {
	int preempt_count;
};

struct scx_rq {
	u32 cpuperf_target;
};

struct rq {
	u64 clock;
	struct scx_rq scx;
};

struct scx_dispatch_q {
	u64 id;
};

struct sched_ext_entity {
	struct scx_dispatch_q *dsq;	/* which it waits in */
	u32 flags;
	u32 weight;
	unsigned long runnable_at;	/* jiffies; since when it could run and did not */
	u64 slice;
	u64 dsq_vtime;
};

struct cgroup_subsys_state {
	int id;
};

struct cfs_bandwidth {
	s64 period;
	u64 quota;
};

struct task_group {
	struct cgroup_subsys_state css;
	unsigned long shares;
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	unsigned int flags;
	int nr_cpus_allowed;
	unsigned short migration_disabled;
	const struct cpumask *cpus_ptr;
	struct sched_entity se;
	struct task_group *sched_task_group;
	struct sched_ext_entity scx;
};

enum scx_exit_kind { SCX_EXIT_NONE };

enum scx_ops_flags { SCX_OPS_ENQ_MIGRATION_DISABLED = 16 };

struct scx_exit_info {
	enum scx_exit_kind kind;	/* must be declared an enum, or libbpf finds no match */
	s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

#pragma clang attribute pop

struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

struct scx_dump_ctx;

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*dump)(struct scx_dump_ctx *ctx);
	void (*dump_task)(struct scx_dump_ctx *ctx, struct task_struct *p);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u64 hotplug_seq;
	char name[128];
};

/* The same on every kernel from 6.12 to 7.3 (checked in their BTF). */
enum {
	PF_EXITING = 4,
	PF_BOUND_KTHREAD = 0x4200000,	/* PF_KTHREAD | PF_NO_SETAFFINITY */
	SCX_TASK_QUEUED = 1,
	SCX_ENQ_WAKEUP = 1,
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
	SCX_OPS_ENQ_EXITING = 4,
	SCX_OPS_SWITCH_PARTIAL = 8,
	SCX_DSQ_ITER_REV = 1 << 16,
};
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_DSQ_LOCAL 0x8000000000000002ULL

#endif
