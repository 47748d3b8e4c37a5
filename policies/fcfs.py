"""FCFS, first come first served: u = W, the operator with the oldest waiting tuple first.

The age counts from the tuple's arrival in the system, so downstream operators come before upstream
ones. Least maximum latency (Bender et al. 1998; Lachesis, section 5.1).
"""

from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    return form(len(frame), per_second=1.0)


policy = Policy(
    name="fcfs",
    urgency=urgency,
    needs=frozenset({"head_age"}),
    goal="maximum latency",
)
