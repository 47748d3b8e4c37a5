"""Which rules run a race, with whom, and on which engines; see `trial`."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sched_ctl.adapt.effect import Effect
from sched_ctl.adapt.race import OS, opened
from sched_ctl.config.settings import Prior
from sched_ctl.controller.claims import Claims
from sched_ctl.controller.instead import Instead
from sched_ctl.controller.rule import Rule, automatic, why_left
from sched_ctl.controller.trial import AUTO, Trial, candidates
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON
from sched_ctl.errors import UserError
from sched_ctl.metrics.window import Window
from sched_ctl.model.patterns import engine_fits, fits, names_of
from sched_ctl.model.targets import target_of

__all__ = ["compared", "enter", "guarded", "latencies", "look", "whose"]

MOST_PAST = 8  # sets of queries whose races are remembered


def enter(
    rule: Rule,
    engines: Mapping[str, Engine],
    claims: Claims,
    phase_s: float,
    priors: Sequence[Prior] = (),
) -> bool:
    """Let the policy of a rule be found by a race, if it is "auto"; another one if others suit now.

    phase_s: 0 = no race. priors: those for this kind of machine. Shares and switches are the user's
    word, which no phase of the system's own may take out of force. Returns whether that makes it
    another policy.
    """
    before = rule.instead.trial
    asked = rule.section.switch or rule.section.shares
    if not phase_s or rule.section.policy != AUTO or asked:
        rule.instead.trial, rule.instead.past = None, {}
        if before is not None:
            rule.enforce_by(rule.backend)
        return before is not None
    ruled = [
        engine
        for engine in engines.values()
        if engine.snapshot is not None and claims.of(rule, engine.name, engine.snapshot.topology)
    ]
    whose = _whose(engine.domain for engine in ruled) or COMMON
    if not rule.queries.get(whose, 0):
        return False  # nobody's word counts, or an engine starts again and finds its race as it was
    mine = [engine for engine in ruled if engine.domain == whose]
    made = _made(rule, mine, claims, priors, whose)
    if made is None:
        return False
    made.phase_s = phase_s
    if not _turns_to(rule.instead, made):
        return False
    rule.enforce_by(rule.backend)
    return True


def _made(
    rule: Rule, mine: Sequence[Engine], claims: Claims, priors: Sequence[Prior], whose: str
) -> Trial | None:
    """A race over these engines, of the orders that suit; None where none does."""
    queries = rule.queries[whose]
    backend = rule.backend_of(whose)
    first = automatic(backend, bool(rule.section.target))[0]
    suited = candidates(first, backend, queries)
    expected = _expected(rule, mine, claims, priors)
    if expected and expected != OS:
        suited = (expected, *(name for name in suited if name != expected))
    names = tuple(name for name in suited if name == first or _can(rule, name, mine, whose))
    if not names:
        return None
    # What leaves a single query alone is not among them: until somebody waits, it stays so.
    # Nor is anything where "auto" would leave an engine alone, unless the user said what is wanted.
    reasons = {why_left(one.snapshot.topology, queries) for one in mine if one.snapshot}
    left = "" if rule.section.target else max(reasons, default="")
    kept = 1 if names[0] in (first, expected) and not left and expected != OS else 0
    told = 1 if names[0] == expected else 0
    race = opened(names, rule.section.objective or "all", kept, told)
    ruled = frozenset(
        (one.name, query)
        for one in mine
        if one.snapshot is not None
        for query in claims.of(rule, one.name, one.snapshot.topology)
    )
    return Trial(race, first, 1.0, left, whose, ruled)


def _turns_to(instead: Instead, made: Trial) -> bool:
    """Whether another race is run from now on: the one that is made, from where it was when the
    same queries ran the last time.

    A query that comes and goes, as one that runs for a minute in five, would else begin it from
    nothing each time, and have each order tried that did harm. Two that are open are one.
    """
    before = instead.trial
    known = instead.past.get((made.terms, made.queries))
    if before is not None:
        same, before.phase_s = before.terms == made.terms, made.phase_s
        if same and before.queries == made.queries:
            return False
        instead.past.pop((before.terms, before.queries), None)
        instead.past[before.terms, before.queries] = before.rested
        for oldest in list(instead.past)[:-MOST_PAST]:
            del instead.past[oldest]
        if same and (known is None or known.mode == before.race.mode == "race"):
            before.queries = made.queries
            return False
    if known is None:  # other queries, of which the same orders were tried
        alike = [race for (terms, _), race in instead.past.items() if terms == made.terms]
        known = alike[-1] if alike else made.race
    made.race, instead.trial = known, made
    return True


def look(
    rule: Rule,
    others: Iterable[Rule],
    engines: Mapping[str, Engine],
    claims: Claims,
    now_s: float,
    pressure: float,
) -> bool:
    """To be called at each pass of a rule. Whether another order is in force from now on.

    Whoever is trying something is alone with it, see `_tries`. pressure: share of the time since
    the pass before in which threads waited for a CPU.
    """
    trial = rule.instead.trial
    if trial is None or rule.instead.switched is not None or rule.instead.resting:
        return False
    if any(_tries(one) for one in others):
        turned = trial.rest()
    else:
        windows = compared(rule, engines)
        turned = trial.look(now_s, windows, pressure, *_counted(rule, engines, claims))
    if turned:
        rule.enforce_by(rule.backend)
        rule.urgent = True
    return turned


def guarded(
    rule: Rule,
    others: Iterable[Rule],
    engines: Mapping[str, Engine],
    claims: Claims,
    now_s: float,
) -> str | None:
    """To be called at each pass of a rule: what its guard finds, in words, if it has one."""
    guard = rule.instead.guard
    if guard is None or rule.instead.trial is not None:
        return None
    alone = not any(_tries(one) for one in others)
    windows = compared(rule, engines)
    return guard.look(now_s, windows, *_counted(rule, engines, claims), alone=alone)


def _tries(rule: Rule) -> bool:
    """Whether it is looked at what comes of something else: two that try at once would take each
    other for noise. A guard whose rule makes no passes tries nothing.
    """
    trial, guard = rule.instead.trial, rule.instead.guard
    if trial is not None:
        return trial.trying
    return guard is not None and guard.trying and rule.problem is None and bool(rule.windows)


def _counted(
    rule: Rule, engines: Mapping[str, Engine], claims: Claims
) -> tuple[Callable[[Effect], bool], Callable[[], Mapping[str, Mapping[str, float]]]]:
    """Which effects tell of a rule, and the targets of its queries, by engine."""

    def targets() -> Mapping[str, Mapping[str, float]]:
        known = rule.windows.keys() & engines.keys()
        return {name: latencies(engines[name], [rule], claims) for name in known}

    return functools.partial(_is_ruled, rule, engines, claims), targets


def latencies(engine: Engine, rules: Sequence[Rule], claims: Claims) -> dict[str, float]:
    """Query -> the target that it is to keep, s."""
    found: dict[str, float] = {}
    if engine.snapshot is None:
        return found
    for rule in rules:
        if rule.section.target:
            for query in claims.of(rule, engine.name, engine.snapshot.topology):
                target = target_of(rule.section.target, *names_of(engine.name, query))
                if target is not None:
                    found[query] = target.latency_s
    return found


def whose(rule: Rule, engines: Mapping[str, Engine]) -> str | None:
    """The domain whose word counts for a rule; None: nobody's, as of several users."""
    return _whose(engines[name].domain for name in rule.windows if name in engines)


def compared(rule: Rule, engines: Mapping[str, Engine]) -> Mapping[str, Window]:
    """Engines whose word counts: those that are ordered together with root's. Where there are none,
    those of one user; of several nobody's word moves the others. In a race, those whose it is.
    """
    domains = {name: engines[name].domain for name in rule.windows if name in engines}
    trial = rule.instead.trial
    whose = rule.instead.whose if trial is None else trial.whose
    if trial is None and _whose(domains.values()) != whose:
        return {}
    return {name: rule.windows[name] for name, domain in domains.items() if domain == whose}


def _whose(domains: Iterable[str]) -> str | None:
    """The domain whose word counts; None = nobody's."""
    here = set(domains)
    return COMMON if COMMON in here else here.pop() if len(here) == 1 else None


def _expected(
    rule: Rule, engines: Sequence[Engine], claims: Claims, priors: Sequence[Prior]
) -> str:
    """The policy that most of the rule's queries there are to begin with; "" = nobody says."""
    named: Counter[str] = Counter()
    for engine in engines if priors else ():
        assert engine.snapshot is not None
        for query in claims.of(rule, engine.name, engine.snapshot.topology):
            for prior in priors:
                if engine_fits(prior.engines, engine.name) and fits(
                    prior.queries, *names_of(engine.name, query)
                ):
                    named[prior.policy] += 1
                    break
    return max(sorted(named), key=lambda name: named[name], default="")


def _is_ruled(rule: Rule, engines: Mapping[str, Engine], claims: Claims, effect: Effect) -> bool:
    engine = engines.get(effect.engine)
    snapshot = None if engine is None else engine.snapshot
    return snapshot is not None and effect.query in claims.of(
        rule, effect.engine, snapshot.topology
    )


def _can(rule: Rule, name: str, engines: Iterable[Engine], whose: str) -> bool:
    """Whether these engines, of that domain, tell all that a policy needs."""
    instead = replace(rule.instead, trial=Trial(opened((name,)), "", 1.0, whose=whose))
    tried = replace(rule, instead=instead, resolutions={}, variants={})
    try:
        tried.enforce_by(rule.backend)
        for engine in engines:
            if engine.provides is not None:
                tried.resolve(engine)
    except UserError:
        return False
    return True
