"""`diagnose`: why acceptance is low."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

import eaglectl
from eaglectl import shell
from eaglectl.api.convert import convert, measured_questions
from eaglectl.api.inspect import inspect
from eaglectl.api.options import (
    INSTALLED,
    ConvertOptions,
    DiagnoseOptions,
    SmokeOptions,
    ValidateOptions,
    is_server,
)
from eaglectl.api.runs import Runs
from eaglectl.api.smoke import check_numbers, repair_command, smoke_drafts
from eaglectl.api.validate import validate
from eaglectl.conversion.plan import parse_reading
from eaglectl.drafter.tensors import FROM_D2T, FROM_T2D
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES, installed_release, usual_release
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import on_disk
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.text_part import text_part
from eaglectl.formats.catalogue import layout_for
from eaglectl.formats.commands import command
from eaglectl.formats.format import Answers
from eaglectl.formats.tables import LATE, TABLE_ROWS
from eaglectl.judge.rule import Policy
from eaglectl.options import StrPath, options_of, with_keywords
from eaglectl.progress import OnProgress, StagedWork
from eaglectl.run.answering import TRYING, search_layers
from eaglectl.run.cause_checks import CONTRADICTION, open_reading
from eaglectl.run.causes import CAUSES
from eaglectl.run.diagnosis import find_cause
from eaglectl.run.evidence import Evidence
from eaglectl.run.job import has_chat_template, share_loaded_targets
from eaglectl.run.prompts import FURTHER_PROMPTS, MORE_PROMPTS, choose_prompts
from eaglectl.run.results import SmokeReport
from eaglectl.shell import as_path, without_secrets
from eaglectl.target.choice import TargetChoice, as_target, runnable_target

if TYPE_CHECKING:
    from eaglectl.api.keywords import DiagnoseFields

# duration of each stage for a healthy drafter, in runs: measured on the real and the tiny pair, one core
STAGES = (("running the target", 1.0), ("measuring", 1.0), ("probing", 1.0), (TRYING, 0.6))
# options of `convert` that a refusal asks for and that need no other file
REPAIRS: Mapping[str, Mapping[str, Any]] = {
    "--rope-style interleaved": {"rope_style": "interleaved"},
    "--mla-query-lora": {"has_query_lora": True},
    "--fix-reading dtype=bfloat16": {"fixes": (parse_reading("dtype=bfloat16"),)},
    "--fix-reading dtype=float16": {"fixes": (parse_reading("dtype=float16"),)},
    f"--fix-reading {FROM_T2D}": {"fixes": (parse_reading(FROM_T2D),)},
    f"--fix-reading {FROM_D2T}": {"fixes": (parse_reading(FROM_D2T),)},
    **{f"--fix-reading {TABLE_ROWS}={value}": {"fixes": ((TABLE_ROWS, value),)} for value in LATE},
}


@with_keywords
@share_loaded_targets()
def diagnose(
    source: StrPath,
    target: StrPath | TargetChoice | None = None,
    options: DiagnoseOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
    **fields: "Unpack[DiagnoseFields]",
) -> eaglectl.Diagnosis:
    """Find why acceptance is low: the file, the engine, the target, the prompts or the training.

    Runs the cheapest checks first, and stops at the first cause that is shown. Raises UsageError for options
    that contradict each other, UnreadableError if the target or the prompts are missing.
    """
    source, options = os.fspath(source), options or DiagnoseOptions()
    _check_diagnosis(options)
    target = as_target(runnable_target(source, as_target(target), options.answers, "diagnose").place)
    on_progress = StagedWork(on_progress, "diagnose", STAGES)
    questions = measured_questions(source, target, options.answers, options.measuring, on_progress)
    looks = Looks(
        source, options.deployment.of(target), replace(options, answers=questions.answers), on_progress
    )
    steps = {"reference": looks.reference, "engine": looks.engine, "measured": looks.prompts}
    diagnosis = find_cause(
        CAUSES, looks.start(), lambda phase, evidence: steps[phase](evidence), source, str(target.text)
    )
    return replace(diagnosis, measured=questions.measured)


def _check_diagnosis(options: DiagnoseOptions) -> None:
    # raise UsageError for options that contradict each other, before anything is loaded
    check_numbers(options)
    check(
        (
            options.expected is not None and not 1 < options.expected <= options.k + 1,
            f"--expected {options.expected or 0:g}: an acceptance length above 1 and up to {options.k + 1}"
            " (k + 1) was expected",
            ("--expected",),
        )
    )
    choose_prompts(options.prompts, options.sample, options.seed)
    runner, name = options.run_in, options.engine and options.engine.engine
    engine = options.engine and options.engine.text
    check(
        (
            name not in (None, *INSTALLED),
            f"--engine {engine}: vllm or sglang was expected",
            ("--engine",),
        ),
        (
            options.engine and len(options.engine.places) > 1,
            f"--engine {engine} names several releases; pass the one in which acceptance is low, like"
            f" {options.engine and options.engine.labels[-1]}",
            ("--engine",),
        ),
        (
            runner not in (None, "reference", *INSTALLED) and not is_server(str(runner)),
            f"--run-in {runner}: vllm, sglang, reference or a server's URL was expected",
            ("--run-in",),
        ),
        (
            runner not in (None, "reference", name) and name is not None,
            f"--run-in {runner} and --engine {engine} name different engines; leave one of them out",
            ("--run-in",),
        ),
    )


class Looks(Struct, frozen=True):
    """The phases of a diagnosis; each returns the evidence with its results added."""

    source: str
    target: TargetChoice
    options: DiagnoseOptions
    on_progress: OnProgress | None

    def start(self) -> Evidence:
        """Return the evidence of reading the files."""
        options, runner = self.options, self.options.run_in or ""
        engine = options.engine or (usual_release(runner) if runner in INSTALLED else None)
        name = "server" if is_server(runner) else None
        if engine is not None:
            name = engine.engine
        judging = ValidateOptions(
            target=self.target,
            engines=(engine,) if engine else (),
            answers=options.answers,
            policy=Policy(),
            fail_on="error",
            has_engines=engine is not None,
        )
        evidence = Evidence(
            validate(self.source, judging),
            self._commands(),
            engine_name=name,
            expected=options.expected,
            as_stored=self._as_stored(judging) if name is None else (),
        )
        commands = {**evidence.commands, **self._repairs(evidence, judging)}
        with suppress(EaglectlError):  # a conversion for the engine, if it is possible and changes anything
            plan = None if name is None else convert(self.source, None, self._converting(name, True)).plan
            if name and plan and (plan.changes or any(step.action != "kept" for step in plan.steps)):
                commands["convert"] = self._command("convert", "--for", layout_for(name))
        return replace(evidence, commands=commands)

    def _as_stored(self, judging: ValidateOptions) -> tuple[Verdict, ...]:
        """Return the newest releases that do not run the stored file, if no engine is requested."""
        # by headers: tensor values are validated already
        report = validate(self.source, replace(judging, has_engines=True, headers_only=True))
        return tuple(verdict for verdict in report.releases if verdict.outcome.is_known_wrong)

    def _converting(self, engine: str, dry_run: bool = False) -> ConvertOptions:
        return ConvertOptions(
            layout_for(engine),
            target=self.target,
            answers=self.options.answers,
            dry_run=dry_run,
            measure=None,
        )

    def _repairs(self, evidence: Evidence, judging: ValidateOptions) -> dict[str, str]:
        """Return commands that repair errors in the file, by name; each was run, or is one of a choice."""
        errors = {finding.rule.name: finding for finding in evidence.serving_errors(of_target=False)}
        if set(errors) == {CONTRADICTION}:
            offered = errors[CONTRADICTION].repair.values("--fix-reading")
            readings = (reading for reading in (FROM_T2D, FROM_D2T) if reading in offered)
            return {reading: self._command("convert", "--fix-reading", reading) for reading in readings}
        if not errors:
            return {}
        options, words = self._converting(evidence.engine_name or ""), list[str]()
        with scratch_folder() as folder, suppress(EaglectlError):
            try:
                convert(self.source, folder / "repaired", options)
            except EaglectlError as refusal:
                named = [option for option in refusal.options if option in REPAIRS]
                if len(named) != 1 or "--source-semantics" in refusal.options:
                    raise  # no single option repairs it
                convert(self.source, folder / "repaired", replace(options, **REPAIRS[named[0]]))
                words = shell.split(named[0])
            # the answers are about the source; the output states them
            after = validate(folder / "repaired", replace(judging, answers=Answers()))
            if set(errors) <= {rule.name for rule in after.passed}:
                return {"fix": self._command("convert", "--for", str(options.layout), *words)}
        return {}

    def reference(self, evidence: Evidence) -> Evidence:
        """Run the probe's readings, and search other aux layers unless a reading of another kind is better.

        Layers that are off by one can be better than the stated ones without being the trained ones.
        """
        try:
            report = self._smoke("reference", probe="sensitivity")
        # UsageError: a question about the file, or prompts that do not fit the target
        except (RefusedError, UsageError, UnreadableError) as error:
            return evidence.without("reference", error)
        evidence = replace(evidence, reference=report)
        best = report.probed.best if report.probed else None
        if best is None or best.is_of_layers:
            prompts = report.choice.prompts if report.choice else ()
            options, target = self._smoke_options("reference"), self.target.on_disk()
            runs = Runs("reference", target, prompts, options, self.on_progress)
            try:
                with runs.job(on_disk(self.source)) as job:
                    evidence = replace(evidence, layers=search_layers(job, report.run.results))
            except (UnreadableError, UsageError) as error:
                evidence = evidence.without("layers", error)
        layers = evidence.layers.found if evidence.layers else None
        repairs = {
            name: repair_command(self.source, self.target, self.options.answers, variant)
            for name, variant in (("repair", best), ("layers", layers))
            if variant is not None
        }
        if (variant := open_reading(evidence)) and report.choice:
            needed = variant.prompts_needed or 2 * report.measured.prompts
            line = self._with_more_prompts(needed, report.choice.total)
            repairs |= {"more": line} if line else {}
        return replace(evidence, commands={**evidence.commands, **repairs})

    def _with_more_prompts(self, needed: int, total: int) -> str:
        """Return the command of this diagnosis with `needed` prompts, from the user's file or a shipped one.

        The user's file has `total` prompts. "" if no file has enough.
        """
        files, declared = {self.options.prompts: total}, options_of(DiagnoseOptions)
        files |= {
            file: choose_prompts(file).total for file in (None, str(MORE_PROMPTS), str(FURTHER_PROMPTS))
        }
        place = next((file for file, count in files.items() if count >= needed), "")
        if place == "":
            return ""
        words = [] if place is None else ["--prompts", as_path(place)]
        words += ["--sample", str(needed)] if needed < files[place] else []
        for name in ("engine", "run_in", "max_tokens", "temperature", "expected", "base_target"):
            if (value := getattr(self.options, name)) != declared[name].default:
                words += [declared[name].flag, without_secrets(str(getattr(value, "text", value)))]
        return self._command("diagnose", *words)

    def engine(self, evidence: Evidence) -> Evidence:
        """Run the requested engine, or the server."""
        engine, name, runner = self.options.engine, evidence.engine_name, self.options.run_in
        if name is None:
            return evidence
        try:
            if runner == "reference":
                raise UnreadableError(f"--run-in {runner} runs no engine", options=("--run-in",))
            if name == "server":
                # the target has run here already
                return replace(evidence, engine=self._smoke(str(runner), compare_files=True))
            installed = installed_release(ENGINES[name])
            if engine and engine.text != name and installed and installed not in engine.releases:
                here = f"{name} {installed} is installed here"
                raise UnreadableError(f"{engine.text} was requested, and {here}")
            return replace(evidence, engine=self._smoke(name))
        except EaglectlError as error:
            return evidence.without("engine", error)

    def prompts(self, evidence: Evidence) -> Evidence:
        """Run with the user's temperature and the chat template, if these can be the cause."""
        drafter = inspect(self.source, target=self.target, answers=self.options.answers).drafter
        chats, config = self._as_chats(), self.target.config or {}
        temperature, base = self.options.temperature, self.options.base_target
        evidence = replace(
            evidence,
            is_target_quantised=any(part.get("quantization_config") for part in (config, text_part(config))),
            has_own_embedding="embed_tokens.weight" in drafter.tensors,
            sampled=self._smoke("reference", temperature) if temperature > 0 else None,
        )
        if base is not None:
            try:
                evidence = replace(evidence, base=self._smoke("reference", target=as_target(base)))
            except (RefusedError, UsageError, UnreadableError) as error:
                evidence = evidence.without("base", error)
        if not chats or not evidence.may_be_low:
            return evidence
        # prompts can be too long with the template; the diagnosis reports it
        with scratch_folder() as folder, suppress(EaglectlError):
            path = folder / "prompts.jsonl"
            path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
            return replace(evidence, templated=self._smoke("reference", prompts=path, sample=None))
        return evidence

    def _smoke(
        self, engine: str, temperature: float = 0.0, *, target: TargetChoice | None = None, **fields: Any
    ) -> SmokeReport:
        options = replace(self._smoke_options(engine), temperature=temperature, **fields)
        return smoke_drafts(self.source, target or self.target, options, self.on_progress, is_brief=True)

    def _smoke_options(self, engine: str) -> SmokeOptions:
        # a server loads the target itself, and does not take the option
        trust = self.options.trust_remote_code and not is_server(engine)
        return self.options.passed_to(SmokeOptions, run_in=engine, temperature=0.0, trust_remote_code=trust)

    def _command(self, verb: str, *words: str) -> str:
        return command(verb, self.source, *words, target=self.target, answers=self.options.answers)

    def _commands(self) -> dict[str, str]:
        # the commands that a cause's advice names, each with the options of this call
        options, prompts = self.options, list[str]()
        if options.prompts is not None:
            prompts = ["--prompts", as_path(str(options.prompts))]
        run = ["--run-in", "reference", *prompts]
        values = {"--engine": options.engine and options.engine.text, "--run-in": options.run_in}
        engine = [word for option, value in values.items() if value for word in (option, value)]
        return {
            "diagnose": self._command("diagnose", *engine, *prompts),
            "validate": self._command("validate"),
            "inspect": self._command("inspect"),
            "smoke": self._command("smoke", *run),
            "probe": self._command("smoke", *run, "--probe", "drift"),
            "rewrite": self._command("convert"),
        }

    def _as_chats(self) -> Sequence[dict[str, Any]]:
        """Return plain prompts as users' messages; none if there are others or the target has no template."""
        options = self.options
        prompts = choose_prompts(options.prompts, options.sample, options.seed).prompts
        is_plain = all(prompt.text and not prompt.is_chat for prompt in prompts)
        if not is_plain or not has_chat_template(self.target.on_disk(has_weights=False).folder):
            return ()
        return [{"prompt": prompt.text, "set": prompt.set, "chat": True} for prompt in prompts]
