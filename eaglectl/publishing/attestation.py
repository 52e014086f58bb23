"""Provenance in SLSA's form (https://slsa.dev/provenance/v1): who made what was published, from what."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

import eaglectl
from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.layout import PROVENANCE, SIGNATURE
from eaglectl.checkpoint.record import history
from eaglectl.errors import UnreadableError
from eaglectl.publishing.upload_files import UploadFile
from eaglectl.text import listed

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:eaglectl:upload:1"
# SHA-256 of lines "DIGEST  NAME": of the header (no name), then of each tensor by name
TENSORS_DIGEST = "sha256TensorDigests"
LOCAL = "urn:eaglectl:no-ci"
# steps of the record that made other weights
STEPS = ("upgrade", "downgrade", "pruning")


class Run(Struct, frozen=True):
    """The CI run that publishes: who ran it, its address, and the commit that it ran on."""

    builder: str
    address: str = ""
    source: str = ""
    commit: str = ""


def run_of(environment: Mapping[str, str]) -> Run:
    """The run of GitHub Actions or GitLab CI that an environment describes; else a machine without a name."""

    def value(name: str) -> str:
        return environment.get(name, "")

    if value("GITHUB_ACTIONS") == "true":
        server, project = value("GITHUB_SERVER_URL"), value("GITHUB_REPOSITORY")
        run = f"{server}/{project}/actions/runs/{value('GITHUB_RUN_ID')}"
        return Run(
            f"{server}/{value('GITHUB_WORKFLOW_REF')}",
            f"{run}/attempts/{value('GITHUB_RUN_ATTEMPT') or '1'}",
            f"git+{server}/{project}@{value('GITHUB_REF')}",
            value("GITHUB_SHA"),
        )
    if value("GITLAB_CI") == "true":
        project = value("CI_PROJECT_URL")
        return Run(
            f"{project}/-/runners/{value('CI_RUNNER_ID')}",
            value("CI_JOB_URL"),
            f"git+{project}@{value('CI_COMMIT_REF_NAME')}",
            value("CI_COMMIT_SHA"),
        )
    return Run(LOCAL)


def make_statement(
    repo: str, files: Sequence[UploadFile], record: Mapping[str, Any], run: Run
) -> dict[str, Any]:
    """The in-toto statement about `files`; `record` is their eaglectl.json. It holds no numbers.

    Subjects are all files but the statement itself and the signature, which are made later.
    """
    metadata = {"invocationId": run.address} if run.address else {}
    commit = [{"uri": run.source, "digest": {"gitCommit": run.commit}}] if run.commit else []
    # of all conversions that made other weights, newest first
    steps = [step for entry in history(record) for step in STEPS if isinstance(entry.get(step), Mapping)]
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": file.name, "digest": {"sha256": file.sha256}}
            for file in sorted(files, key=lambda file: file.name)
            if file.name not in (PROVENANCE, SIGNATURE)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"repository": f"https://huggingface.co/{repo}"},
                "internalParameters": {
                    "eagle": str(record.get("eagle")),
                    "layout": str(record.get("layout")),
                    "steps": steps,
                },
                "resolvedDependencies": [*_sources(record), *commit],
            },
            "runDetails": {
                "builder": {"id": run.builder, "version": {"eaglectl": eaglectl.__version__}},
                "metadata": metadata,
            },
        },
    }


def _sources(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The files that every conversion read, newest first, each once."""
    seen = set()
    for entry in history(record):
        match entry.get("source"):
            case {"name": str(source), "files": Mapping() as files}:
                for name, file in files.items():
                    digest = _digest(file)
                    key = tuple(digest.items())
                    if digest and key not in seen:
                        seen.add(key)
                        yield {"name": f"{source}/{name}", "digest": digest}


def _digest(file: object) -> dict[str, str]:
    """A source file's digest, as in-toto states it: of the file, or over those of its header and tensors."""
    match file:
        case {"sha256": str(digest)}:
            return {"sha256": digest}
        case {"header": str(header), "tensors": Mapping() as tensors}:
            lines = [f"{header}  \n", *(f"{digest}  {name}\n" for name, digest in sorted(tensors.items()))]
            return {TENSORS_DIGEST: hashlib.sha256("".join(lines).encode()).hexdigest()}
    return {}


class Claims(Struct, frozen=True):
    """What a statement says: digests of the published files, the builder, its version, run and sources."""

    files: Mapping[str, str]
    builder: str
    version: str
    run: str
    sources: tuple[str, ...]

    @property
    def words(self) -> str:
        """The claims in one line, without the files."""
        where = "outside of CI" if self.builder == LOCAL else f"by {self.builder}"
        parts = [
            f"published {where} with eaglectl {self.version}",
            *([f"in run {self.run}"] if self.run else []),
            *([f"from {listed(self.sources, most=4)}"] if self.sources else []),
        ]
        return ", ".join(parts)


def claims_of(raw: bytes) -> Claims | None:
    """The claims of a file; None where it is not SLSA provenance as `make_statement` writes it."""
    try:
        statement = parse_json(PROVENANCE, raw)
        if statement["_type"] != STATEMENT or statement["predicateType"] != PREDICATE:
            return None
        files = {str(subject["name"]): str(subject["digest"]["sha256"]) for subject in statement["subject"]}
        predicate = statement["predicate"]
        details, definition = predicate["runDetails"], predicate["buildDefinition"]
        return Claims(
            files,
            str(details["builder"]["id"]),
            str(details["builder"].get("version", {}).get("eaglectl", "")),
            str(details.get("metadata", {}).get("invocationId", "")),
            tuple(_source_claim(source) for source in definition.get("resolvedDependencies", [])),
        )
    except (KeyError, TypeError, AttributeError, UnreadableError):
        return None


def _source_claim(source: Mapping[str, Any]) -> str:
    digest = next(iter(source["digest"].values()))
    return f"{source.get('uri') or source['name']} ({str(digest)[:12]}...)"
