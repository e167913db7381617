"""The matrix of what runs where. tests/cpp/plan/capability_test.cpp and
tests/cpp/ops/capabilities_test.cpp hold planners and operations to it."""

import dataclasses
import json

import octofold
import pytest
from octofold import _capabilities

# Rows of operations that are a part of a public function.
SOURCES = ("activated", "activation_gradient", "gathered", "normed")
NAMES = {f"cast_{source}": "cast" for source in SOURCES}
MATRIX = octofold.capabilities()


def forms(row):
    return tuple(row.operands.values())


def how(row, name):
    return row.support[name].how


def test_rows_are_public_functions_with_every_form():
    targets = [target.name for target in MATRIX.targets]
    assert targets[0] == "7.5"
    assert targets[-1] == "cpu"
    for row in MATRIX.rows:
        assert any(
            callable(getattr(place, NAMES.get(row.operation, row.operation), None))
            for place in (octofold, octofold.ops, octofold.ScaledTensor)
        )
        assert list(row.support) == targets
        for support in row.support.values():
            assert support.how in MATRIX.meanings
            if (
                support.how != "CPU"
            ):  # there is no reason on the CPU, and one on a GPU without kernels
                assert (support.why_not == "") == (support.how in ("native", "kernels")), row
    assert len({(row.operation, forms(row)) for row in MATRIX.rows}) == len(MATRIX.rows)
    dense = {forms(row) for row in MATRIX.rows if row.operation == "gemm"}
    assert len(dense) == 20  # 16 pairs, and each b with an a that the product casts


def test_cells_are_what_the_tables_say():
    rows = {(row.operation, forms(row)): row for row in MATRIX.rows}
    dense = rows["gemm", ("1x128", "128x128")]
    assert dense.kind == "products"
    assert [how(dense, a) for a in ("7.5", "8.6", "8.9", "9.0", "10.0", "12.0", "cpu")] == [
        *("weight-only", "weight-only", "native", "native", "weight-only", "native", "CPU"),
    ]
    assert dense.support["8.6"].why_not == (
        "expected a GPU of compute capability 8.9, 9.0 or 12.x, got 8.6"
    )
    grouped = rows["grouped_gemm", ("tensor", "tensor")]
    assert [how(grouped, a) for a in ("8.6", "8.9", "12.0")] == ["cast", "native", "native"]
    assert how(rows["attention", ("bfloat16", "head")], "7.5") == "CPU"
    assert how(rows["attention", ("float16", "head")], "7.5") == "kernels"
    assert how(rows["gated_gemm", ("1x128", "1x128", "1x128")], "9.0") == "none"


def test_lines_of_the_table_are_products_of_sets():
    table = octofold.capabilities().table()
    lines = {(operation, operands): cells for operation, operands, *cells in table[1:]}
    assert lines["gemm", "a scaled × b scaled"][-1] == "CPU"
    assert lines["attention", "q bfloat16 × k, v fp8/tensor/head/128 keys"][0] == "CPU"
    assert lines["convert_dtype", "—"]
    assert lines["gemm_weight_only", "x float16 × w scaled"][0] == "kernels"
    few = "x of up to 16 rows float32/fp8/scaled × w scaled"
    assert lines["gemm_weight_only", few] == ["kernels"] * (len(MATRIX.targets) - 1) + ["CPU"]
    assert len(lines) < len(MATRIX.rows) / 4
    assert all(len(line) == 2 + len(MATRIX.targets) for line in table)


def test_without_a_gpu_it_says_what_would_work():
    if any(target.gpus for target in MATRIX.targets):
        pytest.skip("there is a GPU")
    assert MATRIX.at_hand.startswith("no GPU is at hand")
    assert "weight-only" in repr(MATRIX)
    document = json.loads(json.dumps(dataclasses.asdict(MATRIX)))
    assert document["rows"][0]["support"]["8.0"]["how"] == "kernels"


def test_a_gpu_that_is_here_is_named(monkeypatch):
    """The matrix as on a machine whose GPU is of 8.9."""
    found = dict(_capabilities.library.capabilities().items())
    targets = [dict(target.items()) for target in found["targets"]]
    next(target for target in targets if target["name"] == "8.9")["gpus"] = [0]

    class Library:
        capabilities = staticmethod(lambda: {**found, "targets": targets})

    monkeypatch.setattr(_capabilities, "library", Library)
    head, *lines = octofold.capabilities().table()
    column = head.index("8.9 cuda:0")
    cells = {(line[0], line[1]): line[column] for line in lines}
    assert cells["gemm", "a scaled × b scaled"] == "native"
