"""The examples of docs/topics/testing.md are tests, and pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "topics" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: re.findall(r"def (test_\w+)", code)[0])
def test_the_example_passes(code: str) -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("test_")]:
        test()
