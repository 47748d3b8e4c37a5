"""Who decides in place of a section's own policy."""

from dataclasses import replace

from sched_ctl.adapt.guard import Guard
from sched_ctl.adapt.race import opened
from sched_ctl.config.settings import Section, Switch
from sched_ctl.controller.instead import Instead
from sched_ctl.controller.trial import Trial

SECTION = Section(name="main", policy="auto")
SWITCHES = (
    Switch(policy="qs", metric="pressure", above=0.5),
    Switch(policy="fcfs", metric="pressure", above=0.1),
)


def racing(turn: int) -> Instead:
    race = replace(opened(("balanced", "hr")), turn=turn, begun=True)
    return Instead(trial=Trial(race, "balanced", 1.0))


def test_nobody_does_by_default() -> None:
    alone = Instead()
    assert alone.acting(SECTION) is SECTION
    assert (alone.own, alone.looking, alone.calm, alone.lifts, alone.compares) == (
        *(False, False),
        *(True, True, False),
    )
    assert alone.why(auto=True) is None


def test_a_race_has_each_its_turn_and_then_nothing_is_calm() -> None:
    os, first, other = (racing(turn) for turn in range(3))
    assert os.own and not first.own and not other.own
    assert first.acting(SECTION) is SECTION and other.acting(SECTION).policy == "hr"
    assert os.looking and other.looking and other.compares and not other.calm
    assert os.phase == other.phase == "a phase of a race" and Instead().phase is None
    assert other.why(auto=True) == other.phase, "it is not what auto would take"
    assert os.why(auto=True) is None, "no policy is in force"
    assert os.trial is not None
    os.trial.race = replace(os.trial.race, begun=False, kept=0)
    assert os.own and os.phase == "until a race finds better"
    os.trial.left = "goes by no guess"
    assert os.phase == "until a race finds better: auto goes by no guess"
    os.trial.race = replace(os.trial.race, races=1)
    assert os.phase == "a race found none better"


def test_a_guard_looks_at_the_system_s_own_and_rests_once_all_harms() -> None:
    guarded = Instead(Guard(60, 6))
    assert guarded.compares and not (guarded.own or guarded.looking or guarded.calm)
    assert guarded.guard is not None
    guarded.guard.own = True
    assert guarded.own and guarded.looking
    assert guarded.phase == "a phase of the guard"
    guarded.give_up()
    assert guarded.phase == "all else did harm"
    assert guarded.own and not guarded.looking and guarded.guard is None


def test_what_is_found_at_a_users_engines_is_for_them_alone() -> None:
    for whose, others in (("", True), ("4242", False)):
        rests = Instead(whose=whose, resting=True, stepped_back=("harm",))
        assert (rests.own_in("4242"), rests.own_in("1"), rests.own_in("")) == (True, others, others)
        assert rests.turns_to("") == rests.turns_to("1") == (not others)
    assert Instead(whose="1").turns_to("") and not Instead(whose="1").turns_to("1")


def test_pressure_is_the_machines_whoever_is_there() -> None:
    found = Instead(whose="4242")
    for switch, others in (
        (SWITCHES[0], True),
        (Switch(policy="qs", metric="queue_size", above=1.0), False),
    ):
        [watch] = found.watch([switch])
        watch.on = True
        assert found.turn() and found.decides_in("4242")
        assert found.decides_in("") == found.decides_in("1") == others


def test_the_first_switch_that_is_on_decides_before_a_race() -> None:
    found = racing(2)
    first, second = found.watch(SWITCHES)
    assert not found.turn() and found.acting(SECTION).policy == "hr"
    second.on = True
    assert found.turn() and not found.turn()
    assert found.acting(SECTION).policy == "fcfs" and "above 0.1" in str(found.why(auto=False))
    first.on = True
    assert found.turn() and found.acting(SECTION).policy == "qs"
    assert found.watch(SWITCHES) == (first, second)
    first.on = second.on = False
    assert found.turn() and found.switched is None
    [anew] = found.watch(SWITCHES[:1])
    assert anew is not first and found.watches == (anew,)
