"""`diagnose` on what engines were recorded to serve otherwise than the files mean, without running them.

The files are those of the records; the run of the reference is stood in for by that of a live drafter, so
that each case is one that is alive in the reference and not as trained in the engine.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from eaglectl.operations.diagnosing import DiagnoseOptions, Looks
from eaglectl.run.diagnosis import CAUSES, find_cause
from tests.builders import call
from tests.engine.agreement import judging
from tests.engine.agreement import records as vllm_records
from tests.engine.agreement.bases import BASES
from tests.engine.agreement.cases import CASES as VLLM_CASES
from tests.engine.sglang import cases as sglang_cases
from tests.engine.sglang import judging as sglang_judging
from tests.engine.sglang import records as sglang_records
from tests.pages import smoke_report

VLLM, SGLANG = vllm_records.VLLM, sglang_records.SGLANG
CONVERT = {VLLM: "eaglectl convert", SGLANG: "--for sglang"}
NO_RELEASE = "no known release serves it"
NO_LAYOUT = "no layout makes SGLang serve it"
# what the next step must name: a key, an option, the conversion, or that no release serves it
KEYS = {
    "vllm llama3/aux ids unsorted": CONVERT[VLLM],
    "vllm llama3/norm_output nested": "norm_output: true",
    "vllm llama3/norm_before_residual nested": "norm_before_residual: true",
    "vllm llama3/attention biases but o_proj's": CONVERT[VLLM],
    "vllm llama31/norm_output nested": "norm_output: true",
    "vllm llama31/two layers, hidden_norm in the later": CONVERT[VLLM],
    "vllm llama-shared/tie_word_embeddings with its own embed_tokens": CONVERT[VLLM],
    "vllm qwen31/norm_output nested": "norm_output: true",
    "vllm mla31/norm_output nested": "norm_output: true",
    "V2 llama31/aux ids nested alone": CONVERT[VLLM],
    "sglang llama31/sglang: nested ids unsorted": CONVERT[SGLANG],
    "sglang llama31/sglang: nested ids null": CONVERT[SGLANG],
    "sglang llama31/sglang: nested layer_ids": NO_LAYOUT,
    "sglang llama31/sglang: eagle_config absent": CONVERT[SGLANG],
    "sglang llama31/sglang: eagle_config null": CONVERT[SGLANG],
    "sglang llama31/sglang: one aux state": NO_RELEASE,
    "sglang llama31/sglang: one aux state, not counted": NO_RELEASE,
    "sglang llama31/sglang: norm_before_residual": NO_RELEASE,
    "sglang llama31/sglang: attention_bias": NO_RELEASE,
    "sglang llama31/sglang: attention_bias with o": NO_RELEASE,
    "sglang llama31/sglang: mlp_bias": NO_RELEASE,
    "sglang llama31/sglang: draft_vocab_size null, its own lm_head": "draft_vocab_size: 256",
    "sglang llama31/sglang: tie_word_embeddings": "tie_word_embeddings: false",
    "sglang llama31/sglang: two layers, input_layernorm": CONVERT[SGLANG],
    "sglang llama31/sglang: sliding window": "--speculative-draft-window-size",
    "sglang llama31/sglang: model. before all": CONVERT[SGLANG],
    "sglang qwen3-target/nested ids unsorted": CONVERT[SGLANG],
    "sglang qwen3-target/eagle_config absent": CONVERT[SGLANG],
    "sglang llama3/names with draft_model.": CONVERT[SGLANG],
    "sglang llama3/two layers": CONVERT[SGLANG],
    "sglang llama3/aux ids unsorted": CONVERT[SGLANG],
    "sglang llama3/aux ids nested alone, as at the top": CONVERT[SGLANG],
    "sglang llama3/aux ids nested as layer_ids": CONVERT[SGLANG],
    "sglang llama3/norm_before_residual told": NO_RELEASE,
    "sglang llama3/norm_before_residual nested": NO_RELEASE,
    "sglang llama3/attention biases": NO_RELEASE,
    "sglang llama3/mlp biases": NO_RELEASE,
    "sglang llama31/fc_norm nested": "fc_norm: true",
    "sglang llama31/norm_output nested": "norm_output: true",
    "sglang llama31/aux id 0 at the top": NO_LAYOUT,
    "sglang llama31/aux ids at the top alone": CONVERT[SGLANG],
    "sglang llama31/aux ids nested alone": NO_LAYOUT,
    "sglang llama31/aux ids nested as layer_ids": CONVERT[SGLANG],
    "sglang llama31/norm_before_residual True": NO_RELEASE,
    "sglang llama-shared/norm_before_residual True": NO_RELEASE,
    "sglang llama-shared/none": "draft_vocab_size: null",
    "sglang llama-shared/identity d2t": "draft_vocab_size: null",
    "sglang llama-shared/identity d2t and t2d": "draft_vocab_size: null",
    "sglang llama-shared/its own embed_tokens": "draft_vocab_size: null",
    "sglang llama-shared/tie_word_embeddings": "draft_vocab_size: null",
    "sglang llama-shared/tie_word_embeddings with its own embed_tokens": CONVERT[SGLANG],
    "sglang llama-shared/layers.0.self_attn.o_proj.weight of other numbers": "draft_vocab_size: null",
    "sglang llama-shared/layers.0.mlp.down_proj.weight as F64": "draft_vocab_size: null",
}
# not named: validate justifies these, or the file has no meaning that the reference could run
OPEN = {
    "vllm llama3/aux ids nested as layer_ids": judging.JUSTIFIED,
    "vllm llama31/aux ids nested as layer_ids": judging.JUSTIFIED,
    "sglang llama31/sglang: its own embed_tokens": sglang_judging.JUSTIFIED,
}


def wrong() -> list[str]:
    """The recorded cases in which an engine drafted otherwise than the file means."""
    names = [
        f"{runner} {name}"
        for runner, path in (("vllm", vllm_records.RECORDS), ("V2", vllm_records.RECORDS_V2))
        for name, record in vllm_records.read(path).items()
        if record.verdict == "differently" and "no meaning" not in record.said
    ]
    return names + [
        f"sglang {name}"
        for name, record in sglang_records.read().items()
        if record.verdict == "differently" and "no meaning" not in record.reason
    ]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judging.targets(tmp_path_factory.mktemp("targets"))


def kind_of(case: str) -> str:
    """The kind of target of a recorded case."""
    runner, _, name = case.partition(" ")
    return sglang_cases.CASES[name].kind if runner == "sglang" else BASES[VLLM_CASES[name].base].kind


def ending(case: str, targets: Path, folder: Path) -> tuple[str, str]:
    """The cause and the next commands for a recorded case that is alive in the reference."""
    runner, _, name = case.partition(" ")
    files, engine = (
        (sglang_cases.CASES[name].files(), SGLANG) if runner == "sglang" else (VLLM_CASES[name].files(), VLLM)
    )
    return ending_of(files.write(folder / "drafter"), targets / kind_of(case), engine)


def ending_of(drafter: Path, target: Path, engine: str) -> tuple[str, str]:
    """The cause and the next commands for a drafter that is alive in the reference."""
    evidence = Looks(str(drafter), str(target), DiagnoseOptions(engine=engine), None).start()
    causes = [cause for cause in CAUSES if cause.phase in ("reading", "engine")]
    last = CAUSES[-1]  # what remains
    alive = replace(evidence, reference=smoke_report())
    ended = find_cause([*causes, last], evidence, lambda phase, given: alive, "", "")
    return ("open", "") if ended.cause == last.id else (ended.cause, " ".join(ended.commands))


@pytest.mark.parametrize("case", KEYS)
def test_a_file_that_the_engine_reads_otherwise_ends_in_its_key_or_release(
    case: str, targets: Path, tmp_path: Path
) -> None:
    cause, commands = ending(case, targets, tmp_path)
    assert cause == "engine-fact"
    assert KEYS[case] in commands


REPAIRED = [case for case in KEYS if KEYS[case] not in (NO_RELEASE, NO_LAYOUT) and "--spec" not in KEYS[case]]


@pytest.mark.parametrize("case", REPAIRED)
def test_the_printed_change_makes_the_engine_serve_it(case: str, targets: Path, tmp_path: Path) -> None:
    _, commands = ending(case, targets, tmp_path)
    folder = tmp_path / "drafter"
    if line := re.search(r"eaglectl convert [^`]*", commands):
        words = shlex.split(line[0])[1:]
        done = call(*words, "-o", tmp_path / "out")
        assert done.code == 0, (line[0], done.err)
        folder = tmp_path / "out"
    else:
        (written,) = re.findall(r"write (.+?) into config.json", commands)
        keys = {key: json.loads(value) for key, value in re.findall(r"(\w+): (\[.*?\]|[\w.-]+)", written)}
        config = json.loads((folder / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps(config))
    engine = SGLANG if case.startswith("sglang ") else VLLM
    assert ending_of(folder, targets / kind_of(case), engine)[0] == "open"


@pytest.mark.slow
def test_every_other_record_ends_in_the_file(targets: Path, tmp_path: Path) -> None:
    rest = [case for case in wrong() if case not in KEYS and case.replace("V2 ", "vllm ") not in KEYS]
    found = {
        case: ending(case, targets, tmp_path / str(place))[0]
        for place, case in enumerate(rest)
        if case not in OPEN
    }
    assert len(rest) > 20
    assert set(found.values()) == {"file-rule"}, found


def test_every_case_of_the_table_is_recorded_as_wrong() -> None:
    assert set(KEYS) | set(OPEN) <= set(wrong())
    assert all(case.partition(" ")[2] in justified for case, justified in OPEN.items())
