"""`diagnose`: why acceptance is low."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.conversion.request import parse_reading
from eaglectl.drafter.vocabulary import FROM_D2T, FROM_T2D
from eaglectl.engines.registry import ENGINES, installed_release, parse_engine
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.opening import on_disk
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.target_files import read_target_config, text_part
from eaglectl.formats.catalogue import layout_for
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy
from eaglectl.keywords import StrPath, path_text, with_keywords
from eaglectl.operations.converting import convert
from eaglectl.operations.inspecting import inspect
from eaglectl.operations.open_questions import measured_questions
from eaglectl.operations.options import (
    INSTALLED,
    ConvertOptions,
    DiagnoseOptions,
    SmokeOptions,
    ValidateOptions,
    is_server,
)
from eaglectl.operations.smoking import as_preset, repair_command, search_aux_layers, smoke_drafts
from eaglectl.operations.validating import validate
from eaglectl.progress import OnProgress, StagedWork
from eaglectl.run.answering import TRYING
from eaglectl.run.diagnosis import CAUSES, CONTRADICTION, Evidence, Phase, find_cause
from eaglectl.run.prompts import choose_prompts
from eaglectl.run.report import SmokeReport
from eaglectl.run.stage import loading_once
from eaglectl.run.tokens import has_chat_template
from eaglectl.shell import as_path
from eaglectl.target import runnable_target

# how long each stage of a healthy drafter takes, in runs: on the real pair and the tiny one, one core
STAGES = (("running the target", 1.0), ("measuring", 1.0), ("probing", 1.0), (TRYING, 0.6))
# options of `convert` that a refusal names and that need no other file
REPAIRS: Mapping[str, Mapping[str, Any]] = {
    "--rope-style interleaved": {"rope_style": "interleaved"},
    "--mla-query-lora": {"has_query_lora": True},
    "--fix-reading dtype=bfloat16": {"fixes": (parse_reading("dtype=bfloat16"),)},
    "--fix-reading dtype=float16": {"fixes": (parse_reading("dtype=float16"),)},
    f"--fix-reading {FROM_T2D}": {"fixes": (parse_reading(FROM_T2D),)},
    f"--fix-reading {FROM_D2T}": {"fixes": (parse_reading(FROM_D2T),)},
}


@with_keywords
def diagnose(
    source: StrPath,
    target: StrPath | None = None,
    options: DiagnoseOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: Any,
) -> eaglectl.Diagnosis:
    """Look for why a drafter's acceptance is low: the file, the engine, the pair, the prompts, the training.

    The cheapest looks come first, and the first cause that is shown ends the diagnosis. Raises UsageError for
    options that make no sense, UnreadableError where the target or the prompts are not there.
    """
    source, target, options = os.fspath(source), path_text(target), options or DiagnoseOptions()
    options = as_preset(options)
    _check(options)
    place = str(runnable_target(source, target, options.answers, "diagnose").place)
    on_progress = StagedWork(on_progress, "diagnose", STAGES)
    with loading_once():
        questions = measured_questions(source, place, options.answers, options.measuring, on_progress)
        looks = Looks(source, place, replace(options, answers=questions.answers), on_progress)
        diagnosis = find_cause(CAUSES, looks.start(), looks.after, source, place)
    return replace(diagnosis, measured=questions.measured)


def _check(options: DiagnoseOptions) -> None:
    if options.expected is not None and not 1 < options.expected <= options.k + 1:
        raise UsageError(
            f"--expected {options.expected:g}: an acceptance length above 1 and up to {options.k + 1} (k + 1)"
            " was expected"
        )
    choose_prompts(options.prompts, options.sample, options.seed)
    engine, runner = options.engine, options.run_in
    name = None if engine is None else parse_engine(engine).engine
    check(
        (name not in (None, *INSTALLED), f"--engine {engine}: vllm or sglang was expected"),
        (
            runner not in (None, "reference", *INSTALLED) and not is_server(str(runner)),
            f"--run-in {runner}: vllm, sglang, reference or a server's URL was expected",
        ),
        (
            runner not in (None, "reference", name) and name is not None,
            f"--run-in {runner} is not --engine {engine}; leave one of them out",
        ),
    )


class Looks(Struct, frozen=True):
    """What each phase adds to the evidence."""

    source: str
    target: str
    options: DiagnoseOptions
    on_progress: OnProgress | None

    def start(self) -> Evidence:
        """The evidence of reading the files."""
        options, runner = self.options, self.options.run_in or ""
        engine = options.engine or (runner if runner in INSTALLED else None)
        name = "server" if is_server(runner) else None
        if engine is not None:
            name = parse_engine(engine).engine
        judging = ValidateOptions(
            target=self.target,
            engines=(engine,) if engine else (),
            answers=options.answers,
            policy=Policy(),
            fail_on="error",
            has_engines=engine is not None,
        )
        report = validate(self.source, judging)
        evidence = Evidence(report, self._commands(), engine_name=name, expected=options.expected)
        commands = {**evidence.commands, **self._repairs(evidence, judging)}
        with suppress(EaglectlError):  # a conversion for the engine, if it can be made and changes anything
            plan = None if name is None else convert(self.source, None, self._converting(name, True)).plan
            if name and plan and (plan.changes or any(step.action != "kept" for step in plan.steps)):
                commands["convert"] = self._command("convert", "--for", layout_for(name))
        return replace(evidence, commands=commands)

    def _converting(self, engine: str, dry_run: bool = False) -> ConvertOptions:
        """A conversion for the engine ("": the default one) that measures nothing."""
        return ConvertOptions(
            layout_for(engine),
            target=self.target,
            answers=self.options.answers,
            dry_run=dry_run,
            measure=None,
        )

    def _repairs(self, evidence: Evidence, judging: ValidateOptions) -> dict[str, str]:
        """Commands that repair errors in the file, by name; each was run, or is offered as a choice."""
        errors = {finding.rule.name: finding for finding in evidence.serving_errors(of_target=False)}
        if set(errors) == {CONTRADICTION}:
            return {
                reading: self._command("convert", "--fix-reading", reading)
                for reading in (FROM_T2D, FROM_D2T)
                if reading in errors[CONTRADICTION].fix
            }
        if not errors:
            return {}
        options, words = self._converting(evidence.engine_name or ""), list[str]()
        with scratch_folder() as folder, suppress(EaglectlError):
            try:
                convert(self.source, folder / "repaired", options)
            except EaglectlError as refusal:
                named = [option for option in REPAIRS if option in str(refusal)]
                if len(named) != 1 or "--source-semantics" in str(refusal):
                    raise  # it names none, or leaves a choice
                convert(self.source, folder / "repaired", replace(options, **REPAIRS[named[0]]))
                words = shell.split(named[0])
            # the answers are about the source; the output states all of it
            after = validate(folder / "repaired", replace(judging, answers=Answers()))
            if set(errors) <= {rule.name for rule in after.passed}:
                return {"fix": self._command("convert", "--for", str(options.layout), *words)}
        return {}

    def after(self, phase: Phase, evidence: Evidence) -> Evidence:
        """The evidence with what this phase, which is not the first, looks at."""
        looks = {"reference": self._reference, "engine": self._engine, "measured": self._prompts}
        return looks[phase](evidence)

    def _reference(self, evidence: Evidence) -> Evidence:
        """The readings that the probe knows, and other aux layers where none but of layers is better.

        Layers one off may be better than the stated ones and still not those of the training.
        """
        try:
            report = self._smoke("reference", probe="sensitivity")
        # the last two: a question about the file, or prompts that do not fit
        except (RefusedError, UsageError, UnreadableError) as error:
            return evidence.without("reference", error)
        evidence = replace(evidence, reference=report)
        best = report.probed.best if report.probed else None
        if best is None or best.is_of_layers:
            options = self._smoke_options("reference")
            try:
                search = search_aux_layers(
                    self.source, self.target, report, options, on_progress=self.on_progress
                )
                evidence = replace(evidence, layers=search)
            except (UnreadableError, UsageError) as error:
                evidence = evidence.without("layers", error)
        found = evidence.layers.found if evidence.layers else None
        repairs = {
            name: repair_command(self.source, self.target, self.options.answers, variant)
            for name, variant in (("repair", best), ("layers", found))
            if variant is not None
        }
        return replace(evidence, commands={**evidence.commands, **repairs})

    def _engine(self, evidence: Evidence) -> Evidence:
        engine, name, runner = self.options.engine, evidence.engine_name, self.options.run_in
        if name is None:
            return evidence
        try:
            if runner == "reference":
                raise UnreadableError(f"--run-in {runner} runs no engine")
            if name == "server":
                return replace(evidence, engine=self._smoke(str(runner)))
            installed = installed_release(ENGINES[name])
            if engine and engine != name and installed and installed not in parse_engine(engine).releases:
                raise UnreadableError(f"{engine} was asked for, and {name} {installed} is installed here")
            return replace(evidence, engine=self._smoke(name))
        except EaglectlError as error:
            return evidence.without("engine", error)

    def _prompts(self, evidence: Evidence) -> Evidence:
        """Other temperatures and the chat template, where those can be the cause."""
        drafter = inspect(self.source, target=self.target, answers=self.options.answers).drafter
        chats, config = self._as_chats(), read_target_config(Path(on_disk(self.target, has_weights=False)))
        temperature = self.options.temperature
        evidence = replace(
            evidence,
            is_target_quantised=any(part.get("quantization_config") for part in (config, text_part(config))),
            has_own_embedding="embed_tokens.weight" in drafter.tensors,
            sampled=self._smoke("reference", temperature) if temperature > 0 else None,
        )
        if not chats or not evidence.may_be_low:
            return evidence
        # texts that do not fit with the template are no fault of ours; the diagnosis says so
        with scratch_folder() as folder, suppress(EaglectlError):
            path = folder / "prompts.jsonl"
            path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
            return replace(evidence, templated=self._smoke("reference", prompts=path, sample=None))
        return evidence

    def _smoke(self, engine: str, temperature: float = 0.0, **given: Any) -> SmokeReport:
        asked = replace(self._smoke_options(engine), temperature=temperature, **given)
        if given.get("prompts") or temperature != self.options.temperature:
            asked = replace(asked, like=None)  # no longer the run of its preset
        return smoke_drafts(self.source, self.target, asked, self.on_progress, compares_plain=False)

    def _smoke_options(self, engine: str) -> SmokeOptions:
        options = self.options
        return SmokeOptions(
            run_in=engine,
            device=options.device,
            k=options.k,
            prompts=options.prompts,
            like=options.like,
            sample=options.sample,
            max_tokens=options.max_tokens,
            seed=options.seed,
            timeout=options.timeout,
            # a server loads the target itself, and takes no such option
            trust_remote_code=options.trust_remote_code and not is_server(engine),
            answers=options.answers,
        )

    def _command(self, verb: str, *words: str) -> str:
        return command(verb, self.source, *words, target=self.target, answers=self.options.answers)

    def _commands(self) -> dict[str, str]:
        options, prompts = self.options, list[str]()
        if options.like is not None:
            prompts = ["--like", options.like]
        elif options.prompts is not None:
            prompts = ["--prompts", as_path(str(options.prompts))]
        run = ["--run-in", "reference", *prompts]
        given = {"--engine": options.engine, "--run-in": options.run_in}
        engine = [word for option, value in given.items() if value is not None for word in (option, value)]
        return {
            "diagnose": self._command("diagnose", *engine, *prompts),
            "validate": self._command("validate"),
            "inspect": self._command("inspect"),
            "smoke": self._command("smoke", *run),
            "probe": self._command("smoke", *run, "--probe", "drift"),
        }

    def _as_chats(self) -> Sequence[dict[str, Any]]:
        """The plain prompts as users' messages; none where the target has no template or there are others."""
        options = self.options
        prompts = choose_prompts(options.prompts, options.sample, options.seed).prompts
        is_plain = all(prompt.text and not prompt.is_chat for prompt in prompts)
        if not is_plain or not has_chat_template(Path(on_disk(self.target, has_weights=False))):
            return ()
        return [{"prompt": prompt.text, "set": prompt.set, "chat": True} for prompt in prompts]
