/* Live rows: what waits in front of each operator, written at each push and pop into memory that a
 * controller hands over while the engine runs, so that a scheduler in the kernel can go by it.
 *
 * A controller connects to the socket that the header of the shared-memory file names, and sends
 * one message: a struct live_offer, and with it (SCM_RIGHTS) the descriptor of memory of that size
 * (a BPF map, or a memfd that is sealed against shrinking). The answer is a first sign of life in
 * row 0. The memory is in use until the connection is closed, or another offer takes its place.
 * Root is listened to, and whoever the engine's user is; nobody else.
 */
#ifndef LABSPE_LIVE_H
#define LABSPE_LIVE_H

#include "engine.h"

/* After engine_build, before any thread starts. */
void live_open(struct engine *engine);

/* Takes an offer, if one has come, and gives a sign of life. Main thread, now and then. */
void live_tick(struct engine *engine, uint64_t now);

/* The operators' threads must have ended. */
void live_close(struct engine *engine);

/* What waits for the operator now, into its row. Any thread. */
void live_publish(struct operator *op);

/* To be called after each change to the operator's queues. */
static inline void live_changed(struct engine *engine, struct operator *op)
{
	if (atomic_load(&engine->live))
		live_publish(op);
}

#endif
