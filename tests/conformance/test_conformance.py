"""Every client scenario of the MCP conformance suite, alone; and all of them at once.

What is demanded stands in ``run.py``, what the client does in ``client.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.run import ALONE, RUNS, SCENARIOS, alone, ours, together

pytestmark = [pytest.mark.real, pytest.mark.conformance]


@pytest.mark.parametrize(("scenario", "run"), ALONE, ids=[f"{name}-{run}" for name, run in ALONE])
def test_alone(scenario: str, run: str, tmp_path: Path) -> None:
    outcome = alone(scenario, run, ours(), tmp_path)
    assert not outcome.unmet(), "\n".join([*outcome.unmet(), outcome.stderr])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", RUNS)
def test_all_at_once(run: str, tmp_path: Path) -> None:
    outcomes, _ = together(run, ours(), tmp_path)
    assert set(outcomes) == {name for name, runs in SCENARIOS.items() if run in runs}
    unmet = {name: (outcome.unmet(), outcome.stderr) for name, outcome in outcomes.items() if outcome.unmet()}
    assert not unmet, unmet
