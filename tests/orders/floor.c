/*
 * A CPU that queries share by an order, with the floor of the BPF program, by its own arithmetic; or
 * without it; or as in a fair class.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stdint.h>

typedef __u64 u64;
typedef __s64 s64;
typedef __u32 u32;
typedef __s32 s32;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#include "../../bpf/sched_ctl.h"
#include "../../bpf/floor.h"

enum { QUERIES = 64, STRICT = 0, FLOOR = 1, FAIR = 2 };

static struct floor_query floors[QUERIES];
static struct floor_clock one;
static s64 bound_ns;

void floors_begin(s64 ns)
{
	for (int i = 0; i < QUERIES; i++)
		floors[i] = (struct floor_query){};
	one = (struct floor_clock){};
	bound_ns = ns;
}

static s64 lag(int q) { return floors[q].counted ? floor_lag(&floors[q], &one) : 0; }

static int next(int n, const bool *wants, const int *place, int how)
{
	int first = -1, most = -1;

	for (int i = 0; i < n; i++) {
		if (!wants[i])
			continue;
		if (first < 0 || place[i] < place[first])
			first = i;
		if (most < 0 || lag(i) > lag(most))
			most = i;
	}
	if (first < 0 || how == STRICT)
		return first;
	if (how == FAIR)
		return most;
	return lag(most) > bound_ns && !floor_within(&floors[first], &one, 2 * bound_ns) ? most : first;
}

/*
 * Go on for so many turns. Of each query: CPU time that its input takes, s/s, and a tuple's, s;
 * whether it is there at all. Changed: its backlog, s; what it used, s; turns in which it had work.
 */
void floors_run(int n, int turns, double turn_s, double of_cpu, int how, const int *place,
		const u32 *weight, const double *input, const double *tuple_s, const bool *there,
		double *backlog_s, double *used_s, double *busy)
{
	bool wants[QUERIES];

	for (int t = 0; t < turns; t++) {
		for (int i = 0; i < n; i++) {
			bool wanted = floors[i].wanting > 0;

			backlog_s[i] += input[i] * turn_s;
			wants[i] = there[i] && backlog_s[i] >= tuple_s[i];
			busy[i] += wants[i];
			if (wants[i] && !wanted)
				floor_enter(&floors[i], &one, weight[i], 2 * bound_ns);
			else if (!wants[i] && wanted)
				floor_leave(&floors[i], &one, 2 * bound_ns);
		}
		int q = next(n, wants, place, how);
		double ran_s = of_cpu * turn_s;

		if (q < 0 || ran_s <= 0)
			continue;
		if (ran_s > backlog_s[q])
			ran_s = backlog_s[q];
		floor_charge(&floors[q], &one, (u64)(ran_s * 1e9), 2 * bound_ns);
		backlog_s[q] -= ran_s;
		used_s[q] += ran_s;
	}
}
