import pytest

from tests.python.distributed import boundary_checks


@pytest.mark.parametrize(("shape", "dim"), [((512,), 0), ((2, 512), 1), ((20,), 0)])
@pytest.mark.parametrize("recipe", boundary_checks.STATELESS)
def test_column_parallel(processes, recipe, shape, dim):
    processes.run(boundary_checks.column_parallel, recipe, shape, dim)


@pytest.mark.parametrize(("shape", "dim"), [((512,), 0), ((2, 512), 1), ((20,), 0)])
@pytest.mark.parametrize("recipe", boundary_checks.STATELESS)
def test_row_parallel(processes, recipe, shape, dim):
    processes.run(boundary_checks.row_parallel, recipe, shape, dim)


@pytest.mark.slow
def test_largest_magnitudes_compile(two_processes):
    two_processes.run(boundary_checks.largest_compiled)
