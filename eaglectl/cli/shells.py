"""Completion in bash, zsh and fish: the script of each, and where it is installed.

A script asks `eaglectl` how a line goes on as typer's script of fish does: a value a line, with its help
behind a tab. typer's own scripts lose what bash splits at `=` and `:`, and what follows `--option=`.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.files import home_folder
from eaglectl.terminal import emit, say

ASK = "env _EAGLECTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args"
# a value is inserted as a shell reads it back: inside the quotes that are open, else with every character
# escaped that bash would act on
BASH = r"""_eaglectl_quote() {
    local text="" tilde="" letter place
    if [[ ! $1 ]]; then
        [[ $3 == "~"*/* && $2 =~ ^"~"[A-Za-z0-9._-]*/ ]] && tilde="$BASH_REMATCH"
        letter="${2#"$tilde"}"
        [[ $letter ]] && printf -v text %q "$letter"
        printf '%s' "$tilde$text"
        return
    fi
    for ((place = 0; place < ${#2}; place++)); do
        letter="${2:place:1}"
        case "$1$letter" in
            "''") text+="'\\''" ;;
            '"!') text+="\"'!'\"" ;;
            '"'[\"\\\$\`]) text+="\\$letter" ;;
            *) text+="$letter" ;;
        esac
    done
    # readline closes the quotes, but not behind their own character
    case "$1$letter" in
        "''") text="${text%?}" ;;
        '""') text+='"' ;;
    esac
    printf '%s' "$text"
}
_eaglectl_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" before="" quote="" letter reply place
    local typed="${line##*[[:space:]]}"
    for ((place = 0; place < ${#line}; place++)); do
        letter="${line:place:1}"
        if [[ $quote != "'" && $letter == "\\" ]]; then
            ((place++))
        elif [[ $letter == "$quote" ]]; then
            quote=""
        elif [[ ! $quote && $letter == [\'\"] ]]; then
            quote="$letter"
        fi
    done
    [[ $typed == --*=* ]] && typed="${typed#*=}"
    # bash replaces what follows the last = or : alone
    [[ ! $quote && $COMP_WORDBREAKS == *=* ]] && before="${typed%"${typed##*[=:]}"}"
    COMPREPLY=()
    while IFS= read -r reply; do
        [[ $reply ]] && COMPREPLY+=("$(_eaglectl_quote "$quote" "${reply#"$before"}" "$typed")")
    done < <(ASK _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null | cut -f 1)
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=/] ]] && compopt -o nospace
    return 0
}
complete -o default -F _eaglectl_completion eaglectl
""".replace("ASK", ASK)
ZSH = f"""\
#compdef eaglectl
_eaglectl() {{
    local line reply value before=""
    local -a values shown open open_shown
    for line in "${{(@f)$({ASK} _TYPER_COMPLETE_ARGS="${{words[1,CURRENT]}}" "$words[1]" 2>/dev/null)}}"; do
        value="${{line%%$'\\t'*}}"
        [[ -n $value ]] || continue
        reply="${{(q)value}}"
        [[ $value == '~/'* ]] && reply="~/${{(q)value#\\~/}}"
        [[ $compstate[quote] == "'" ]] && reply="${{${{(qq)value}}[2,-2]}}"
        [[ $compstate[quote] == '"' ]] && reply="${{${{(qqq)value}}[2,-2]}}"
        if [[ $value == (*=|*/) ]]; then
            open+=("$reply") open_shown+=("${{line/$'\\t'/  }}")
        else
            values+=("$reply") shown+=("${{line/$'\\t'/  }}")
        fi
    done
    if (( $#values + $#open == 0 )); then
        _files
        return
    fi
    compset -P '--[a-z0-9-]##='
    compadd -Q -l -d shown -a values
    compadd -Q -l -S '' -d open_shown -a open
}}
# a file of fpath is run at the first tab
if [[ $funcstack[1] == _eaglectl ]]; then _eaglectl "$@"; else compdef _eaglectl eaglectl; fi
"""
FISH = f"""\
function __eaglectl_complete
    set -l typed (commandline -ct)
    set -l before (string match -r -- '^--[a-z0-9-]+=' $typed)
    set -l replies ({ASK} _TYPER_COMPLETE_ARGS=(commandline -cp) eaglectl 2>/dev/null)
    if test -z "$replies"
        __fish_complete_path (string replace -- "$before" '' $typed)
        return
    end
    for reply in $replies
        echo -- "$before$reply"
    end
end
complete --command eaglectl --no-files --arguments '(__eaglectl_complete)'
"""
SCRIPTS: Mapping[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}
# the file of each script below the home folder, the file that a shell reads, and the line in it
PLACES: Mapping[str, tuple[str, str, str]] = {
    "bash": (".bash_completions/eaglectl.sh", ".bashrc", "source {}"),
    "zsh": (".zfunc/_eaglectl", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/eaglectl.fish", "", ""),
}


def complete(option: str, word: str) -> None:
    """Print (--show-completion) or install the script of the shell `word`, by default the one of $SHELL.

    Raises UsageError for another shell, UnreadableError where a file cannot be written.
    """
    shell = word or Path(os.environ.get("SHELL", "")).name
    known = ", ".join(SCRIPTS)
    if word and word not in SCRIPTS:
        raise UsageError(f"{option} {word}: one of {known} was expected, or nothing for the one in use")
    if shell not in SCRIPTS:
        raise UsageError(f"{option}: SHELL names none of {known}; name one: `eaglectl {option} bash`")
    if option == "--show-completion":
        emit(SCRIPTS[shell].rstrip("\n"))
        return
    try:
        path = _install(shell)
    except OSError as error:
        raise UnreadableError(
            f"{error.filename}: {error.strerror}; `eaglectl --show-completion {shell}` prints the script"
        ) from None
    say(f"completion of {shell} is in {path}; it works in the next shell that is started")


def _install(shell: str) -> Path:
    place, start, line = PLACES[shell]
    home = home_folder()
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPTS[shell], encoding="utf-8")
    line = line.format(shlex.quote(str(path)))
    if start:
        file = home / start
        before = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
        if line not in before.splitlines():
            separator = "" if before.endswith("\n") or not before else "\n"
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"{separator}{line}\n")
    return path
