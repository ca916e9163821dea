"""Where ranks compare their calls: through memory of one host, or through gloo."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import weakref

import pytest

distributed = pytest.importorskip("torch.distributed")

import torch  # noqa: E402

import statescan.distributed  # noqa: E402
from statescan.distributed import _board as boards  # noqa: E402
from statescan.distributed._slices import gather_rows  # noqa: E402

LARGEST = (1 << 63) - 1


@pytest.fixture
def memories():
    """The board of several ranks, all of them of this process."""

    def made(processes, **options):
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), 1 << 12)
            return [boards._Memory(file.fileno(), rank, processes, **options) for rank in range(len(processes))]

    return made


def test_everyone_has_the_numbers_of_every_turn(memories):
    ranks, turns = 3, 400
    found = [[] for _ in range(ranks)]

    def work(rank, memory):
        for turn in range(turns):
            memory.tell([LARGEST - turn, rank, turn % 2])
            found[rank].append(memory.everyone())

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(memories([os.getpid()] * ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[n for rank in range(ranks) for n in (LARGEST - turn, rank, turn % 2)] for turn in range(turns)]
    assert found == [expected] * ranks


def test_a_place_that_is_being_written_is_not_read(memories):
    first, second = memories([os.getpid()] * 2)
    first.tell([1, 2, 3])
    second.tell([4, 5, 6])
    assert first._read(1) == [4, 5, 6]
    for at in range(boards._PLACE):
        start = first._at(1).start + at
        kept = first.places[start]
        first.places[start] = kept + 1
        assert first._read(1) is None
        first.places[start] = kept


def test_nobody_waits_for_a_process_that_has_ended(memories, monkeypatch):
    monkeypatch.setattr(boards, "_LOOK", 0.02)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    first, _ = memories([os.getpid(), child.pid])
    first.tell([1, 2, 3])
    with pytest.raises(RuntimeError, match="the process of rank 1 has ended"):
        first.everyone()


def test_a_wait_ends(memories, monkeypatch):
    monkeypatch.setattr(boards, "_LOOK", 0.02)
    first, _ = memories([os.getpid()] * 2, longest=0.1)
    first.tell([1, 2, 3])
    with pytest.raises(RuntimeError, match="rank 1 has not made this call for"):
        first.everyone()


@pytest.mark.parametrize("folder", [boards._FOLDER, "/no/such/folder"])
def test_a_context_does_not_keep_its_group(folder, monkeypatch, tmp_path):
    """What is destroyed is gone, with its threads, though a context is held; another group of that name has another context."""
    monkeypatch.setattr(boards, "_FOLDER", folder)

    def threads():
        names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
        return sum(name.startswith("gloo") for name in names)

    a, before, contexts = torch.full((1, 5), 0.5, requires_grad=True), threads(), []
    for turn in range(2):
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store{turn}", rank=0, world_size=1)
        group = weakref.ref(distributed.group.WORLD)
        context = statescan.distributed.context()
        contexts.append(context)
        h, _ = statescan.linear_scan(a, a, context=context)
        h.sum().backward()
        assert threads() > before
        distributed.destroy_process_group()
        assert group() is None and threads() == before
        with pytest.raises(RuntimeError, match="the process group of this context was destroyed"):
            statescan.linear_scan(a, a, context=context)
    assert contexts[0] is not contexts[1]


@pytest.mark.parametrize("folder", [boards._FOLDER, "/no/such/folder"])
def test_boards_of_a_group(folder, monkeypatch, tmp_path):
    """Memory where it can be had, gloo elsewhere, and no file is left."""
    paths, mkstemp = [], tempfile.mkstemp

    def recorded(**options):
        file, path = mkstemp(**options)
        paths.append(path)
        return file, path

    monkeypatch.setattr(boards, "_FOLDER", folder)
    monkeypatch.setattr(tempfile, "mkstemp", recorded)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        board = boards.board_of(distributed.group.WORLD, gather_rows)
        assert isinstance(board, boards._Memory if os.path.isdir(folder) else boards._Gloo)
        for numbers in ([1, LARGEST, 0], [0, 0, 1]):
            board.tell(numbers)
            assert board.everyone() == numbers
    finally:
        distributed.destroy_process_group()
    assert len(paths) == os.path.isdir(folder) and not any(map(os.path.exists, paths))
