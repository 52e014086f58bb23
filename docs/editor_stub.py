"""eaglectl/api/keywords.pyi: the options of each public function as keywords, for editors and mypy."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import eaglectl
from eaglectl.options import HIDDEN, Field, Options, fields, options_of

PAGE = Path(eaglectl.__file__).parent / "api/keywords.pyi"
HEAD = '''"""The options of each function as keywords. Written by `make docs` from the option records."""

'''
# types that a keyword takes beside its field's own
PATH = "eaglectl.options.StrPath"


def page() -> str:
    """The whole stub."""
    classes = [_class(name, options) for name, options in _functions()]
    body = "\n".join(classes)
    names = sorted({*re.findall(r"[\w.]+\.[A-Z]\w+", body)}, key=lambda name: name.rpartition("."))
    body = re.sub(r"(?:\w+\.)+([A-Z]\w+)", r"\1", body)
    modules: dict[str, list[str]] = {"typing": ["TypedDict"]}
    for name in names:
        module, _, item = name.rpartition(".")
        modules.setdefault(module, []).append(item)
    imports = [
        f"from {module} import {', '.join(sorted(modules[module]))}"
        for module in sorted(modules, key=lambda module: (module.startswith("eaglectl"), module))
    ]
    first_own = next(place for place, line in enumerate(imports) if line.startswith("from eaglectl"))
    return HEAD + "\n".join([*imports[:first_own], "", *imports[first_own:], "", body]).replace("'", '"')


def _functions() -> Iterator[tuple[str, Mapping[str, Field]]]:
    """Every public function that takes options as keywords, with these options by name."""
    for name in dir(eaglectl):
        function = getattr(getattr(eaglectl, name), "__wrapped__", None)
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            continue
        kinds = [
            kind
            for parameter in parameters.values()
            for kind in (parameter.annotation, *get_args(parameter.annotation))
            if isinstance(kind, type) and issubclass(kind, Options)
        ]
        options = {key: field for kind in kinds for key, field in options_of(kind).items()}
        # a record of several options is a keyword too
        options |= {field.name: field for kind in kinds for field in fields(kind) if field.record}
        yield name, {key: field for key, field in options.items() if key not in parameters}


def _class(name: str, options: Mapping[str, Field]) -> str:
    title = "".join(word.capitalize() for word in name.split("_"))
    rows = [f"    {key}: {_accepted(field)}" for key, field in options.items()]
    return "\n".join([f"class {title}Fields(TypedDict, total=False):", *rows, ""])


def _accepted(field: Field) -> str:
    """The type of the values that a keyword takes: the field's own, and the texts that are read as one."""
    kind = _name(field.kind)
    literal = ", ".join(f'"{choice}"' for choice in field.option.choices)
    if field.option is HIDDEN:
        accepted = kind
    elif field.record is not None and not field.option.read:
        accepted = f"bool | {kind}"
    elif field.is_mapping:
        accepted = f"str | collections.abc.Sequence[str] | {kind}"
    elif inner := re.fullmatch(r"tuple\[(.+), \.\.\.\]", kind):
        item = inner[1] if inner[1] in ("str", "int") else f"str | {inner[1]}"
        accepted = f"{'str | ' * (field.option.read is not None)}collections.abc.Sequence[{item}]"
    elif field.option.choices and field.kind is str:
        is_number = all(re.fullmatch(r"\d+(\.\d+)?", choice) for choice in field.option.choices)
        accepted = f"typing.Literal[{literal}]" + " | float" * is_number
    elif field.kind in (str, Path):
        accepted = PATH
    else:
        text = PATH if "." in kind and "Literal" not in kind else "str"
        accepted = f"{text} | {kind}" if field.option.read else kind
    return f"{accepted} | None" if field.is_optional else accepted


def _name(kind: Any) -> str:
    """A type as its full name."""
    text = inspect.formatannotation(kind) if isinstance(kind, type) else str(kind)
    text = re.sub(r"typing\.Union\[(.*)\]$", lambda match: match[1].replace("], ", "] | "), text)
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) and "." in text else text
