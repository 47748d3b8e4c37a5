/* Burning CPU time: the work that operators do instead of parsing, joining or learning. */
#ifndef LABSPE_BURN_H
#define LABSPE_BURN_H

#include <stdbool.h>
#include <stdint.h>

/* What is burnt: a chain of dependent multiplications, or (under an emulator, which runs them much
 * faster than it runs multiplications) instructions that do nothing. */
enum burn { BURN_MULTIPLY, BURN_NOP };

/* Runs `steps` steps. */
void burn(enum burn kind, uint64_t steps);

/* CPU time of a step in ns: the least of many short runs in thread CPU time, so neither other
 * programs nor interrupts count. */
double burn_calibrate(enum burn kind);

#endif
