"""The names that Python code takes from an engine: imports, attributes, arguments, keys of answers, metrics.

What an import of the engine gives is the engine's, and so is what comes of it: attributes, items, results of
calls, loop variables, and parameters that are annotated Any or are given such values. Every attribute of them
counts, every text that they are asked by, and every key and keyword that they are called with.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum

from msgspec import Struct

# what torch's modules, parameters and tensors have, and no engine
TORCH = (
    *(
        "any",
        "clone",
        "contiguous",
        "copy_",
        "data",
        "detach",
        "device",
        "dtype",
        "fill_",
        "flatten",
        "float",
    ),
    *("is_floating_point", "isnan", "modules", "named_parameters", "numel", "parameters", "shape", "size"),
    *("tolist", "type", "weight"),
)
# what every value of Python has, or its lists, dicts and texts
PYTHON = (
    *("__init__", "__module__", "__name__", "append", "copy", "extend", "get", "items", "keys", "pop"),
    "update",
)
NOT_ENGINES = frozenset({*TORCH, *PYTHON})
# calls that give a plain value, and those that give a container of ours
PLAIN = ("bool", "float", "hasattr", "id", "int", "isinstance", "issubclass", "len", "repr", "str", "type")
CONTAINERS = ("dict", "enumerate", "filter", "list", "map", "reversed", "set", "sorted", "tuple", "zip")
# methods of engines that run a function of ours, and give what it gives
RUNNERS = ("collective_rpc",)
LOOKUPS = ("getattr", "hasattr", "setattr", "delattr")
SIMPLE = ("bool", "float", "int", "str", "Path", "bool | None", "int | None", "str | None")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Origin(IntEnum):
    """Whose a value is: ours, a container of ours with values of the engine in it, or the engine's."""

    OURS = 0
    HOLDER = 1
    ENGINE = 2


class Use(Struct, frozen=True, order=True):
    """A name that is taken from an engine, and where: file and line."""

    kind: str
    name: str
    place: str


class Scope:
    """The variables of a module or a function: whose they are, and what is assigned to each."""

    def __init__(self, module: str, parent: "Scope | None", class_: ast.ClassDef | None = None) -> None:
        self.module, self.parent, self.class_ = module, parent, class_
        self.origins: dict[str, Origin] = {}
        self.assigned: dict[str, list[ast.expr]] = {}
        self.items: dict[str, list[tuple[ast.expr, ast.expr]]] = {}
        self.loops: dict[str, list[tuple[ast.expr, int | None]]] = {}
        self.filled: set[str] = set()  # variables that values of the engine are put into

    def of(self, name: str) -> "Scope":
        """The scope in which a variable of this one is bound."""
        if self.parent is None or name in self.origins:
            return self
        return self.parent.of(name)


class Walk:
    """The uses of an engine's names in modules by path; `package` is the engine's own name."""

    def __init__(self, modules: Mapping[str, str], package: str) -> None:
        self.package = package
        self.trees = {path: ast.parse(text) for path, text in modules.items()}
        self.scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[tuple[str, str], Function] = {}
        self.calls: dict[Function, list[ast.Call]] = {}
        self.attributes: dict[str, Origin] = {}  # of objects of ours
        self.uses: set[Use] = set()
        self._passed: set[ast.AST] = set()
        self._imports: dict[str, dict[str, str]] = {}
        for path, tree in self.trees.items():
            self._enter(tree, Scope(path, None))
        while self._learn():
            pass
        for node in self.scopes:
            self._use(node)

    # scopes and variables

    def _enter(self, node: ast.AST, scope: Scope) -> None:
        """Note the scope of each node, and what binds its variables."""
        self.scopes[node] = scope
        self._bind(node, scope)
        inner = scope
        if isinstance(node, FUNCTIONS):
            self.functions[scope.module, node.name] = node
            inner = Scope(scope.module, scope, scope.class_)
            for parameter in parameters(node):
                inner.origins[parameter.arg] = Origin(2 * (annotation(parameter) == "Any"))
        elif isinstance(node, ast.ClassDef):
            inner = Scope(scope.module, scope, node)
        elif isinstance(node, COMPREHENSIONS):
            inner = Scope(scope.module, scope, scope.class_)
        for child in ast.iter_child_nodes(node):
            outside = isinstance(node, FUNCTIONS) and child in node.decorator_list
            self._enter(child, scope if outside else inner)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Any":
            for name in names_in(node.target):
                scope.origins[name] = self.attributes[name] = Origin.ENGINE
        match node:
            case ast.Import() | ast.ImportFrom():
                for full, name in imported(node):
                    scope.origins[name] = Origin(2 * self._is_engine_module(full))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, scope)
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._assign(target, value, scope)
            case _:
                self._bind_block(node, scope)

    def _bind_block(self, node: ast.AST, scope: Scope) -> None:
        """Note what a loop, a `with`, an `except`, a function or a class binds."""
        match node:
            case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
                self._assign_items(target, source, scope)
            case ast.withitem(optional_vars=target):
                for name in names_in(target):
                    scope.origins.setdefault(name, Origin.OURS)
            case ast.ExceptHandler(name=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                scope.origins.setdefault(name, Origin.OURS)

    def _assign(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        match target, value:
            case ast.Name(id=name), _:
                scope.origins.setdefault(name, Origin.OURS)
                scope.assigned.setdefault(name, []).append(value)
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for part, of in zip(targets, values, strict=True):
                    self._assign(part, of, scope)
            case ast.Subscript(value=ast.Name(id=name), slice=key), _:
                scope.items.setdefault(name, []).append((key, value))
            case ((ast.Tuple() | ast.List()), _):
                for name in names_in(target):
                    scope.origins.setdefault(name, Origin.OURS)

    def _assign_items(self, target: ast.expr, source: ast.expr, scope: Scope) -> None:
        for name in names_in(target):
            scope.origins.setdefault(name, Origin.OURS)
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for position, part in enumerate(parts):
            for name in names_in(part):
                place = position if isinstance(target, ast.Tuple) else None
                scope.loops.setdefault(name, []).append((source, place))

    def _is_engine_module(self, full: str) -> bool:
        return full.partition(".")[0] == self.package

    # whose a value is

    def _learn(self) -> bool:
        """Raise the origin of variables by what they are given; whether one was raised."""
        before = {scope: dict(scope.origins) for scope in self.scopes.values()}
        attributes = dict(self.attributes)
        for node, scope in self.scopes.items():
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._give(target, value, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._give(target, value, scope)
                case ast.NamedExpr(target=target, value=value) | ast.AugAssign(target=target, value=value):
                    self._give(target, value, scope)
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                    self._raise(target, Origin(2 * bool(self.origin(value))), scope)
                case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                    self._raise(target, self.origin(value), scope)
                case ast.Call():
                    self._give_parameters(node)
                case ast.FunctionDef(args=arguments) if self._is_method_of_engine(node) and arguments.args:
                    first = self.scopes[arguments.args[0]]
                    first.origins[arguments.args[0].arg] = Origin.ENGINE
        return attributes != self.attributes or any(before[scope] != scope.origins for scope in before)

    def _give(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for part, of in zip(targets, values, strict=True):
                    self._give(part, of, scope)
                return
        origin = self.origin(value)
        if isinstance(target, ast.Subscript):
            if origin and isinstance(target.value, ast.Name):
                self._fill(target.value, scope)
        elif isinstance(target, ast.Attribute):
            if origin and not self.origin(target.value):
                self.attributes[target.attr] = origin
        else:
            self._raise(target, Origin(2 * bool(origin)) if isinstance(target, ast.Tuple) else origin, scope)

    def _fill(self, variable: ast.Name, scope: Scope) -> None:
        scope.of(variable.id).filled.add(variable.id)
        self._raise(variable, Origin.HOLDER, scope)

    def _raise(self, target: ast.expr, origin: Origin, scope: Scope) -> None:
        for name in names_in(target):
            held = scope.of(name)
            held.origins[name] = max(held.origins.get(name, Origin.OURS), origin)

    def _give_parameters(self, call: ast.Call) -> None:
        if not (function := self._function(call.func)):
            return
        if call not in self.calls.setdefault(function, []):
            self.calls[function].append(call)
        for parameter, value in given(function, call):
            inner = self.scopes[parameter]
            held = inner.origins[parameter.arg]
            if self.origin(value) and annotation(parameter) not in SIMPLE:
                inner.origins[parameter.arg] = max(held, self.origin(value))
            if parameter.arg in inner.filled and isinstance(value, ast.Name):
                self._fill(value, self.scopes[value])

    def _is_method_of_engine(self, function: Function) -> bool:
        class_ = self.scopes[function].class_
        return class_ is not None and any(self.origin(base) for base in class_.bases)

    def _function(self, func: ast.expr) -> Function | None:
        """The function of ours that a name stands for."""
        if not isinstance(func, ast.Name):
            return None
        module = self.scopes[func].module
        return self.functions.get((module, func.id)) or self.functions.get(self._source(module, func.id))

    def _source(self, module: str, name: str) -> tuple[str, str]:
        """The module and the name there of what a module imports as `name`."""
        if module not in self._imports:
            nodes = [node for node in ast.walk(self.trees[module]) if isinstance(node, ast.ImportFrom)]
            self._imports[module] = {bound: full for node in nodes for full, bound in imported(node)}
        path, _, original = self._imports[module].get(name, "").rpartition(".")
        return f"{path.replace('.', '/')}.py", original

    def origin(self, node: ast.expr) -> Origin:
        """Whose a value is."""
        match node:
            case ast.Name(id=name):
                scope = self.scopes[node].of(name)
                return scope.origins.get(name, Origin.OURS)
            case ast.Attribute(value=value, attr=name):
                return self.origin(value) or self.attributes.get(name, Origin.OURS)
            case ast.Await(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self.origin(value)
            case ast.Subscript(value=value):
                return Origin(2 * bool(self.origin(value)))
            case ast.Call():
                return self._origin_of_call(node)
            case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
                return max(self.origin(first), self.origin(second))
            case ast.BoolOp(values=values):
                return max(map(self.origin, values))
        return self._origin_of_display(node)

    def _origin_of_display(self, node: ast.expr) -> Origin:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
                return min(max(map(self.origin, parts), default=Origin.OURS), Origin.HOLDER)
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                return min(self.origin(part), Origin.HOLDER)
            case ast.DictComp(value=part):
                return min(self.origin(part), Origin.HOLDER)
        return Origin.OURS

    def _origin_of_call(self, call: ast.Call) -> Origin:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in PLAIN:
            return Origin.OURS
        if name == "super":
            class_ = self.scopes[call].class_
            return Origin(2 * any(self.origin(base) for base in (class_.bases if class_ else ())))
        if function := self._function(call.func):
            return self._origin_of_result(function)
        if own := self.origin(call.func):
            if isinstance(call.func, ast.Attribute) and call.func.attr in RUNNERS:
                run = self._function(call.args[0])
                return self._origin_of_result(run) if run else own
            is_item = isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "pop")
            return Origin.ENGINE if is_item else own
        given_origin = max((self.origin(part) for part in call.args), default=Origin.OURS)
        return min(given_origin, Origin.HOLDER) if name in CONTAINERS else Origin(2 * bool(given_origin))

    def _origin_of_result(self, function: Function) -> Origin:
        if function.returns is not None and ast.unparse(function.returns) != "Any":
            return Origin.OURS
        return max((self.origin(value) for value in results(function)), default=Origin.OURS)

    # what is taken from the engine

    def _use(self, node: ast.AST) -> None:
        """Add what a node takes from the engine."""
        match node:
            case ast.Import() | ast.ImportFrom():
                for full, _ in imported(node):
                    if self._is_engine_module(full):
                        self._add("import", full, node)
            case ast.Attribute(value=value, attr=name) if name not in NOT_ENGINES and self._is_engine(value):
                self._add("attribute", name, node)
            case ast.Constant(value=str(text)) if re.fullmatch(rf"{self.package}[:.][\w.]+", text):
                self._add("metric" if ":" in text else "import", text, node)
            case ast.FunctionDef(name=name) if self._is_method_of_engine(node):
                self._add("attribute", name, node)
            case ast.Call():
                self._use_call(node)
            case ast.Subscript() | ast.Compare():
                self._use_text(node)

    def _use_text(self, node: ast.Subscript | ast.Compare) -> None:
        """Add the text that a value of the engine is asked by."""
        match node:
            case ast.Subscript(value=value, slice=text, ctx=ast.Load()):
                kind = "key"
            case ast.Compare(left=text, ops=[ast.In() | ast.NotIn()], comparators=[value]):
                kind = "key"
            case ast.Compare(left=ast.Attribute(value=value, attr="__name__"), comparators=[text]):
                kind = "attribute"
            case _:
                return
        if self._is_engine(value):
            self._add_texts(kind, text, node)

    def _is_engine(self, node: ast.expr) -> bool:
        return self.origin(node) is Origin.ENGINE

    def _use_call(self, call: ast.Call) -> None:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in LOOKUPS and self._is_engine(call.args[0]):
            self._add_texts("attribute", call.args[1], call, required=True)
        elif name == "type" and len(call.args) == 3 and self.origin(call.args[1]):
            for key in getattr(call.args[2], "keys", ()):
                self._add_texts("attribute", key, call, required=True)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in NOT_ENGINES:
            if call.func.attr in ("get", "pop") and self._is_engine(call.func.value):
                self._add_texts("key", call.args[0], call)
        elif self._is_engine(call.func):
            for keyword in call.keywords:
                if keyword.arg:
                    self._add("argument", keyword.arg, call)
                self._pass(keyword.value, keyword.arg or "")
            for part in call.args:
                self._pass(part)

    def _pass(self, node: ast.expr, key: str = "") -> None:
        """Add the keys of what is given to the engine, wherever it was put together; `key` is its own."""
        if node in self._passed:
            return
        self._passed.add(node)
        match node:
            case ast.Constant(value=str(text)) if key and not self._is_own(text):
                self._add("value", f"{key}: {text}", node)
            case ast.Dict(keys=keys, values=values):
                for name, value in zip(keys, values, strict=True):
                    self._pass_item(name, value)
            case ast.Name(id=name):
                self._pass_variable(name, self.scopes[node], key)
            case ast.Call():
                self._pass_result(node)
            case ast.DictComp(key=name, value=value, generators=[ast.comprehension(iter=source), *_]):
                self._pass_item(name, value)
                self._pass(source)
            case _:
                for part in parts_of(node):
                    self._pass(part, key)

    def _pass_item(self, key: ast.expr | None, value: ast.expr) -> None:
        self._pass_named((self._texts(key) if key else None) or [], value)

    def _pass_named(self, keys: list[str], value: ast.expr) -> None:
        for key in keys:
            self._add("argument", key, value)
        self._pass(value, next(iter(keys), ""))

    def _pass_variable(self, name: str, scope: Scope, key: str) -> None:
        held = scope.of(name)
        for value in held.assigned.get(name, ()):
            self._pass(value, key)
        for item, value in held.items.get(name, ()):
            self._pass_item(item, value)
        for function, calls in self.calls.items():
            if any(self.scopes[parameter] is held for parameter in parameters(function)):
                values = [row for call in calls for row in given(function, call)]
                for parameter, value in values:
                    if parameter.arg == name:
                        self._pass(value, key)

    def _pass_result(self, call: ast.Call) -> None:
        match call.func:
            case ast.Attribute(value=value, attr="items" | "copy"):
                self._pass(value)
            case ast.Name(id="dict"):
                for keyword in call.keywords:
                    self._pass_named([keyword.arg] if keyword.arg else [], keyword.value)
            case _ if function := self._function(call.func):
                for value in results(function):
                    self._pass(value)

    def _is_own(self, text: str) -> bool:
        """Whether a text names a class or a module of ours."""
        classes = {node.name for node in self.scopes if isinstance(node, ast.ClassDef)}
        return text in classes or text.startswith("eaglectl.")

    def _texts(self, node: ast.expr) -> list[str] | None:
        """The texts that an expression may be; None where that is not written in these modules."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Name(id=name):
                scope = self.scopes[node].of(name)
                path, original = self._source(scope.module, name)
                if path in self.trees:
                    scope, name = self.scopes[self.trees[path]], original
                values = [*scope.assigned.get(name, ())]
                values += [part for loop in scope.loops.get(name, ()) for part in self._items(*loop)]
                texts = [self._texts(value) for value in values]
                return [text for part in texts for text in part or ()] if texts and all(texts) else None
        return None

    def _items(self, source: ast.expr, position: int | None) -> list[ast.expr]:
        """What a loop over a table that is written out gives to one of its variables."""
        match source:
            case ast.Call(func=ast.Attribute(value=table, attr="items")) if position is not None:
                return [
                    part for row in self._tables(table) for part in ((row.keys, row.values)[position]) if part
                ]
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) if position is None:
                return parts
            case ast.Name(id=name):
                values = self.scopes[source].of(name).assigned.get(name, ())
                return [part for value in values for part in self._items(value, position)]
            case ast.Dict(keys=keys) if position is None:
                return [key for key in keys if key]
        return []

    def _tables(self, node: ast.expr) -> list[ast.Dict]:
        values = (
            self.scopes[node].of(node.id).assigned.get(node.id, ()) if isinstance(node, ast.Name) else [node]
        )
        return [value for value in values if isinstance(value, ast.Dict)]

    def _add_texts(self, kind: str, node: ast.expr, place: ast.AST, *, required: bool = False) -> None:
        texts = self._texts(node)
        if texts is None and required:
            texts = [f"<{ast.unparse(node)}>"]  # no table has it
        for text in texts or ():
            self._add(kind, text, place)

    def _add(self, kind: str, name: str, node: ast.AST) -> None:
        scope = self.scopes.get(node)
        module = scope.module if scope else ""
        self.uses.add(Use(kind, name, f"{module}:{getattr(node, 'lineno', 0)}"))


def uses_in(modules: Mapping[str, str], package: str) -> list[Use]:
    """The names that modules, texts by path from the repository's root, take from an engine."""
    return sorted(Walk(modules, package).uses)


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Full names that an import names, and the variables that it binds."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{alias.name}", alias.asname or alias.name
        else:
            yield alias.name, alias.asname or alias.name.partition(".")[0]


def parameters(function: Function) -> list[ast.arg]:
    """All parameters of a function."""
    arguments = function.args
    several = [part for part in (arguments.vararg, arguments.kwarg) if part]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several]


def annotation(parameter: ast.arg) -> str:
    """The annotation of a parameter as text."""
    return ast.unparse(parameter.annotation) if parameter.annotation else ""


def given(function: Function, call: ast.Call) -> Iterator[tuple[ast.arg, ast.expr]]:
    """The parameters of a function that a call gives, with what it gives."""
    yield from zip(function.args.args, call.args, strict=False)
    named = {parameter.arg: parameter for parameter in parameters(function)}
    yield from ((named[word.arg], word.value) for word in call.keywords if word.arg in named)


def results(function: Function) -> list[ast.expr]:
    """What a function returns, without the functions in it."""
    inner = {
        part
        for node in ast.walk(function)
        if isinstance(node, FUNCTIONS) and node is not function
        for part in ast.walk(node)
    }
    returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node not in inner]
    return [node.value for node in returned if node.value is not None]


def parts_of(node: ast.expr) -> list[ast.expr]:
    """The expressions of which one, or each, is what an expression gives."""
    match node:
        case ast.BinOp(left=first, right=second) | ast.IfExp(body=first, orelse=second):
            return [first, second]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            return parts
        case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.Starred(value=part):
            return [part]
    return []


def names_in(target: ast.expr | None) -> list[str]:
    """The variables that a target binds."""
    match target:
        case ast.Name(id=name):
            return [name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in names_in(part)]
        case ast.Starred(value=part):
            return names_in(part)
    return []
