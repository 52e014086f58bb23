"""Completion in bash, zsh and fish: what is offered as values of options and arguments, and the scripts.

A script asks `eaglectl` how a line goes on as typer's script of fish does: a value a line, with its help
behind a tab. typer's own scripts lose what bash splits at `=` and `:`, and what follows `--option=`. Names of
files are the shell's to complete and to quote: nothing that is answered comes from a disk.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from eaglectl.errors import UsageError
from eaglectl.terminal import emit


def offering(kind: str) -> Callable[[str], list[str]]:
    """Return the function that lists, for typer, the values of a kind, or of a text like "on|off".

    It leaves out what begins otherwise than was typed. Files and folders are offered by the shell itself.
    """

    def complete(_: str) -> list[str]:
        return list(_values(kind))

    return complete


def _values(kind: str) -> Iterable[str]:
    # the values of a kind that an option declares with `complete`; a text like "on|off" is its own list
    match kind:
        case "engines" | "every engine":
            return _engines(has_releases=kind == "engines")
        case "runners":
            return ("vllm", "sglang", "reference", "http://")
        case "rules":
            from eaglectl.judge.rule import rules

            return (name for rule in rules() for name in (rule.id, rule.name))
        case "layouts" | "semantics" | "readings":
            return _of_formats(kind)
        case "formats" | "outputs":
            from eaglectl.report.outputs import FORMATS

            return FORMATS if kind == "formats" else (f"{name}=" for name in FORMATS)
    return kind.split("|") if "|" in kind else ()


def _of_formats(kind: str) -> Iterable[str]:
    from eaglectl.conversion.readings import READINGS
    from eaglectl.formats.catalogue import FORMATS
    from eaglectl.formats.reader import known_semantics

    match kind:
        case "layouts":
            return (format.name for format in FORMATS if format.layout)
        case "readings":
            return (f"{key}=" for key in READINGS)
    return (f"{key}={value}" for key, values in known_semantics().items() for value in values or ("",))


def _engines(*, has_releases: bool) -> Iterator[str]:
    # with releases: what commands that judge take for --engine; without: the pages of `engines`, which has
    # some on engines whose releases are not followed too
    from eaglectl.engines.behaviour import unversioned
    from eaglectl.engines.registry import ENGINES

    for name, engine in ENGINES.items():
        yield name
        if has_releases:
            yield from (f"{name}=={release}" for release in reversed(engine.releases))
    if not has_releases:
        yield from unversioned()["engines"]


ASK = "env _EAGLECTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args"
BASH = r"""# in ~/.bashrc: eval "$(eaglectl --show-completion bash)"
_eaglectl_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" before="" reply
    local typed="${line##*[[:space:]]}"
    [[ $typed == --*=* ]] && typed="${typed#*=}"
    # bash replaces what follows the last = or : alone, outside of quotes
    [[ $typed != [\'\"]* && $COMP_WORDBREAKS == *=* ]] && before="${typed%"${typed##*[=:]}"}"
    COMPREPLY=()
    while IFS= read -r reply; do
        [[ $reply ]] && COMPREPLY+=("${reply#"$before"}")
    done < <(ASK _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null | cut -f 1)
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _eaglectl_completion eaglectl
""".replace("ASK", ASK)
ZSH = f"""\
# in ~/.zshrc, behind compinit: eval "$(eaglectl --show-completion zsh)"
_eaglectl() {{
    local line value
    local -a values shown open open_shown
    for line in "${{(@f)$({ASK} _TYPER_COMPLETE_ARGS="${{words[1,CURRENT]}}" "$words[1]" 2>/dev/null)}}"; do
        value="${{line%%$'\\t'*}}"
        [[ -n $value ]] || continue
        if [[ $value == *= ]]; then
            open+=("$value") open_shown+=("${{line/$'\\t'/  }}")
        else
            values+=("$value") shown+=("${{line/$'\\t'/  }}")
        fi
    done
    compset -P '--[a-z0-9-]##='
    if (( $#values + $#open == 0 )); then
        _files
        return
    fi
    compadd -l -d shown -a values
    compadd -l -S '' -d open_shown -a open
}}
compdef _eaglectl eaglectl
"""
FISH = f"""\
# in ~/.config/fish/config.fish: eaglectl --show-completion fish | source
function __eaglectl_complete
    set -l typed (commandline -ct)
    set -l before (string match -r -- '^--[a-z0-9-]+=' $typed)
    for reply in ({ASK} _TYPER_COMPLETE_ARGS=(commandline -cp) eaglectl 2>/dev/null)
        test -n "$reply"; and echo -- "$before$reply"
    end
end
complete --command eaglectl --arguments '(__eaglectl_complete)'
"""
SCRIPTS: Mapping[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def show_completion(word: str) -> None:
    """Print the script of the shell `word`, by default the one of $SHELL. Raises UsageError for another."""
    shell, shells = word or Path(os.environ.get("SHELL", "")).name, ", ".join(SCRIPTS)
    if shell not in SCRIPTS:
        option = f"--show-completion {word}" if word else "--show-completion, and SHELL names none"
        raise UsageError(
            f"{option}: a shell of {shells} was expected: `eaglectl --show-completion bash`",
            options=(option,),
        )
    emit(SCRIPTS[shell].rstrip("\n"))
