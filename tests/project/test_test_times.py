"""scripts/test_times.py sums what tests took."""

import sys

from tests.project.project_support import REPOSITORY, run

SUITE = """<testsuite>
<testcase name="plan.CastTest.Rows" classname="plan.CastTest.Rows" time="1.5"/>
<testcase name="plan.CastTest.Both" classname="plan.CastTest.Both" time="0.25"/>
</testsuite>"""
PYTHON = """<testsuites><testsuite>
<testcase classname="tests.python.nn.test_mlp" name="test_one" time="2.0"/>
<testcase classname="tests.python.nn.test_any_order.TestAnyOrder" name="runTest" time="3.0"/>
<testcase classname="tests.python.test_gemm" name="test_case" time="0.5"/>
</testsuite></testsuites>"""


def test_seconds_are_summed_by_area(tmp_path):
    (tmp_path / "quick.xml").write_text(SUITE)
    (tmp_path / "python.xml").write_text(PYTHON)
    shown = run(sys.executable, REPOSITORY / "scripts" / "test_times.py", tmp_path)
    assert [line.split() for line in shown.splitlines()] == [
        ["area", "tests", "seconds"],
        ["tests/python/nn", "2", "5.0"],
        ["tests/cpp/plan", "(quick)", "2", "1.8"],
        ["tests/python", "1", "0.5"],
    ]
