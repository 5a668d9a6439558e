"""The order of a machine's line, and the decision about one job in it. Pure: tickets in, a decision out.

    order      priority; then every user's first waiting job before anyone's second; then arrival
    turn       a user whose job was granted goes behind the users that wait: its next job counts from that moment
    backfill   a job that cannot start keeps all free devices that it could use; a later job may start on the others
    machines   a job may wait in the lines of several machines; its place is by the same numbers in all of them

A later job never takes a device that one before it could use, however soon it would end: a running job may end at any
moment before its `max_run`, and the job before would then start. So nobody is delayed.

Two jobs that each wait for the other on another machine would wait for ever. That cannot happen where all lines have
the jobs in one order: the first of all jobs is then the first wherever it waits, and gets what becomes free there. The
order needs the number of a user's job and the time of the user's last grant, which differ between machines. So a ticket
notes the worst of its machines (`Ticket.number`, `Ticket.turn`), and each line orders by the worse of the note and its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from herringbone.slots.devices import Devices, is_share
from herringbone.slots.ticket import Ticket, Wants
from herringbone_contract.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Granted:
    """The job may start on these devices."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The job waits at this place, 1 for the first.

    `holders` have devices that it could use. `ahead` are the jobs before it in the line. `foreign` maps GPUs that it
    could use to processes outside of Herringbone. `stopped` is a job before it whose waiter somebody has stopped.
    """

    place: int
    holders: tuple[Ticket, ...] = ()
    ahead: tuple[Ticket, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()
    stopped: Ticket | None = None


def in_order(tickets: Sequence[Ticket], turns: Mapping[int, float]) -> list[Ticket]:
    """Return the waiting jobs in their order; `turns` has the time of each user's last grant, by uid."""
    keys: dict[str, tuple[int, int, float, float, str]] = {}
    for ticket, _, (number, turn) in _numbered(tickets, turns):
        # By the job before the ticket: a user may have another uid, in the ticket's name, on another machine.
        name = ticket.name.partition(".")[2]
        keys[ticket.name] = (-ticket.priority, number, max(ticket.arrival, turn), ticket.arrival, name)
    return sorted((ticket for ticket in tickets if ticket.waits), key=lambda ticket: keys[ticket.name])


def own_numbers(tickets: Sequence[Ticket], turns: Mapping[int, float], name: str) -> tuple[int, float]:
    """Return what this line alone says of a waiting job: its number among its user's jobs, and the user's last grant.

    >>> mine = Ticket(name="1.a.0123456789ab", job="a", user="ann", arrival=1.0, wants=Wants(gpus=1))
    >>> own_numbers([mine], {1: 7.0}, "1.a.0123456789ab")
    (0, 7.0)
    """
    for ticket, own, _ in _numbered(tickets, turns):
        if ticket.name == name:
            return own
    return 0, 0.0


def _numbered(
    tickets: Sequence[Ticket], turns: Mapping[int, float]
) -> Iterator[tuple[Ticket, tuple[int, float], tuple[int, float]]]:
    """Yield the waiting jobs by arrival, each with number and turn: as this line has them, and with the ticket's note.

    The number is that among the jobs of its user and priority, from 0. No job has less than the one before it: notes
    are renewed at different times, and an old one must not put a job behind a later one of its user.
    """
    groups: dict[tuple[int, int], tuple[int, int, float]] = {}
    for ticket in sorted((ticket for ticket in tickets if ticket.waits), key=lambda one: (one.arrival, one.name)):
        group = (ticket.uid, ticket.priority)
        count, least, turn = groups.get(group, (0, 0, turns.get(ticket.uid, 0.0)))
        own = (max(count, least), turn)
        noted = (max(own[0], ticket.number), max(turn, ticket.turn))
        groups[group] = (count + 1, *noted)
        yield ticket, own, noted


def can_ever_start(wants: Wants, devices: Devices) -> bool:
    """Report whether the machine has what a job wants, once all of it is free."""
    return len(_usable(wants, devices.gpus)) >= wants.gpus and wants.shares <= devices.shares


def shown_shares(wants: Wants) -> str:
    """Return the CPU shares that a job wants, in words."""
    return f"{wants.shares} CPU share{'s' * (wants.shares != 1)}"


def too_much(wants: Wants, gpus: int, shares: int) -> str:
    """Return the refusal of a job that wants more than there is.

    >>> too_much(Wants(gpus=4), 2, 0)
    'gpus: the job needs 4 GPUs, and this machine has 2; ask for fewer, or use fewer hosts'
    """
    if wants.shares > shares:
        return f"instance_count: the job needs {shown_shares(wants)}, and this machine has {shares}; use fewer hosts"
    return (
        f"gpus: the job needs {wants.gpus} GPUs, and this machine has {len(wants.among) or gpus}"
        f"{' for it (CUDA_VISIBLE_DEVICES)' * bool(wants.among)}; ask for fewer, or use fewer hosts"
    )


def decide(tickets: Sequence[Ticket], devices: Devices, turns: Mapping[int, float], name: str) -> Granted | Waiting:
    """Return what happens to the waiting job whose ticket has this name.

    >>> mine = Ticket(name="1.a.0", job="a", user="ann", arrival=1.0, wants=Wants(gpus=1))
    >>> decide([mine], Devices(gpus=("GPU-0", "GPU-1")), {}, "1.a.0")
    Granted(devices=('GPU-0',))

    `tickets` are those of living processes. Raises `LaunchError` where this ticket is not among them.
    """
    taken = {device for ticket in tickets for device in ticket.granted or ()}
    free = [device for device in devices.all if device not in taken]
    ahead: list[Ticket] = []
    for ticket in in_order(tickets, turns):
        foreign = {} if ticket.wants.beside_foreign else devices.foreign
        unused = [device for device in free if device not in foreign]
        chosen = _choose(ticket.wants, unused)
        if ticket.name == name:
            if chosen is not None:
                return Granted(chosen)
            useful = _usable(ticket.wants, devices.gpus) if ticket.wants.gpus else ()
            in_use = tuple((gpu, who) for gpu, who in foreign.items() if gpu in useful)
            return Waiting(len(ahead) + 1, _holders(ticket.wants, tickets), tuple(ahead), in_use)
        ahead.append(ticket)
        # A job that the machine can never serve must not keep the others waiting.
        if not can_ever_start(ticket.wants, devices):
            continue
        kept = _kept(ticket.wants, unused) if chosen is None else set(chosen)
        free = [device for device in free if device not in kept]
    raise LaunchError(f"the ticket {name} is not in the line any more: somebody has removed its files; submit again")


def places(tickets: Sequence[Ticket], turns: Mapping[int, float]) -> Iterator[tuple[Ticket, Waiting]]:
    """Yield each waiting job in the order of the line, with what can be said of its place without a look at devices."""
    waiting, holders = in_order(tickets, turns), dict[Wants, tuple[Ticket, ...]]()
    granted = [ticket for ticket in tickets if not ticket.waits]
    for number, ticket in enumerate(waiting, 1):
        # A line may have a thousand jobs, and most of them want the same.
        if ticket.wants not in holders:
            holders[ticket.wants] = _holders(ticket.wants, granted)
        # The one before is enough for a text.
        yield ticket, Waiting(number, holders[ticket.wants], tuple(waiting[max(0, number - 2) : number - 1]))


def line_text(waiting: Waiting, note: str = "") -> str:
    """Return a place in words; `note` is the one of the ticket.

    >>> running = Ticket(name="2.b.0", job="b", user="bob", arrival=1.0, wants=Wants(gpus=1), granted=("GPU-0",))
    >>> line_text(Waiting(2, holders=(running,)))
    '2nd in line, waits for b (bob)'
    """
    names = [f"{ticket.job} ({ticket.user})" for ticket in waiting.holders or waiting.ahead]
    names += [note] if note and not names else []
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    whom = f", waits for {', '.join(names[:2])}{more}" if names else ""
    stopped = ""
    if (before := waiting.stopped) is not None:
        pid = before.waiter.partition("@")[0]
        stopped = (
            f"; {before.job} ({before.user}) before it stands still: somebody has stopped the process that holds its "
            f"place; `kill -CONT {pid}` lets it go on"
        )
    return f"{_ordinal(waiting.place)} in line{whom}{stopped}"


def rank_of(wants: Wants, waiting: Waiting) -> int:
    """Return a job's place among those that wait for the same devices, 1 for the first.

    >>> mine, other = Wants(gpus=1, among=("GPU-3",)), Ticket(job="b", user="bob", arrival=1.0, wants=Wants(gpus=2))
    >>> rank_of(mine, Waiting(2, ahead=(other,))), rank_of(other.wants, Waiting(2, ahead=(other,)))
    (1, 2)
    """
    return 1 + sum(_kind(ticket.wants) == _kind(wants) for ticket in waiting.ahead)


def first_ones(line: Sequence[Ticket], count: int) -> list[Ticket]:
    """Return the first `count` jobs of a line that wait for the same devices, of each such group.

    A job that cannot start keeps all free devices that it could use, so the ones behind it need others.
    """
    seen: dict[tuple[object, ...], int] = {}
    first = []
    for ticket in line:
        kind = _kind(ticket.wants)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= count:
            first.append(ticket)
    return first


def _kind(wants: Wants) -> tuple[object, ...]:
    return wants.gpus > 0, wants.shares > 0, wants.among, wants.beside_foreign


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _usable(wants: Wants, gpus: Sequence[str]) -> list[str]:
    return [gpu for gpu in gpus if not is_share(gpu) and (not wants.among or gpu in wants.among)]


def _choose(wants: Wants, free: Sequence[str]) -> tuple[str, ...] | None:
    gpus, shares = _usable(wants, free), [device for device in free if is_share(device)]
    if len(gpus) < wants.gpus or len(shares) < wants.shares:
        return None
    return (*gpus[: wants.gpus], *shares[: wants.shares])


def _kept(wants: Wants, free: Sequence[str]) -> set[str]:
    """Return the free devices that a job keeps while it waits for the rest of what it wants."""
    shares = [device for device in free if is_share(device)]
    return {*_usable(wants, free)[: wants.gpus], *shares[: wants.shares]}


def _holders(wants: Wants, tickets: Sequence[Ticket]) -> tuple[Ticket, ...]:
    """Return the jobs with devices that a job could use, the one that has them longest first."""

    def is_useful(device: str) -> bool:
        return wants.shares > 0 if is_share(device) else wants.gpus > 0 and bool(_usable(wants, [device]))

    holders = [ticket for ticket in tickets if any(map(is_useful, ticket.granted or ()))]
    return tuple(sorted(holders, key=lambda ticket: (ticket.granted_at or 0.0, ticket.name)))


def foreign_text(waiting: Waiting) -> str:
    """Return the processes outside of Herringbone for which a job waits, in words; empty without any.

    >>> foreign_text(Waiting(1, foreign=(("GPU-0a", "process 4711"),)))
    'process 4711 on GPU-0a, outside Herringbone'
    """
    return "; ".join(f"{who} on {gpu}, outside Herringbone" for gpu, who in waiting.foreign[:2])
