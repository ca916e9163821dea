"""What tests of functions of serving engines share: rows of pools, and double precision."""

import pytest
import torch


@pytest.fixture
def in_double_precision():
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def near(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


def index(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


BOUNDS = [0, 5, 5, 6, 13, 15]
READ = [2, 4, 0, 5, 3]  # vLLM's slot 0 is padding
HAS = [True, True, True, False, True]


def rows_of(pool, run, bounds=BOUNDS, read=READ, has=HAS, null=0):
    """What `run` makes of each row of a pool: y of rows that are no padding by their tokens, and the pool after the last ones."""
    expected, ys, states = pool.clone(), {}, []
    for row, (start, stop) in enumerate(zip(bounds, bounds[1:])):
        before = pool[read[row]] if has[row] and read[row] != null else torch.zeros_like(pool[0])
        y, after = run(before, slice(start, stop))
        states.append(after or [before])
        if read[row] != null:
            ys.update(zip(range(start, stop), y))
            expected[read[row]] = states[-1][-1]
    return list(ys), torch.stack(list(ys.values())), expected, states
