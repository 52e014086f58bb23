"""docs/kubernetes.md: its manifests are what Kubernetes takes, locked down, and fail where they should."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.builders import call
from tests.conftest import FIXTURES

PAGE = (FIXTURES.parent / "docs/kubernetes.md").read_text()
MANIFESTS: dict[str, dict[str, Any]] = {
    manifest["kind"]: manifest
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for manifest in yaml.safe_load_all(block)
}
TEXT = {"type": "string"}
GOOD, BAD = FIXTURES / "producers/vllm/native", FIXTURES / "producers/specforge/gqa-ids"


def record(required: str = "", **keys: Any) -> dict[str, Any]:
    """The schema of a mapping that has these keys and no others."""
    return {"type": "object", "properties": keys, "required": required.split(), "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


# of the core/v1 and batch/v1 API, the fields that the page uses
SECCOMP = record("type", type={"enum": ["RuntimeDefault", "Unconfined", "Localhost"]})
QUANTITIES = {"type": "object", "additionalProperties": TEXT}
CONTAINER = record(
    "name image args volumeMounts",
    name=TEXT,
    image=TEXT,
    args=listed(TEXT),
    terminationMessagePolicy={"enum": ["File", "FallbackToLogsOnError"]},
    securityContext=record(
        allowPrivilegeEscalation={"type": "boolean"},
        readOnlyRootFilesystem={"type": "boolean"},
        capabilities=record(drop=listed(TEXT)),
    ),
    resources=record(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=listed(record("name mountPath", name=TEXT, mountPath=TEXT, readOnly={"type": "boolean"})),
)
SOURCES = {
    "persistentVolumeClaim": record("claimName", claimName=TEXT, readOnly={"type": "boolean"}),
    "configMap": record("name", name=TEXT),
}
POD_SPEC = record(
    "containers",
    automountServiceAccountToken={"type": "boolean"},
    restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
    securityContext=record(
        runAsNonRoot={"type": "boolean"},
        runAsUser={"type": "integer"},
        runAsGroup={"type": "integer"},
        seccompProfile=SECCOMP,
    ),
    initContainers=listed(CONTAINER),
    containers=listed(CONTAINER),
    volumes=listed(record("name", name=TEXT, **SOURCES)),
)
ON_EXIT = record(
    "operator values",
    containerName=TEXT,
    operator={"enum": ["In", "NotIn"]},
    values=listed({"type": "integer"}),
)
METADATA = record("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
SPECS = {
    "ConfigMap": record("data", data=QUANTITIES),
    "Pod": record("spec", spec=POD_SPEC),
    "Job": record(
        "spec",
        spec=record(
            "template",
            backoffLimit={"type": "integer"},
            podFailurePolicy=record(rules=listed(record("action", action=TEXT, onExitCodes=ON_EXIT))),
            template=record("spec", spec=POD_SPEC),
        ),
    ),
}
PODS = {
    "Pod": (MANIFESTS["Pod"]["spec"], MANIFESTS["Pod"]["spec"]["initContainers"][0]),
    "Job": (spec := MANIFESTS["Job"]["spec"]["template"]["spec"], spec["containers"][0]),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_manifest_has_the_fields_of_its_kind_and_no_others(kind: str) -> None:
    head = {"apiVersion": {"const": "batch/v1" if kind == "Job" else "v1"}, "kind": {"const": kind}}
    schema = SPECS[kind]
    schema = {**schema, "properties": {**schema["properties"], **head, "metadata": METADATA}}
    jsonschema.validate(MANIFESTS[kind], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**MANIFESTS[kind], "specs": {}}, schema)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("kind", PODS)
def test_kubectl_keeps_every_field(kind: str) -> None:
    """Its types drop what they do not have."""
    command = ["kubectl", "set", "env", "--local", "-f", "-", "A=b", "-o", "json"]
    text = json.dumps(MANIFESTS[kind])
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert holds(json.loads(done.stdout), MANIFESTS[kind])


def holds(value: Any, part: Any) -> bool:
    """Whether all of `part` is in `value`."""
    if isinstance(part, dict):
        return all(key in value and holds(value[key], inner) for key, inner in part.items())
    if isinstance(part, list):
        return len(value) == len(part) and all(map(holds, value, part))
    return bool(value == part)


@pytest.mark.parametrize("kind", PODS)
def test_the_check_runs_locked_down_and_mounts_what_there_is(kind: str) -> None:
    spec, container = PODS[kind]
    pod, own = spec["securityContext"], container["securityContext"]
    assert pod["runAsNonRoot"] and pod["runAsUser"] == 65532 and not spec["automountServiceAccountToken"]
    assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]} and "--offline" in container["args"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


@pytest.mark.parametrize(("drafter", "code"), [(GOOD, 0), (BAD, 1), (Path("nowhere"), 3)])
@pytest.mark.parametrize("kind", PODS)
def test_the_check_passes_and_fails_as_the_page_says(
    kind: str, drafter: Path, code: int, tmp_path: Path
) -> None:
    policy = MANIFESTS["ConfigMap"]["data"]["eaglectl.toml"]
    target, file = FIXTURES / "target", tmp_path / "eaglectl.toml"
    file.write_text(policy.replace("/models/target", str(target)))
    places = {"/models/drafter": drafter, "/models/target": target, "/policy/eaglectl.toml": file}
    arguments = [places.get(word, word) for word in PODS[kind][1]["args"]]
    assert call(*arguments).code == code


def test_the_policy_and_the_serving_image_name_the_same_release() -> None:
    (engine,) = tomllib.loads(MANIFESTS["ConfigMap"]["data"]["eaglectl.toml"])["engines"]
    (container,) = MANIFESTS["Pod"]["spec"]["containers"]
    assert engine.partition("==")[2] == container["image"].rpartition(":v")[2]
    assert engine in shlex.join(PODS["Job"][1]["args"])
