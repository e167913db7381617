"""The matrix of what runs where, and the problems that it is tried by."""

import dataclasses
import json

import octofold
import pytest
from octofold._library import library
from octofold._probes import PROBES

torch = pytest.importorskip("torch")


def test_rows_are_all_operations_with_every_granularity():
    rows = octofold.capabilities(probe=False).rows
    named = {row.operation for row in rows}
    assert named == set(library.operations_on(9, 0))
    products = {row.granularities for row in rows if row.operation == "products"}
    assert len(products) == 16
    assert len({(row.operation, row.granularities) for row in rows}) == len(rows)


def test_cells_are_what_the_table_says():
    matrix = octofold.capabilities(probe=False)
    rows = {(row.operation, row.granularities): row.architectures for row in matrix.rows}
    dense = rows["products", "1x128 × 128x128"]
    assert [dense[a].how for a in ("7.5", "8.6", "8.9", "9.0", "10.0", "12.0")] == [
        *("weight-only", "weight-only", "native", "native", "weight-only", "native"),
    ]
    assert dense["8.6"].why_not == "expected a GPU of compute capability 8.9, 9.0 or 12.x, got 8.6"
    assert rows["grouped products", "tensor × tensor"]["8.9"].how == "cast"
    assert {support.how for support in rows["casts", "tensor"].values()} == {"kernels"}
    for row in matrix.rows:
        for architecture, support in row.architectures.items():
            table = library.operations_on(*map(int, architecture.split(".")))[row.operation]
            assert (support.why_not == "") == bool(table["available"])
            assert support.why_not == str(table["detail"])
            assert support.how in matrix.meanings
    assert {s["available"] for s in library.operations_on(7, 0).values()} == {False}


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: f"{p.operation}, {p.granularities}")
def test_problems_are_what_the_cpu_computes(probe):
    result = probe.run(lambda operand: operand)
    assert torch.isfinite(result).all()
    assert result.double().norm() > 0


def test_without_a_gpu_it_says_what_would_work():
    matrix = octofold.capabilities()
    if matrix.gpus:
        pytest.skip("there is a GPU")
    assert matrix.untried == "there is no GPU here"
    assert all(row.tried == {} for row in matrix.rows)
    assert "weight-only" in repr(matrix)
    document = json.loads(json.dumps(dataclasses.asdict(matrix)))
    assert document["rows"][0]["architectures"]["8.0"]["how"] == "weight-only"
