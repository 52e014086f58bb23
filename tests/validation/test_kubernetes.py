"""docs/kubernetes.md: its manifests are what Kubernetes takes, locked down, and fail where they should."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
GOOD, BAD = FIXTURES / "producers/vllm/native", FIXTURES / "producers/specforge/gqa-ids"
# the fields of the core/v1 and batch/v1 API that the page uses, and their values as JSON
POD = r"spec\.(template\.spec\.)?"
CONTAINER = rf"{POD}(initContainers|containers)\."
ON_EXIT = r"spec\.podFailurePolicy\.rules\.(action|onExitCodes\."
TEXT, FLAG, NUMBER = r'"([^"\\]|\\.)+"', "true|false", r"\d+"
FIELDS = {
    r"apiVersion|kind|metadata\.name|data\..*": '".+"',
    rf"spec\.backoffLimit|{POD}securityContext\.(runAsUser|runAsGroup)": NUMBER,
    rf"{ON_EXIT}containerName)": TEXT,
    rf"{ON_EXIT}operator)": '"(Not)?In"',
    rf"{ON_EXIT}values)": rf"\[{NUMBER}(, {NUMBER})*\]",
    rf"{POD}restartPolicy": '"(Always|OnFailure|Never)"',
    rf"{POD}automountServiceAccountToken|{POD}securityContext\.runAsNonRoot": FLAG,
    rf"{POD}securityContext\.seccompProfile\.type": '"(RuntimeDefault|Unconfined|Localhost)"',
    rf"{POD}volumes\.(name|persistentVolumeClaim\.claimName|configMap\.name)": TEXT,
    rf"{POD}volumes\.persistentVolumeClaim\.readOnly|{CONTAINER}volumeMounts\.readOnly": FLAG,
    rf"{CONTAINER}(name|image|volumeMounts\.(name|mountPath)|resources\.(requests|limits)\..*)": TEXT,
    rf"{CONTAINER}terminationMessagePolicy": '"(File|FallbackToLogsOnError)"',
    rf"{CONTAINER}securityContext\.(allowPrivilegeEscalation|readOnlyRootFilesystem)": FLAG,
    rf"{CONTAINER}(args|securityContext\.capabilities\.drop)": rf"\[{TEXT}(, {TEXT})*\]",
}
PODS = {
    "Pod": (MANIFESTS["Pod"]["spec"], MANIFESTS["Pod"]["spec"]["initContainers"][0]),
    "Job": (spec := MANIFESTS["Job"]["spec"]["template"]["spec"], spec["containers"][0]),
}


def fields(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The places of a manifest that hold a value, but for the indices of lists, and the values as JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{place}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from fields(inner, place)
    else:
        yield place.removeprefix("."), json.dumps(value)


def is_known(field: str, value: str) -> bool:
    return any(re.fullmatch(name, field) and re.fullmatch(kind, value) for name, kind in FIELDS.items())


@pytest.mark.parametrize("kind", ["ConfigMap", "Pod", "Job"])
def test_a_manifest_has_the_fields_of_its_kind_and_no_others(kind: str) -> None:
    manifest = MANIFESTS[kind]
    assert manifest["apiVersion"] == ("batch/v1" if kind == "Job" else "v1")
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])
    assert [field for field in fields(manifest) if not is_known(*field)] == []


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
    assert {"name", "image", "args", "volumeMounts"} <= set(container)
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
