"""Completion in the shell: the scripts that `--install-completion` writes for bash and zsh, instead of typer's.

Typer's script for bash passes words as readline splits them, also at `@` and `=`: `run@<TAB>` completes nothing. The
one for zsh evaluates the help texts. Both add a space after `optim.learning_rate=`.
"""

from __future__ import annotations

import os

_ASK = (
    '(env _TYPER_COMPLETE_ARGS="{line}" _TYPER_COMPLETE_FISH_ACTION=get-args '
    "%(autocomplete_var)s=complete_fish %(prog_name)s)"
)
# The output for fish is one line per completion, with its help after a tab. In the scripts %% means %.
_BASH = f"""
%(complete_func)s() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" kept="" word reply index
    word="${{line##*[[:space:]]}}"
    # Only what follows the last of the characters that break words is replaced.
    for ((index = ${{#word}}; index > 0; index--)); do
        if [[ $COMP_WORDBREAKS == *"${{word:index-1:1}}"* ]]; then
            kept="${{word:0:index}}"
            break
        fi
    done
    COMPREPLY=()
    while IFS= read -r reply; do
        reply="${{reply%%%%$'\\t'*}}"
        [[ -n $reply ]] && COMPREPLY+=("${{reply#"$kept"}}")
    done < <{_ASK.format(line="$line")}
    [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace
    return 0
}}

complete -o default -F %(complete_func)s %(prog_name)s
"""

_ZSH = f"""
#compdef %(prog_name)s

%(complete_func)s() {{
    local -a whole begun
    local value about
    while IFS=$'\\t' read -r value about; do
        [[ -z $value ]] && continue
        if [[ $value == *= ]]; then
            begun+=("${{value//:/\\\\:}}:$about")
        else
            whole+=("${{value//:/\\\\:}}:$about")
        fi
    done < <{_ASK.format(line="${words[1,$CURRENT]}")}
    (( ${{#whole}} )) && _describe %(prog_name)s whole
    (( ${{#begun}} )) && _describe %(prog_name)s begun -S ''
    (( ${{#whole}} + ${{#begun}} )) && return
    # The value of a key may be a path.
    compset -P '*='
    _files
}}

compdef %(complete_func)s %(prog_name)s
"""


def use_own_scripts(*, shell_is_given: bool) -> None:
    """Make typer's `--install-completion` and `--show-completion` write these scripts.

    Args:
        shell_is_given: whether a shell follows the option; otherwise typer detects the one that runs this process.
    """
    from typer import _completion_shared

    if shell_is_given:
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    _completion_shared._completion_scripts.update(bash=_BASH, zsh=_ZSH)


def use_plain_help() -> None:
    """Show the help of a completion unchanged.

    Typer renders it with rich, if that is installed: markup in it is interpreted, and it is broken into lines of the
    terminal's width, each of which a shell takes for another completion.
    """
    from typer import _completion_classes

    _completion_classes._sanitize_help_text = lambda text: text
