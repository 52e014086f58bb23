"""Engines as users name them (`vllm`, `vllm>=0.22`, `sglang==0.5.23`), and the commands that start them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from eaglectl import shell
from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.engines import llamacpp, sglang, vllm
from eaglectl.engines.behaviour import (
    DRAFT_TOKENS,
    CapturedLayers,
    StartOption,
    capture,
    judged_unversioned,
    unversioned,
    unversioned_behaviour,
)
from eaglectl.engines.engine import NO_RESULTS, Engine, RuleResults, Verdict
from eaglectl.engines.targets import as_seen, needs_own_code, read_captures
from eaglectl.engines.view import View
from eaglectl.errors import OutdatedError, UsageError
from eaglectl.files.checkpoint import Checkpoint, hub_name
from eaglectl.files.source import split_folder
from eaglectl.options import Option
from eaglectl.verdicts import ServedAs

# why a release is judged by default
NEWEST, INSTALLED = "newest known", "installed here"
# the most characters of a path
LONGEST_PATH = 4096
# for engines whose releases eaglectl does not follow: their lists of targets were not read
TARGETS_UNREAD = "its targets were not looked at"
SETTLED_BY_A_RUN = "start it with the drafter, and smoke --run-in http://127.0.0.1:8080 measures it"
# for a release without data; the placeholder is the engine's name
MEASURE = "let smoke --run-in {} measure the installed one"
UPDATE = f"update eaglectl, or {MEASURE}"


class EngineRequest(Struct, frozen=True):
    """One engine and the releases requested, newest last.

    `why` is the reason for judging it by default. `unknown` is an installed release without data. `text` is
    the request as given, `outdated` the reason why none of its releases is known. `runner` is the model
    runner that the release uses here, where an engine that has started tells it.
    """

    engine: str
    releases: tuple[str, ...]
    why: str = ""
    unknown: str = ""
    text: str = ""
    outdated: str = ""
    runner: str = ""

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The engine with each release to judge; "" if its releases are not followed."""
        releases = tuple(filter(None, (*self.releases, self.unknown))) or ("",)
        return tuple((self.engine, release) for release in releases)

    @property
    def labels(self) -> tuple[str, ...]:
        """Its releases as requirements: "vllm==0.33.0"."""
        return tuple("==".join(filter(None, place)) for place in self.places)


ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, llamacpp.ENGINE)
}


def usual_release(engine: str) -> EngineRequest:
    """Return the release of an engine that is installed here, else the newest known."""
    installed, releases = installed_release(ENGINES[engine]), ENGINES[engine].releases
    if installed is not None and installed not in releases:
        return EngineRequest(engine, (), unknown=installed, text=engine)
    return EngineRequest(engine, releases[-1:] if installed is None else (installed,), text=engine)


def parse_engine(text: str) -> EngineRequest:
    """Return the engine and releases that `text` names; a bare name is the installed or else the newest one.

    A local or post release counts as its base release. Raises UsageError with the nearest names, and
    UnreadableError for releases without data.
    """
    if text in ENGINES:  # packaging takes as long to load as all of eaglectl
        return usual_release(text)
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise UsageError(f"--engine {text}: {_spelling(text)}", options=("--engine",)) from None
    name, specifier = requirement.name.lower(), requirement.specifier
    if name in unversioned()["engines"]:
        if specifier:
            raise UsageError(
                f"--engine {text}: releases of {name} are not followed; write {name}", options=("--engine",)
            )
        return EngineRequest(name, (), text=name)
    if name not in ENGINES:
        raise UsageError(f"--engine {text}: {_spelling(text)}", options=("--engine",))
    if not specifier:
        return usual_release(name)
    # of one exact version, the release that it is of
    exact, releases = re.fullmatch(r"===?([^,*]+)", str(specifier)), ENGINES[name].releases
    base_release = known_release(ENGINES[name], exact[1]) if exact else ""
    if matching := tuple(release for release in releases if release == base_release or release in specifier):
        return EngineRequest(name, matching, text=text)
    span = f"{name} is known from {' to '.join(dict.fromkeys((releases[0], releases[-1])))}"
    # what lies before the first known release is in no newer eaglectl
    requested = (Version(part.version.removesuffix(".*")) for part in specifier if part.operator != "===")
    is_early = max(requested, default=Version("0")) < Version(releases[0])
    advice = (MEASURE if is_early else UPDATE).format(name)
    raise OutdatedError(f"--engine {text}: no known release fits; {span}; {advice}", options=("--engine",))


ENGINE = Option(
    "An engine or release: vllm, 'vllm>=0.22', sglang==0.5.23. Can be repeated.",
    "--engine",
    value="ENGINE",
    complete="engines",
    read=parse_engine,
)


def read_engine(text: str) -> EngineRequest:
    """Parse an engine as `parse_engine` does; a release without data gives an outdated request."""
    try:
        return parse_engine(text)
    except OutdatedError as error:
        return EngineRequest(text, (), text=text, outdated=str(error))


def requested_places(requests: Iterable[EngineRequest]) -> tuple[tuple[str, str], ...]:
    """Return each requested engine and release once: engines in the order named, newest releases last."""
    places = dict.fromkeys(place for request in requests for place in request.places)
    names = [*dict.fromkeys(engine for engine, _ in places)]

    def order(place: tuple[str, str]) -> tuple[int, int]:
        releases = ENGINES[place[0]].releases if place[0] in ENGINES else ()
        return names.index(place[0]), releases.index(place[1]) if place[1] in releases else len(releases)

    return tuple(sorted(places, key=order))


def known_release(engine: Engine, version: str) -> str:
    """Return the release of a version: itself if known, else without its local part or `.postN`."""
    public = version.partition("+")[0]
    base = re.sub(r"\.post\d+$", "", public)
    return base if public not in engine.releases and base in engine.releases else public


def every_release(engine: str) -> EngineRequest:
    """Return a request for all known releases of an engine."""
    return EngineRequest(engine, ENGINES[engine].releases)


def default_requests() -> tuple[EngineRequest, ...]:
    """Return requests for the installed release of each engine, and the newest of the default ones."""
    requests = []
    for name, engine in ENGINES.items():
        newest, installed = engine.releases[-1] if engine.is_default else None, installed_release(engine)
        if installed is not None and installed != newest:
            releases = (installed,) if installed in engine.releases else ()
            requests.append(EngineRequest(name, releases, INSTALLED, "" if releases else installed))
        if newest is not None:
            why = f"{NEWEST}, {INSTALLED}" if newest == installed else NEWEST
            requests.append(EngineRequest(name, (newest,), why))
    return tuple(requests)


def installed_release(engine: Engine) -> str | None:
    """Return the release of an engine in this environment, without importing it; None if absent."""
    if find_spec(engine.package) is None:
        return None
    from importlib.metadata import PackageNotFoundError, version  # late: it takes long to load

    for name in engine.distributions:
        with suppress(PackageNotFoundError):
            return known_release(engine, version(name))
    return None


def _spelling(text: str) -> str:
    if "://" in text:
        return "pass a running server with --run-in; --engine names an engine and release to judge"
    names = (*ENGINES, *sorted(unversioned()["engines"]))
    written = re.match(r"[A-Za-z._-]*", text.strip())
    near = get_close_matches(written[0].strip("-_").lower() if written else "", names, 3, 0.5)
    advice = f"near it: {', '.join(near)}" if near else f"engines are {', '.join(names)}"
    return f'{advice}; releases are written as vllm, "vllm>=0.22" or sglang=={sglang.RELEASE}'


def aux_readings(config: Mapping[str, Any], target: Target) -> Mapping[str, CapturedLayers]:
    """Return the layers that each runner of the newest releases captures, by the runner's label."""
    newest = [(engine, engine.releases[-1]) for engine in ENGINES.values()]
    behaviours = [(engine.behaviour(last), as_seen(engine.name, last, target)) for engine, last in newest]
    behaviours += [(unversioned_behaviour(name), target) for name in judged_unversioned()]
    return {
        runner.label: capture(runner, config, seen)
        for behaviour, seen in behaviours
        for runner in reversed([*behaviour.runners.values()])
    }


def view_for(
    engine: str,
    drafter: Drafter,
    config: Mapping[str, Any],
    flat: Mapping[str, Any],
    names: tuple[str, ...],
    target: Mapping[str, Any] | None = None,
    files: Checkpoint | None = None,
    *,
    runner: str = "",
) -> View:
    """Return a checkpoint as `engine` reads it.

    `flat` is the config with its producer's nesting undone, `target` the target's.
    """
    return View(drafter, config, ENGINES[engine].reads(config, flat), names, target or {}, files, runner)


def launch_commands(
    drafter: Drafter,
    path: str,
    tokens: int = DRAFT_TOKENS,
    revision: str | None = None,
    target_text: str | None = None,
) -> Mapping[str, str]:
    """Return the command that serves the drafter, for each engine.

    `path` may be a Hub repository, and `revision` then one of its. `target_text` is the target as the user
    gave it; without it, the drafter's own is used, or TARGET if that is unknown.
    """
    name, target_revision = _served_target(target_text or drafter.target.name or "")
    target = name if _can_be_given(name) else "TARGET"
    revised = f" {shell.option('--revision', target_revision)}" if target_revision else ""
    deployed = _deployment(drafter.target)
    speculative: dict[str, Any] = {"method": "eagle3", "model": path, "num_speculative_tokens": tokens}
    speculative |= {} if revision is None else {"revision": revision}
    speculative |= {"parallel_drafting": True} if drafter.kind == "peagle" else {}
    commands = {
        "vllm": (
            f"vllm serve {shell.quote(shell.as_path(target))}{revised}{deployed}"
            f" --speculative-config {shell.quote(json.dumps(speculative))}"
        ),
        "sglang": (
            f"python -m sglang.launch_server {shell.option('--model-path', target)}{revised}{deployed}"
            f" --speculative-algorithm EAGLE3 {shell.option('--speculative-draft-model-path', path)}"
            f" --speculative-num-steps {tokens} --speculative-eagle-topk 1"
            f" --speculative-num-draft-tokens {tokens + 1}"
            f"{_sglang_options(drafter, revision)}"
        ),
        "llama.cpp": llama_server("DRAFTER.gguf", tokens),
    }
    # the newest release of some engine captures states of the target, or nothing names its kind
    newest = (read_captures(name, engine.releases[-1], drafter.target) for name, engine in ENGINES.items())
    is_captured = any(reading is None or reading.captures == "captures" for reading in newest)
    # the others' releases have no verdict, which would carry a doubt about the drafter or the target
    for name in unversioned()["engines"] if is_captured and not drafter.unsettled else ():
        if option := _layers_option(name, drafter):
            commands[name] = f"{option}  # {TARGETS_UNREAD}"
    return commands


def _deployment(target: Target) -> str:
    """Return the options that vLLM and SGLang both have, for the target's own code and its GPUs."""
    sizes = {
        "--tensor-parallel-size": target.tensor_parallel,
        "--pipeline-parallel-size": target.pipeline_parallel,
    }
    code = " --trust-remote-code" if target.trusts_code or needs_own_code(target) else ""
    return code + "".join(f" {name} {size}" for name, size in sizes.items() if size)


def _sglang_options(drafter: Drafter, revision: str | None) -> str:
    options: dict[str, str | None] = {"--speculative-draft-model-revision": revision}
    if drafter.target.is_quantised and drafter.quantisation is None:
        # a --quantization for the target, which many commands have, would be the drafter's too
        options["--speculative-draft-model-quantization"] = "unquant"
    return "".join(f" {shell.option(name, value)}" for name, value in options.items() if value is not None)


def _can_be_given(path: str) -> bool:
    return 0 < len(path) <= LONGEST_PATH and shell.can_type(path)


def _layers_option(engine: str, drafter: Drafter) -> str:
    """Return the launch option that selects the drafter's layers by output; "" if it cannot."""
    option, boundaries = unversioned()["engines"][engine].get("layers_option", ""), drafter.aux.boundaries
    if not option or not boundaries or boundaries[0] == 0:
        return ""
    return f"{option}: {{{', '.join(str(boundary - 1) for boundary in boundaries)}}}"


def unfollowed_verdict(
    engine: str, drafter: Drafter, flat: Mapping[str, Any], results: RuleResults = NO_RESULTS
) -> Verdict:
    """Judge a drafter for an engine without followed releases; none is known to serve as trained."""
    reasons, option = [text for _, text in results.errors], _layers_option(engine, drafter)
    if engine in judged_unversioned() and not option:
        runners = unversioned_behaviour(engine).runners.values()
        layers = [capture(runner, flat, drafter.target) for runner in runners]
        reasons += [
            f"captures {captured.words}" for captured in layers if captured.same_as(drafter.aux) is False
        ]
    if reasons:
        rules = tuple(rule for rule, _ in results.errors if rule)
        return Verdict(engine, "", ServedAs.DIFFERS, tuple(dict.fromkeys(reasons)), rules)
    first = f"{TARGETS_UNREAD}; needs {option}" if option else "read, not judged"
    return Verdict(engine, "", ServedAs.UNKNOWN, (f"{first}; {SETTLED_BY_A_RUN}",))


def _served_target(text: str) -> tuple[str, str | None]:
    # what engines call a target, and its revision: a folder in the place of its config.json
    if text.endswith("/config.json") or text == "config.json":
        return text.removesuffix("config.json").rstrip("/") or ".", None
    return (text, None) if split_folder(text)[1] else hub_name(text) or (text, None)


def as_served(
    commands: Mapping[str, str], verdicts: Sequence[Verdict], *, is_sound: bool = True
) -> Mapping[str, str]:
    """Return the commands, with options, of engines whose newest judged release runs the drafter as trained.

    Engines without a verdict are kept if the files have no error (`is_sound`), as their aux layers are an
    option of serving.
    """
    newest = {verdict.engine: verdict for verdict in verdicts}
    is_served = {engine: verdict.outcome.is_served for engine, verdict in newest.items()}
    return {
        engine: started(text, newest[engine].options if engine in newest else ())
        for engine, text in commands.items()
        if is_served.get(engine, is_sound)
    }


def started(command: str, options: Iterable[StartOption]) -> str:
    """Return a command that starts an engine, with options that the checkpoint needs."""
    return " ".join([command, *(shell.option(option.name, option.value) for option in options)])


def llama_server(drafter: str, tokens: int = DRAFT_TOKENS, target: str = "TARGET.gguf") -> str:
    """Return the command that serves a drafter's GGUF file with draft metrics; `target` is the target's."""
    return (
        f"llama-server --model {shell.quote(target)} --model-draft {shell.quote(drafter)}"
        f" --spec-type draft-eagle3 --spec-draft-n-max {tokens} --metrics"
    )


def output_commands(
    drafter: Drafter,
    folder: str,
    target: str | None,
    tokens: int = DRAFT_TOKENS,
    revision: str | None = None,
) -> Mapping[str, str]:
    """Return the command that serves a folder or a Hub repository, for each engine of ENGINES.

    For llama.cpp, it first converts the folder to a GGUF file.
    """
    file, model = f"{folder}.gguf", _served_target(target or "")[0]
    is_folder = _can_be_given(model) and not hub_name(target or "")
    convert = (
        f"python convert_hf_to_gguf.py {shell.quote(shell.as_path(folder))}"
        f" {shell.option('--target-model-dir', model if is_folder else 'TARGET')}"
        f" {shell.option('--outfile', file)}"
    )
    commands = launch_commands(drafter, folder, tokens, revision, target)
    served = {**commands, "llama.cpp": f"{convert} && {llama_server(file, tokens)}"}
    return {engine: served[engine] for engine in ENGINES}
