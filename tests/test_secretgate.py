"""The secret gate finds a secret that a test prints or logs, in every form in which it travels, and no other text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from tests import secretgate

ROOT = Path(__file__).resolve().parent.parent

CASES = """
import logging, os
from tests import secretgate

secretgate.note("s3cret-of/the+gate", "short")

def test_printed():
    print("it is s3cret-of/the+gate")

def test_printed_by_a_child():
    os.system("echo s3cret-of%2Fthe%2Bgate >&2")

def test_logged():
    logging.getLogger("moorings").warning("%s", "s3cret-of/the+gate")

def test_clean():
    print("short, and what is no secret")
"""
REPORTER = """
import json
pytest_plugins = ("tests.secretgate",)
outcomes = {}

def pytest_runtest_logreport(report):
    if report.when == "teardown":
        outcomes[report.nodeid.partition("::")[2]] = [report.outcome, report.longreprtext]

def pytest_sessionfinish(session):
    with open(session.config.rootpath / "outcomes.json", "w") as file:
        json.dump(outcomes, file)
"""


def test_what_is_printed_or_logged_is_searched(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "conftest.py").write_text(REPORTER)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, env=environ)
    outcomes = json.loads((tmp_path / "outcomes.json").read_text()) if done.returncode == 1 else {}
    assert {name: outcome for name, (outcome, _) in outcomes.items()} == {
        "test_printed": "failed",
        "test_printed_by_a_child": "failed",
        "test_logged": "failed",
        "test_clean": "passed",
    }, done.stdout + done.stderr
    assert all("s3cret-of/the+gate" not in text for _, text in outcomes.values())
    assert "log call: s3cret-of/the+…" in outcomes["test_logged"][1]


def test_every_form_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secretgate, "_passed", deque(["s3cret+of/the=machine%&ü"]))
    for form in secretgate.spelt("s3cret+of/the=machine%&ü"):
        assert secretgate.seen_in(f"x {form} y"), form
    assert not secretgate.seen_in("s3cret+of/another")
