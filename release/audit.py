"""Look for known vulnerabilities of every pinned package with pip-audit: `make audit`."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
# torch stands in constraints.txt alone
PINNED = ("requirements/ci.txt", "requirements/docs.txt", "requirements/fuzz.txt", "constraints.txt")
SECONDS = 60


def pins() -> list[str]:
    """Every pin once, with its marker and without hashes."""
    lines = "\n".join((ROOT / name).read_text() for name in PINNED)
    return sorted(set(re.findall(r"^[\w.-]+==[^\\\n]*[^\\\s]", lines, re.MULTILINE)))


def verdict(report: Mapping[str, Any]) -> tuple[int, str]:
    """Return the exit code and the text for pip-audit's report.

    0: every package was looked at, nothing is known; 1: a finding; 3: could not look at one package or more.
    """
    packages = report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    findings = []
    for package in packages:
        for fault in package.get("vulns", ()):
            fixed = " or ".join(fault["fix_versions"]) or "no release"
            findings.append(f"{package['name']} {package['version']}: {fault['id']}, fixed in {fixed}")
    if len(skipped) == len(packages):
        return 3, f"could not look: the index has no advisories for any of {len(packages)} packages"
    lines = [f"looked at {len(packages) - len(skipped)} packages, {len(findings)} known vulnerabilities"]
    if skipped:
        lines.append(f"could not look at {len(skipped)}: {', '.join(skipped)}")
    code = 1 if findings else 3 if skipped else 0
    return code, "\n  ".join([*lines, *findings])


def audit(arguments: Sequence[str]) -> tuple[int, str]:
    """Run pip-audit on the pins; `arguments` are passed on, like --ignore-vuln ID."""
    with TemporaryDirectory() as folder:
        listed, report = Path(folder, "pins.txt"), Path(folder, "report.json")
        listed.write_text("\n".join(pins()))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(listed), "--no-deps"]
        command += ["--disable-pip", "--progress-spinner", "off", "--timeout", "10"]
        command += ["--format", "json", "--output", str(report), *arguments]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return 3, f"could not look: no answer in {SECONDS} seconds"
        if report.is_file():
            return verdict(json.loads(report.read_text()))
        reasons = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        return 3, f"could not look: pip-audit: {reasons[-1][:300]}"


if __name__ == "__main__":
    code, text = audit(sys.argv[1:])
    print(f"audit: {text}")
    sys.exit(code)
