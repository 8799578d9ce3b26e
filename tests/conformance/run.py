"""Runs the MCP conformance suite against a client, reads its results from the folder it writes, and tells.

    python tests/conformance/run.py            ours and the official SDK's, alone and in suites; writes the docs' table
    python tests/conformance/run.py --check    ours only; ends with 1 if a demand is not met
    python tests/conformance/run.py --only NAME [--run REVISION]      one scenario, with its checks

A suite run of the package does not look at the client's exit code, a WARNING fails, and SKIPPED looks green. So each
scenario is run alone too, its exit code demanded (also where the suite would allow another, as a client that turns a
lie away need not fail), and every kind of check counted. See ``DEMANDS`` and ``EARNED`` for what must come out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
DOCS = ROOT / "docs" / "topics" / "conformance.md"
PART = re.compile(r"(<!-- measured: conformance -->\n)(.*?)(<!-- end -->)", re.DOTALL)

RUNS = ("2025-11-25", "2026-07-28", "bare")
"""Two revisions, and none named: then each scenario takes its own."""
SCENARIO_SECONDS = 60
SUITE_SECONDS = 300
AT_ONCE = 2

BOTH, OLD, NEW, BARE = RUNS, ("2025-11-25", "bare"), ("2026-07-28", "bare"), ("bare",)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "initialize": OLD,
    "tools_call": BOTH,
    "elicitation-sep1034-client-defaults": OLD,
    "sse-retry": OLD,
    "request-metadata": NEW,
    "sep-2322-client-request-state": NEW,
    "http-standard-headers": NEW,
    "http-custom-headers": NEW,
    "http-invalid-tool-headers": NEW,
    "json-schema-ref-no-deref": NEW,
    "json-schema-2020-12-preservation": BOTH,
    "sep-2640-client-no-prefetch": BARE,
    "sep-2640-client-verify-digest": BARE,
    "sep-2640-client-verify-size": BARE,
    "sep-2640-client-verify-frontmatter": BARE,
    **dict.fromkeys(
        [
            *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3"),
            *("auth/basic-cimd", "auth/pre-registration"),
            *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
            *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
            *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post"),
            "auth/token-endpoint-auth-none",
        ],
        BOTH,
    ),
    **dict.fromkeys(
        [
            *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
            *("auth/authorization-server-migration", "auth/iss-supported", "auth/iss-not-advertised"),
            *("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected"),
            *("auth/iss-normalized", "auth/metadata-issuer-mismatch"),
        ],
        NEW,
    ),
    **dict.fromkeys(
        [
            *("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"),
            *("auth/client-credentials-jwt", "auth/client-credentials-basic"),
            *("auth/enterprise-managed-authorization", "auth/dpop", "auth/dpop-nonce", "auth/wif-jwt-bearer"),
        ],
        BARE,
    ),
}
"""Every client scenario, and the runs it belongs to."""
ALONE = [
    (name, run)
    for name, runs in SCENARIOS.items()
    for run in runs
    if run != "bare" or len(runs) == 1 or not name.startswith("auth/")
]
"""What is run alone. With none named, a scenario takes one of the revisions it belongs to: not done twice for the many
of ``auth/``, which the suite with none named runs, too."""
NOT_THEIRS = {
    **{name: "has no skills" for name in SCENARIOS if name.startswith("sep-2640")},
    **{name: "has no DPoP" for name in SCENARIOS if name.startswith("auth/dpop")},
    "auth/wif-jwt-bearer": "has no grant for it",
}
"""What the official SDK does not offer, so that nothing is said of it."""
DEMANDS = {
    "tools_call": 2,
    "elicitation-sep1034-client-defaults": 5,
    "sse-retry": 3,
    "request-metadata": 8,
    "sep-2322-client-request-state": 5,
    "http-standard-headers": 11,
    "http-custom-headers": 18,
    "http-invalid-tool-headers": 12,
    "json-schema-2020-12-preservation": 9,
}
"""So many SUCCESS at least, where it is more than one: some are SKIPPED, or not there, in a client that does less."""
DPOP = (
    "sep-1932-client-token-request-proof",
    "sep-1932-client-dpop-auth-scheme",
    "sep-1932-client-fresh-proof",
)
EARNED = {
    "auth/basic-cimd": ("cimd-client-id-used",),
    "auth/scope-step-up": ("scope-step-up-initial", "scope-step-up-escalation"),
    "auth/scope-retry-limit": ("scope-retry-limit",),
    "auth/offline-access-scope": (
        "sep-2207-client-metadata-grant-types",
        "sep-2207-offline-access-requested",
    ),
    "auth/client-credentials-jwt": ("client-credentials-jwt-verified", "valid-bearer-token"),
    "auth/client-credentials-basic": ("client-credentials-basic-auth", "valid-bearer-token"),
    "auth/enterprise-managed-authorization": (
        *("complete-flow-token-exchange", "complete-flow-jwt-bearer", "valid-bearer-token"),
    ),
    "auth/dpop": DPOP,
    "auth/dpop-nonce": (*DPOP, "sep-1932-client-as-nonce", "sep-1932-client-rs-nonce"),
    # Once for the token, and once for the scopes that are refused.
    "auth/wif-jwt-bearer": ("wif-assertion-verified", "wif-assertion-verified", "valid-bearer-token"),
}
"""Checks that must be SUCCESS, so often, where the count does not tell: of logins, requests and rest there may be more
or fewer."""


@dataclass
class Outcome:
    """One scenario in one run."""

    scenario: str
    run: str
    exit_code: int | None = None
    """The client's; None in a suite, which does not tell."""
    counts: Counter[str] = field(default_factory=Counter)
    earned: Counter[str] = field(default_factory=Counter)
    """Ids of the checks that are SUCCESS."""
    trouble: list[str] = field(default_factory=list)
    """Checks that are neither SUCCESS nor INFO, with what they say."""
    stderr: str = ""

    def unmet(self) -> list[str]:
        """Which demands are not met, as text; empty if all are."""
        found = list(self.trouble)
        if self.exit_code not in (0, None):
            found.append(f"the client ended with {self.exit_code}")
        if self.counts["SUCCESS"] < DEMANDS.get(self.scenario, 1):
            found.append(f"{self.counts['SUCCESS']} SUCCESS, {DEMANDS.get(self.scenario, 1)} demanded")
        missing = Counter(EARNED.get(self.scenario, ())) - self.earned
        found += [f"no SUCCESS of {name}" for name in missing]
        return found

    def cell(self) -> str:
        words = [f"{self.counts['SUCCESS']}"]
        counted = ((kind, self.counts[kind]) for kind in ("FAILURE", "WARNING", "SKIPPED"))
        words += [f"{count} {kind.lower()}" for kind, count in counted if count]
        if self.exit_code:
            words.append(f"exit {self.exit_code}")
        return ", ".join(words)


def installed(name: str) -> list[str]:
    """The command of something that `tools/setup_env.py` installed."""
    index = json.loads((ROOT / ".env" / "servers.json").read_text())
    if name not in index:
        raise SystemExit(f"conformance: {name} is not installed here; run `make setup`")
    command: list[str] = index[name]["command"]
    return command


def ours() -> list[str]:
    return [sys.executable, str(HERE / "client.py")]


def sdks() -> list[str]:
    return [installed("era-2.3.0")[0], str(HERE / "sdk_client.py")]


def suite(arguments: list[str], client: list[str], out: Path, seconds: float) -> tuple[int, str]:
    """The suite, once, to its end: its exit code and what it said."""
    command = [*installed("conformance"), "client", "--command", shlex.join(client), "-o", str(out)]
    command += ["--timeout", str(int(seconds * 1000)), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    # Dozens of clients start at once: each would compile everything for itself.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=seconds + 30, env=env, cwd=out
    )
    return done.returncode, done.stdout + done.stderr


def alone(scenario: str, run: str, client: list[str], folder: Path) -> Outcome:
    """One scenario by itself."""
    out = Path(tempfile.mkdtemp(dir=folder))
    arguments = ["--scenario", scenario, *([] if run == "bare" else ["--spec-version", run, "--force"])]
    code, said = suite(arguments, client, out, SCENARIO_SECONDS)
    outcomes = dict(read(out, run))
    outcome = outcomes.get(scenario) or Outcome(
        scenario, run, trouble=[f"no result; the suite said: {said[-2000:]}"]
    )
    told = re.search(r"Client exited with code (-?\d+)", said)
    outcome.exit_code = int(told[1]) if told else 0
    if "timed out" in said:
        outcome.trouble.append(f"the client had not ended after {SCENARIO_SECONDS} s")
    elif code and not outcome.trouble and not outcome.exit_code:
        outcome.trouble.append(f"the suite ended with {code}: {said[-1000:]}")
    return outcome


def together(run: str, client: list[str], folder: Path) -> tuple[dict[str, Outcome], float]:
    """The whole suite with all its scenarios at once, and its seconds."""
    out = Path(tempfile.mkdtemp(dir=folder))
    began = time.monotonic()
    suite(["--suite", "all", *([] if run == "bare" else ["--spec-version", run])], client, out, SUITE_SECONDS)
    return dict(read(out, run)), time.monotonic() - began


def read(out: Path, run: str) -> Iterator[tuple[str, Outcome]]:
    """What the suite left in its folder: one folder a scenario, with the checks and the client's words."""
    for path in sorted(out.rglob("checks.json")):
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", str(path.parent.relative_to(out)))
        if name not in SCENARIOS:
            continue
        outcome = Outcome(name, run)
        for check in json.loads(path.read_text()):
            outcome.counts[check["status"]] += 1
            if check["status"] == "SUCCESS":
                outcome.earned[check["id"]] += 1
            if check["status"] not in ("SUCCESS", "INFO"):
                why = check.get("errorMessage") or check.get("description", "")
                outcome.trouble.append(f"{check['status']} {check['name']}: {why}")
        stderr = path.with_name("stderr.txt")
        outcome.stderr = stderr.read_text()[-4000:] if stderr.exists() else ""
        yield name, outcome


def all_alone(client: list[str], folder: Path) -> dict[tuple[str, str], Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda pair: alone(*pair, client, folder), ALONE))
    return dict(zip(ALONE, outcomes, strict=True))


# --- telling ----------------------------------------------------------------------------------------------------------


def table(ours: dict[Any, Outcome], sdk: dict[Any, Outcome], times: dict[str, tuple[float, float]]) -> str:
    from moorings import __version__

    lines = [
        f"Moorings {__version__}, official SDK 2.3.0, suite 0.2.0-alpha.12. Checks that succeeded, and others.",
        "",
        "| scenario | run | Moorings | official SDK |",
        "|---|---|---|---|",
    ]
    for key, mine in ours.items():
        cells = [f"{'✗' if each.unmet() else '✓'} {each.cell()}" for each in (mine, sdk[key])]
        if key[0] in NOT_THEIRS:
            cells[1] = NOT_THEIRS[key[0]]
        lines.append(f"| {' | '.join((*key, *cells))} |")
    lines += [f"| all at once | {run} | {times[run][0]:.0f} s | {times[run][1]:.0f} s |" for run in RUNS]
    return "\n".join(lines) + "\n"


def show(outcomes: dict[Any, Outcome]) -> int:
    """Prints every outcome; returns how many do not meet their demands."""
    for (scenario, run), outcome in outcomes.items():
        print(f"{'✗' if outcome.unmet() else '✓'} {scenario:38} {run:10} {outcome.cell()}")
        for line in outcome.unmet():
            print(f"    {line}")
        if outcome.unmet() and outcome.stderr:
            print("    | " + "\n    | ".join(outcome.stderr.strip().splitlines()[-12:]))
    return sum(bool(outcome.unmet()) for outcome in outcomes.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--run", choices=RUNS, default="bare")
    parser.add_argument("--sdk", action="store_true", help="drive the official SDK in place of Moorings")
    given = parser.parse_args()
    client = sdks() if given.sdk else ours()
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        if given.only:
            return bool(show({(given.only, given.run): alone(given.only, given.run, client, folder)}))
        found = all_alone(client, folder)
        bad = show(found)
        suites = {run: together(run, client, folder) for run in RUNS}
        for run, (outcomes, seconds) in suites.items():
            print(f"all at once, {run}: {seconds:.0f} s")
            bad += show({(name, run): outcome for name, outcome in outcomes.items() if outcome.unmet()})
        if given.check or given.sdk:
            return bool(bad)
        theirs = all_alone(sdks(), folder)
        times = {run: (suites[run][1], together(run, sdks(), folder)[1]) for run in RUNS}
        made = table(found, theirs, times)
        DOCS.write_text(PART.sub(lambda part: part[1] + made + part[3], DOCS.read_text()))
        print(f"written to {DOCS.relative_to(ROOT)}")
        return bool(bad)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
