"""RANDOM: a uniform draw for each operator, again each period: the control experiment.

Shows what of an effect comes from changing priorities at all (Lachesis, section 6). The draws come
from a generator that belongs to the policy object and starts from the seed, so two objects with
the same seed draw the same numbers.
"""

import numpy as np

from sched_ctl.model.policy import OperatorFrame, Policy, UrgencyForm, form

__all__ = ["policy"]


def policy(seed: int = 1) -> Policy:
    """seed: of the generator; the same seed gives the same sequence of schedules."""
    generator = np.random.default_rng(seed)

    def urgency(frame: OperatorFrame) -> UrgencyForm:
        return form(len(frame), static=generator.random(len(frame)))

    return Policy(
        name="random",
        urgency=urgency,
        needs=frozenset(),
        goal="control experiment: no information at all",
        steady=False,
    )
