"""A board on which ranks compare their calls: numbers of every rank, before anything is exchanged on devices.

Ranks of one host have a file in memory that all of them map. What takes gloo most of a millisecond takes some microseconds there.
Elsewhere, and where no such file can be made, it is a group of gloo.
"""

import contextlib
import mmap
import os
import socket
import tempfile
import time
import weakref

import torch
from torch import distributed

# files in this folder are memory
_FOLDER = "/dev/shm"
# a place has the turn, the numbers and a check of both
_NUMBERS = 3
_PLACE = _NUMBERS + 2
# seconds without a pause, between two looks at whether the others are alive, and of a wait in a group that does not tell its own
_BUSY, _LOOK, _LONGEST = 0.01, 1.0, 1800.0


def there(group):
    """The object of a weak reference to a process group: a group that something holds keeps its threads, destroyed or not."""
    found = group()
    if found is None:
        raise RuntimeError("statescan.distributed: the process group of this context was destroyed")
    return found


def _check(turn, numbers):
    """Tells a place that is being written from one that is written."""
    return hash((turn, *numbers))


def _ended(process):
    """Whether a process of this host is there no more."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class _Memory:
    """Two places for each rank, of odd and of even turns: whoever writes one has read those of the turn before, so that all ranks
    have read what stood there."""

    def __init__(self, file, rank, processes, longest=_LONGEST):
        self.memory = mmap.mmap(file, 2 * len(processes) * _PLACE * 8)
        self.places = memoryview(self.memory).cast("q")
        self.rank, self.processes, self.longest, self.turn = rank, processes, longest, 0

    def _at(self, rank):
        start = (self.turn % 2 * len(self.processes) + rank) * _PLACE
        return slice(start, start + _PLACE)

    def tell(self, numbers):
        self.turn += 1
        place, last = self.places[self._at(self.rank)], _PLACE - 1
        place[last] = _check(self.turn, numbers)
        for at, number in enumerate(numbers):
            place[1 + at] = number
        place[0] = self.turn

    def everyone(self):
        return [number for rank in range(len(self.processes)) for number in self._wait(rank)]

    def _read(self, rank):
        turn, *numbers, check = self.places[self._at(rank)].tolist()
        return numbers if turn == self.turn and check == _check(turn, numbers) else None

    def _wait(self, rank):
        numbers = self._read(rank)
        if numbers is None:
            start = look = time.monotonic()
            while (numbers := self._read(rank)) is None:
                now = time.monotonic()
                if now - start < _BUSY:
                    os.sched_yield()
                    continue
                if now - look > _LOOK:
                    look = now
                    self._is_alive(rank, now - start)
                time.sleep(5e-5)
        return numbers

    def _is_alive(self, rank, waited):
        # it may have told its numbers and ended since
        if _ended(self.processes[rank]) and self._read(rank) is None:
            raise RuntimeError(f"statescan.distributed: the process of rank {rank} has ended")
        if waited > self.longest:
            raise RuntimeError(f"statescan.distributed: rank {rank} has not made this call for {self.longest:g} seconds")


class _Gloo:
    """A board through a group of gloo."""

    def __init__(self, group, gather):
        self.group, self.gather, self.ranks = weakref.ref(group), gather, distributed.get_world_size(group)

    def tell(self, numbers):
        self.mine = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self.all = self.mine.new_empty(self.ranks * _NUMBERS)
        self.work = self.gather(self.all, self.mine, there(self.group))

    def everyone(self):
        # it holds threads of the group
        work, self.work = self.work, None
        work.wait()
        return self.all.tolist()


def _open(path):
    """The number of a file, or None."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR)


def _longest(group):
    """Seconds that a wait in a group of gloo may take."""
    try:
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    except AttributeError:
        return _LONGEST


def _everywhere(group, value):
    found = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, value, group=group)
    return found


def board_of(group, gather):
    """A board of the ranks of a group of gloo, all of which call this. `gather` exchanges tensors of equal size."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    file = path = None
    if rank == 0:
        with contextlib.suppress(OSError):
            file, path = tempfile.mkstemp(prefix="statescan-", dir=_FOLDER)
            os.ftruncate(file, 2 * ranks * _PLACE * 8)
    # a file of that name on another host would be another one
    told = _everywhere(group, (socket.gethostname(), os.getpid(), path))
    hosts, processes, paths = zip(*told)
    if rank != 0 and paths[0] is not None and len(set(hosts)) == 1:
        file = _open(paths[0])
    # processes that this one cannot see, as in another container, could not be told from those that have ended
    there = all(_everywhere(group, file is not None and not any(map(_ended, processes))))
    try:
        return _Memory(file, rank, processes, _longest(group)) if there else _Gloo(group, gather)
    finally:
        if file is not None:
            os.close(file)
        if path is not None:
            os.unlink(path)
