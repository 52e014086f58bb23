"""ml-bom.cdx.json: the drafter, its target, its data and its files as a CycloneDX 1.6 ML-BOM."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import eaglectl
from eaglectl.checkpoint.hub_names import is_repo_name
from eaglectl.checkpoint.layout import BOM, RECORD, SUMS
from eaglectl.publishing.card_block import CardFacts
from eaglectl.publishing.model_index import measured_with
from eaglectl.publishing.provenance import digest_of
from eaglectl.publishing.upload_files import UploadFile

# identifiers of the Hub that are an SPDX identifier in other letters
SPDX_NAMES = (
    "Apache-2.0 MIT BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CC-BY-4.0 CC-BY-SA-4.0 CC-BY-NC-4.0"
    " CC-BY-NC-SA-4.0 CC-BY-NC-ND-4.0 ISC MPL-2.0 Unlicense"
)
SPDX = {name.lower(): name for name in SPDX_NAMES.split()}
HUB = "https://huggingface.co"
DRAFTER, TARGET = "drafter", "target"


def make_bom(files: Sequence[UploadFile], facts: CardFacts) -> bytes:
    """The ML-BOM of `files`; the same for the same files and facts, so without a time."""
    datasets = [
        {"bom-ref": f"data-{number}", **_dataset(dataset)}
        for number, dataset in enumerate(facts.training.get("datasets", ()), 1)
    ]
    target = _target(facts)
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": "eaglectl", "version": eaglectl.__version__},
                ]
            },
            "component": _drafter(files, facts, [str(dataset["bom-ref"]) for dataset in datasets]),
        },
        "components": [*target, *datasets],
        "dependencies": [
            {"ref": DRAFTER, "dependsOn": [part["bom-ref"] for part in (*target, *datasets)]},
        ],
    }
    document["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, digest_of(document))}"
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _drafter(files: Sequence[UploadFile], facts: CardFacts, datasets: Sequence[str]) -> dict[str, Any]:
    group, _, name = facts.repo.partition("/")
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": DRAFTER,
        "group": group,
        "name": name,
        "description": f"EAGLE-{facts.drafter.version} draft model for speculative decoding",
        "externalReferences": [
            {"type": "distribution", "url": f"{HUB}/{facts.repo}"},
            *(
                {"type": "documentation", "url": f"https://arxiv.org/abs/{number}"}
                for number, _ in facts.papers
            ),
        ],
        "modelCard": _model_card(facts, datasets),
        "components": [
            {
                "type": "file",
                "bom-ref": f"file-{file.name}",
                "name": file.name,
                "hashes": [{"alg": "SHA-256", "content": file.sha256}],
            }
            for file in sorted(files, key=lambda file: file.name)
            if file.name not in (BOM, RECORD, SUMS)
        ],
    }
    if facts.revision:
        component["version"] = facts.revision
    if facts.licence:
        known = SPDX.get(facts.licence)
        component["licenses"] = [{"license": {"id": known} if known else {"name": facts.licence}}]
    return component


def _model_card(facts: CardFacts, datasets: Sequence[str]) -> dict[str, Any]:
    card: dict[str, Any] = {
        "modelParameters": {
            "task": "text-generation",
            "architectureFamily": f"EAGLE-{facts.drafter.version}",
            "inputs": [{"format": "hidden states and tokens of the target"}],
            "outputs": [{"format": "tokens that the target verifies"}],
            **({"datasets": [{"ref": ref} for ref in datasets]} if datasets else {}),
        },
        "considerations": {
            "useCases": ["Speculative decoding with its target model"],
            "technicalLimitations": ["It does not run alone, nor with another target"],
        },
    }
    if facts.smoke is not None:
        card["quantitativeAnalysis"] = {"performanceMetrics": list(_metrics(facts.smoke))}
    return card


def _metrics(smoke: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    engine = measured_with(smoke["engine"])
    for name, measured in {"all prompts": smoke, **(smoke.get("sets") or {})}.items():
        low, high = measured["interval"]
        yield {
            "type": f"acceptance length, {smoke['k']} drafted tokens a step, {engine}",
            "value": str(measured["acceptance_length"]),
            "slice": name,
            "confidenceInterval": {"lowerBound": str(low), "upperBound": str(high)},
        }


def _target(facts: CardFacts) -> list[dict[str, Any]]:
    if not facts.base_model:
        return []
    group, _, name = facts.base_model.partition("/")
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": TARGET,
            "group": group,
            "name": name,
            "externalReferences": [{"type": "distribution", "url": f"{HUB}/{facts.base_model}"}],
        }
    ]


def _dataset(dataset: Mapping[str, Any]) -> dict[str, Any]:
    name = dataset["name"]
    part: dict[str, Any] = {"type": "data", "name": name, "data": [{"type": "dataset", "name": name}]}
    if "revision" in dataset:
        part["version"] = dataset["revision"]
    if is_repo_name(name):
        part["externalReferences"] = [{"type": "distribution", "url": f"{HUB}/datasets/{name}"}]
    return part
