"""QS, queue size: u = Q, the longest input queue first.

Balances the queues of one pipeline (Fu et al., EdgeWise, 2019; Lachesis, section 5.1). Not for many
queries at once: their queues say nothing about which of them is worth the CPU.
"""

from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]


def urgency(frame: OperatorFrame) -> UrgencyForm:
    return form(len(frame), per_tuple=1.0)


policy = Policy(
    name="qs",
    urgency=urgency,
    needs=frozenset({"queue_size"}),
    goal="balanced queues: throughput and latency of one pipeline",
)
