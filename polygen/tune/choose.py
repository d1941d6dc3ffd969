"""Chooses a schedule for a program, a device and the sizes to optimise for.

1. Offers come first, in their order: schedules that were measured for this very problem. The first
   one that still fits the program is taken, if its results take the way out that was measured.
2. Otherwise fit each of the device's shipped schedules to the program (a callback decides:
   instruction, layouts and resources are other stages'). Where one turned out to need more
   registers than was thought, those that were thought to have no more to spare are left out too:
   what is left soon compiles.
3. Predict the time of all that fit, and take the fastest; blocks that share the sums of the last
   round have to gain more than predictions are wrong. The origin says what was compared, and why
   schedules with roles were not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.errors import ScheduleError
from polygen.hardware.cost_parameters import cost_parameters
from polygen.hardware.device import Device
from polygen.schedule.load import shipped
from polygen.schedule.model import Launches, Schedule
from polygen.schedule.problem import Fitted, Problem
from polygen.tune.cost import counts, predict_all

DOT_ROWS = 6  # of results; of more than these tensor cores multiply faster than lanes
# Words for operands that no instruction reads as they lie.
TURNED = "; operands are copied first, with their axes in another order"
# And for those that the launch before the kernel makes.
MADE = "; operands that are computed are made first, in a launch before the kernel"


@dataclass(frozen=True, slots=True)
class Offer:
    """A schedule that was measured for the problem, and the words that say so."""

    schedule: Schedule
    origin: str


def choose(
    device: Device,
    problem: Problem,
    fit: Callable[[Schedule], Fitted | str],
    skip: frozenset[str] = frozenset(),
    offers: Sequence[Offer] = (),
    fit_measured: Callable[[Schedule], Fitted | str] | None = None,
) -> tuple[Schedule, str]:
    """An offer, or the shipped schedule predicted fastest; and why.

    Args:
        device: the target.
        problem: sizes to optimise for.
        fit: fits a schedule to the program, or says why it cannot.
        skip: names of schedules that turned out to need more registers than they have.
        offers: schedules measured for this problem, best first.
        fit_measured: fits these, of which it is known that they compile; None: as `fit`.

    Raises:
        ScheduleError: no offer and no shipped schedule fits.
    """
    as_measured = fit_measured or fit
    for offer in offers:
        fitted = as_measured(offer.schedule)
        if offer.schedule.name in skip or not isinstance(fitted, Fitted):
            continue
        if fitted.schedule.epilogue == offer.schedule.epilogue:  # else another way out was measured
            return fitted.schedule, offer.origin
    fitting: list[Fitted] = []
    refused: dict[bool, str] = {}
    short: dict[bool, int] = {}  # registers to spare that were not enough
    for candidate in _weighed(device, problem):
        if not all(map(device.has, _needs(candidate))):
            continue
        found = fit(candidate)
        if isinstance(found, str):
            roles = candidate.specialised
            if not candidate.without_rings or roles not in refused:  # few programs are for lanes
                refused[roles] = found
        elif skip.isdisjoint((candidate.name, found.schedule.name)):  # a fit has other k tiles
            fitting.append(found)
        elif found.spare is not None:
            roles = candidate.specialised
            short[roles] = max(short.get(roles, found.spare), found.spare)
    fitting = [one for one in fitting if not _is_short(one, short)] or fitting
    # Where nothing but elements is folded, others multiply zeros.
    fitting = [one for one in fitting if one.schedule.of_elements] or fitting
    if not fitting:
        raise ScheduleError(
            f"no shipped schedule fits the program on {device}",
            where="schedule = auto",
            why="; ".join(refused.values()),
            nearest="Pass a schedule of your own",
        )
    shared = cost_parameters(device).shared_round
    times = [
        # What takes longer than predicted has to be better by more than that.
        time * shared if one.schedule.cluster.last else time
        for time, one in zip(predict_all(device, fitting, problem), fitting, strict=True)
    ]
    # Of equals, with an epilogue the one that hides it, else the one that copies least.
    preferred = "pingpong" if problem.pointwise else "cooperative"
    ranked = sorted(
        (time, one.schedule.roles.form != preferred, one.schedule.name, place)
        for place, (time, one) in enumerate(zip(times, fitting, strict=True))
    )
    best = fitting[ranked[0][-1]]
    chosen = best.schedule
    rows = (problem.merged if chosen.tile.pixels else problem).m
    origin = (
        f"shipped {chosen.name}, fastest of {len(fitting)} by the cost model for "
        f"{rows}x{problem.n}x{problem.k}: {_run(device, best, problem)}"
    )
    if chosen.tile.pixels:
        origin += f"; tiles of {' x '.join(map(str, chosen.tile.pixels))} pixels"
    if chosen.tile.joined:
        origin += "; k tiles go through all axes that are summed as through one"
    computed = problem.under(chosen).computed
    by_hand = problem.threaded
    if problem.turned[0]:
        origin += TURNED
    if chosen.launch.realign:
        by_hand = problem.uncopied
        origin += "; operands that tensor maps cannot describe are copied first, to whole lines"
    if problem.makes_first(chosen):
        made, computed = computed, (0, 0)
        by_hand = (by_hand[0] - made[0], by_hand[1] - made[1])
        origin += MADE
        problem = problem.behind_making
    if chosen.specialised and sum(by_hand) > sum(problem.computed):
        origin += "; threads fill rings: tensor maps cannot describe all operands"
    if chosen.from_registers:
        origin += "; consumers compute the left operand in their registers"
        computed = (0, computed[1])
    if chosen.cluster.last:
        origin += "; blocks share the sums of the last round's tiles"
    if any(computed):
        origin += "; threads compute operands on their way to shared memory"
    if chosen.specialised and chosen.epilogue.through == "lines":
        origin += "; results are stored line by line: tensor maps cannot describe the epilogue"
    if True in refused and not any(one.schedule.specialised for one in fitting):
        origin += f"; none with roles: {refused[True]}"
    if skip:
        origin += f"; not taken because they spill: {', '.join(sorted(skip))}"
    return chosen, origin


def exchanged(schedule: Schedule) -> Schedule:
    """The same with operands exchanged: few columns are its rows."""
    return replace(schedule, name=f"{schedule.name}_exchanged", exchange=True)


def copied_first(device: Device) -> Launches:
    """How a kernel follows a copy of its operands: as soon as the device lets it."""
    return Launches(realign=True, dependent=device.has("griddepcontrol"))


def _weighed(device: Device, problem: Problem) -> list[Schedule]:
    """The shipped schedules, and where threads would fill rings those with a copy before them.

    Without those whose consumers would compute an operand that is none of theirs, those that
    multiply nothing where something is multiplied, and lanes of more rows than they multiply fast.
    """
    found = [
        one
        for one in shipped(device)
        if (not one.from_registers or problem.under(one).stored_bits[0])
        and (not one.of_elements or problem.zeros)
    ]
    found += [exchanged(one) for one in found if one.by_lanes]
    found = [one for one in found if not one.by_lanes or problem.under(one).m <= DOT_ROWS]
    if problem.turned[0]:
        found = [behind_turning(one, device, problem) for one in found]
    if any(problem.computed):
        found += [
            behind_making(one, device, problem)
            for one in found
            if not (one.from_registers or one.without_rings)
        ]
    if any(problem.copied):
        found += [replace(one, launch=copied_first(device)) for one in found if one.specialised]
    return found


def behind_turning(schedule: Schedule, device: Device, problem: Problem) -> Schedule:
    """A schedule whose kernel begins while operands are copied for it, where it can."""
    return replace(schedule, launch=replace(schedule.launch, dependent=_early(device, problem)))


def behind_making(schedule: Schedule, device: Device, problem: Problem) -> Schedule:
    """A schedule whose computed operands a launch before the kernel makes.

    Behind it they are as they are where nothing is computed. Where rows are in groups blocks read
    the ends of these before anything else, and so wait.
    """
    roles = replace(schedule.roles, computes="before")
    early = schedule.specialised and _early(device, problem)
    return replace(schedule, roles=roles, launch=Launches(dependent=early))


def _early(device: Device, problem: Problem) -> bool:
    """Whether a kernel begins while the launch before it runs, however long it takes: none that
    another follows, of which nothing was measured.
    """
    followed = problem.uneven or any(problem.folds) or any(problem.tallied)
    return device.has("griddepcontrol") and not followed


def _is_short(one: Fitted, short: Mapping[bool, int]) -> bool:
    """Whether a schedule has no more registers to spare than one that spilled."""
    most = short.get(one.schedule.specialised)
    return most is not None and one.spare is not None and one.spare <= most


def _run(device: Device, best: Fitted, problem: Problem) -> str:
    """How the tiles are spread over the multiprocessors, in words."""
    c = counts(device, best, problem)
    if best.schedule.specialised:
        return f"{c.tiles} tiles by {min(c.clusters, c.slots) * c.blocks} persistent blocks"
    waves = -(-c.tiles // (device.multiprocessors * best.resident))
    return (
        f"{c.tiles} tiles in {waves} wave(s) of {best.resident} block(s) "
        f"on {device.multiprocessors} multiprocessors"
    )


def _needs(schedule: Schedule) -> tuple[str, ...]:
    """Device features without which a schedule makes no sense."""
    return ("wgmma", "tma") if schedule.specialised else ()
