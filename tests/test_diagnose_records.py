"""`diagnose` on what engines were recorded to serve otherwise than the files mean, without running them.

The files are those of the records; the run of the reference is stood in for by that of a live drafter, so
that each case is one that is alive in the reference and not as trained in the engine.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eaglectl
from eaglectl.api.diagnose import Looks
from eaglectl.api.options import DiagnoseOptions
from eaglectl.formats.format import Answers
from eaglectl.run.causes import CAUSES
from eaglectl.run.diagnosis import find_cause
from eaglectl.target.choice import as_target
from tests.builders import call
from tests.engine.agreement import judging, records
from tests.engine.agreement.cases import CASES as VLLM_CASES
from tests.engine.sglang import cases as sglang_cases
from tests.engine.sglang import judging as sglang_judging
from tests.pages import smoke_report

VLLM, SGLANG = records.VLLM, records.SGLANG
NO_RELEASE = "no known release serves it"
NO_LAYOUT = "no layout makes SGLang serve it"
# what the next step says where neither a conversion nor a key mends it
UNMENDED = {
    **dict.fromkeys(
        (
            "sglang llama31/sglang: one aux state",
            "sglang llama31/sglang: one aux state, not counted",
            "sglang llama31/sglang: norm_before_residual",
            "sglang llama31/sglang: attention_bias",
            "sglang llama31/sglang: attention_bias with o",
            "sglang llama31/sglang: mlp_bias",
            "sglang llama3/norm_before_residual told",
            "sglang llama3/norm_before_residual nested",
            "sglang llama3/attention biases",
            "sglang llama3/mlp biases",
            "sglang llama31/norm_before_residual True",
            "sglang llama-shared/norm_before_residual True",
        ),
        NO_RELEASE,
    ),
    "sglang llama31/sglang: nested layer_ids": NO_LAYOUT,
    "sglang llama31/aux id 0 at the top": NO_LAYOUT,
    "sglang llama31/aux ids nested alone": NO_LAYOUT,
    "vllm mla3/rope_scaling linear with an original length": "train it with yarn",
    "sglang llama31/sglang: parallel": NO_RELEASE,
    "vllm llama3/embed_tokens of 200 rows": NO_RELEASE,
    "vllm llama3/rope_dim in rope_parameters": "remove the keys",
    "vllm mla3/rope_scaling yarn with mscale": "VLLM_USE_V2_MODEL_RUNNER=0",
}
# not named: validate justifies these, or the file has no meaning that the reference could run
OPEN = {
    "vllm llama3/logit_scale": judging.JUSTIFIED,
    "sglang llama31/sglang: its own embed_tokens": sglang_judging.JUSTIFIED,
}


def case_of(engine: str, name: str) -> Any:
    """The case of a record."""
    return (sglang_cases.CASES if engine == "sglang" else VLLM_CASES)[name]


def wrong() -> list[str]:
    """The recorded cases in which an engine drafted otherwise than the file means, each once.

    Not those whose meaning an answer gives, and those that vLLM's V2 runner, its default, serves.
    """
    served = {name for name, record in records.read(records.RECORDS_V2).items() if record.is_served}
    files = (
        ("vllm", records.RECORDS),
        ("vllm", records.RECORDS_V2),
        ("sglang", records.SGLANG_RECORDS),
    )
    names = [
        f"{engine} {name}"
        for engine, path in files
        for name, record in records.read(path).items()
        if record.verdict == "differently"
        and "no meaning" not in record.reason
        and case_of(engine, name).answers == Answers()
        and not (engine == "vllm" and name in served)
    ]
    return list(dict.fromkeys(names))


WRONG = wrong()


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judging.targets(tmp_path_factory.mktemp("targets"))


def ending_of(drafter: Path, target: Path, engine: str) -> tuple[str, str]:
    """The cause and the next commands for a drafter that is alive in the reference."""
    evidence = Looks(str(drafter), as_target(target), DiagnoseOptions(engine=engine), None).start()
    causes = [cause for cause in CAUSES if cause.phase in ("reading", "engine")]
    last = CAUSES[-1]  # what remains
    alive = replace(evidence, reference=smoke_report())
    ended = find_cause([*causes, last], evidence, lambda phase, given: alive, "", "")
    return ("open", "") if ended.cause == last.id else (ended.cause, " ".join(ended.commands))


@pytest.mark.fast(12)
@pytest.mark.parametrize("case", [case for case in WRONG if case not in OPEN])
def test_what_an_engine_reads_otherwise_ends_in_a_rule_or_in_its_key_or_release_and_the_change_mends_it(
    case: str, targets: Path, tmp_path: Path
) -> None:
    name, _, title = case.partition(" ")
    engine, of_engine = (SGLANG if name == "sglang" else VLLM), case_of(name, title)
    folder, target = of_engine.files().write(tmp_path / "drafter"), targets / of_engine.kind
    cause, commands = ending_of(folder, target, engine)
    report = eaglectl.validate(folder, target=target, engines=[engine])
    if any(option for release in report.releases for option in release.start_options):
        assert cause == "open"  # the run that it compares is started so
        return
    if eaglectl.validate(folder, target=target, has_engines=False).verdict == "fail":
        assert cause == "file-rule"
        return
    assert cause == "engine-fact" and UNMENDED.get(case, "") in commands
    if case in UNMENDED:
        return
    if line := re.search(r"eaglectl convert [^`]*", commands):
        folder = tmp_path / "out"
        done = call(*shlex.split(line[0])[1:], "-o", folder)
        assert done.code == 0, (line[0], done.err)
    else:
        (written,) = re.findall(r"write (.+?) into config.json", commands)
        keys = {key: json.loads(value) for key, value in re.findall(r"(\w+): (\[.*?\]|[\w.-]+)", written)}
        config = json.loads((folder / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps(config))
    assert ending_of(folder, target, engine)[0] == "open"


def test_every_case_of_the_tables_is_recorded_as_wrong() -> None:
    assert set(UNMENDED) | set(OPEN) <= set(WRONG)
    assert all(case.partition(" ")[2] in justified for case, justified in OPEN.items())
