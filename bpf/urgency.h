/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How urgent a queued thread is: arithmetic alone, which an ordinary compiler takes as well.
 *
 * Times are packed: 48 bits of them (in units of 256 ns) above 16 of a slot number, so that a key
 * tells whose it is. sched_ctl.h says what the forms mean.
 */
#ifndef SCHED_CTL_URGENCY_H
#define SCHED_CTL_URGENCY_H

static __always_inline u64 pack(u64 time_ns, u32 slot)
{
	return ((time_ns << 8) & ~0xffffULL) | slot;
}

static __always_inline u32 packed_slot(u64 packed)
{
	return packed & (MAX_SLOTS - 1);
}

/* Nanoseconds from the packed time to now; 0 if it lies ahead. */
static __always_inline u64 packed_age_ns(u64 packed, u64 now_ns)
{
	s64 age = (s64)((now_ns << 8) - packed);

	return age > 0 ? age >> 8 : 0;
}

static __always_inline bool before(u64 packed, u64 other)
{
	return (s64)(packed - other) < 0;
}

/* Where a thread is in its queue: as if its work were older by the lead. */
static __always_inline u64 key_at(u64 origin_ns, u32 lead_us, u32 slot)
{
	if (lead_us > MAX_LEAD_US)
		lead_us = MAX_LEAD_US;
	return pack(origin_ns - lead_us * 1000LL, slot);
}

/* What a policy says of a queue's head. */
static __always_inline u64 head_urgency(const struct queue *q, u64 key, u64 now_ns)
{
	return q->base + q->slope * (packed_age_ns(key, now_ns) >> 10);
}

/* The exact form of one thread: base + slope * age + per_tuple * queue length. */
static __always_inline u64 form_urgency(const struct slot *s, u64 origin_ns, u64 tuples, u64 now_ns)
{
	return s->base + s->slope * (packed_age_ns(pack(origin_ns, 0), now_ns) >> 10) +
	       s->per_tuple * tuples;
}

#endif
