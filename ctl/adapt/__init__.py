"""The slower loop: what came of a schedule, and which schedule is kept for it."""
