"""Have cyclonedx-py write the SBOM of the wheel in dist/ as the environment of PYTHON has it: `make sbom`."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))
from wheel import DIST, ROOT, SUMS, record


def description(version: str) -> str:
    """A pyproject.toml of what the environment holds: the version, and no extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = {key: project[key] for key in ("name", "description", "license", "dependencies")}
    table |= {"version": version}
    return "\n".join(["[project]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])


def main(python: str) -> None:
    """Write WHEEL.cdx.json, which the generator validates, and add it to SHA256SUMS."""
    (wheel,) = DIST.glob("eagle_drafter_tools-*.whl")
    sbom = wheel.with_suffix(".cdx.json")
    with TemporaryDirectory() as folder:
        described = Path(folder, "pyproject.toml")
        described.write_text(description(wheel.name.split("-")[1]))
        command = [sys.executable, "-m", "cyclonedx_py", "environment", python, "--pyproject", str(described)]
        command += ["--output-reproducible", "--spec-version", "1.6", "--output-file", str(sbom)]
        subprocess.run([*command, "--validate"], check=True)
    SUMS.write_text(f"{record(wheel)}\n{record(sbom)}\n")
    print(f"{sbom.name}: {len(json.loads(sbom.read_text())['components'])} components, valid CycloneDX 1.6")


if __name__ == "__main__":
    main(sys.argv[1])
