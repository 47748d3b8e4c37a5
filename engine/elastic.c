#include "elastic.h"

#include <math.h>
#include <string.h>

static const double SENS = 0.05, BUSY = 0.8, GROWTH = 1.5;

void elastic_begin(struct elastic *e, uint64_t least, uint64_t most)
{
	memset(e, 0, sizeof *e);
	e->least = least;
	e->most = most;
	e->level = least;
	e->busy_limit = BUSY;
}

/* A step of which a straight line shows twice SENS, or half of the level. */
static uint64_t width(const struct elastic *e, uint64_t level)
{
	double step = ceil((double)level * (e->fine ? 2 * SENS : GROWTH - 1));

	return step > 1 ? (uint64_t)step : 1;
}

static uint64_t above(const struct elastic *e)
{
	uint64_t level = e->level + width(e, e->level);

	return level < e->most ? level : e->most;
}

/* The level from which `above` leads here. */
static uint64_t below(const struct elastic *e)
{
	uint64_t level = e->level;

	while (level > e->least && (level == e->level || level + width(e, level) > e->level))
		level--;
	return level;
}

void elastic_step(struct elastic *e, double throughput, double busy)
{
	uint64_t up = above(e), down = below(e), level = e->level;
	bool trusts_above, trusts_below, rises_here, rises_above;

	if (!(isfinite(throughput) && throughput >= 0))
		return;
	if (e->trusted[level] && fabs(throughput - e->last[level]) > SENS * e->last[level])
		memset(e->trusted, 0, sizeof e->trusted); /* the load has changed */
	e->last[level] = throughput;
	e->trusted[level] = true;

	trusts_above = up == level || e->trusted[up];
	trusts_below = down != level && e->trusted[down];
	rises_here = trusts_below && throughput - e->last[down] > SENS * e->last[down];
	rises_above = up != level && e->trusted[up] &&
		      e->last[up] - throughput > SENS * throughput;
	if (busy <= e->busy_limit &&
	    (rises_above || ((rises_here || level == e->least) && !trusts_above)))
		e->level = up;
	else if (!trusts_below || !rises_here)
		e->level = down;
	e->fine |= e->level <= level;
}
