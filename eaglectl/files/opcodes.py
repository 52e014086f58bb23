"""Pickles read opcode by opcode into inert values, within limits: nothing is imported or called.

A class or function that a pickle names becomes a `Named`, its call an `Object` with the arguments. The
standard library's pickletools finds the opcodes; what they do to the stack and the memo is here, with an
allow-list of opcodes (one that is not in `_ACTIONS` is refused) and of names.

No container holds itself, few are inside each other, and only what is small is hashed: Python's hash() of a
deeply nested tuple overflows the C stack, and of a tuple that repeats itself takes for ever.
"""

import pickletools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct

# a drafter's pickle has some KB; a list of a million token ids, or a table of thousands of shards, some MB.
# Together these keep the values of any pickle under 100 MB
MAX_BYTES = 4 << 20
MAX_OPCODES = 1_000_000
MAX_CONTAINERS = 100_000
MAX_MEMO = 200_000
# containers inside each other; a trainer's state has fewer than ten
MAX_DEPTH = 64
# the longest integer
MAX_BITS = 256
NEWEST_PROTOCOL = 5


class PickleError(ValueError):
    """A pickle that is broken, or is outside what is read here; its text is a clause."""


class ForeignNameError(PickleError):
    """A pickle asks for a class or function that is not in the allow-list."""

    def __init__(self, module: str, name: str) -> None:
        self.named = f"{module}.{name}"[:120]
        super().__init__(f"it asks for {self.named}")


def refuse(is_fault: object, text: str) -> None:
    """Raise PickleError with this text where the fault is there."""
    if is_fault:
        raise PickleError(text)


class Named(Struct, frozen=True):
    """A class or a function that a pickle names; it is never imported."""

    module: str
    name: str


@dataclass(slots=True, eq=False)
class Container:
    """A value that holds others; once it `is_inside` another it takes nothing more, so none holds itself."""

    depth: int = field(default=1, init=False)
    is_inside: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Tuple(Container):
    """A tuple."""

    items: tuple["Value", ...]


@dataclass(slots=True, eq=False)
class List(Container):
    """A list."""

    items: list["Value"]


@dataclass(slots=True, eq=False)
class Dict(Container):
    """A dict or an OrderedDict; a tuple that is a key stands there as the bytes of its text."""

    entries: dict[Any, "Value"]


@dataclass(slots=True, eq=False)
class Object(Container):
    """A call of what the pickle names, not done: its arguments, and the state it was to be given."""

    named: Named
    arguments: tuple["Value", ...]
    state: "Value" = None


@dataclass(slots=True, eq=False)
class Persistent(Container):
    """A reference to an object outside the pickle, by its id."""

    identity: "Value"


Value: TypeAlias = bool | int | float | str | bytes | Named | Container | None


class Pickle(Struct, frozen=True):
    """The value of a pickle, and its references to outside in their order."""

    value: Value
    references: tuple[Persistent, ...]


def read_pickle(data: bytes, names: Collection[tuple[str, str]], *, has_references: bool = False) -> Pickle:
    """The pickle that `data` begins with, which may name what is in `names`.

    Raises ForeignNameError for any other name, and PickleError where the pickle is broken or passes a limit.
    """
    refuse(len(data) > MAX_BYTES, f"it has {len(data)} bytes, and at most {MAX_BYTES} are read")
    machine = _Machine(names, has_references)
    try:
        with warnings.catch_warnings():
            # pickletools warns of escapes that Python will refuse in texts of protocol 0
            warnings.simplefilter("ignore", DeprecationWarning)
            for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                refuse(count >= MAX_OPCODES, f"it has more than {MAX_OPCODES} opcodes")
                if (action := _ACTIONS.get(opcode.name)) is None:
                    raise PickleError(f"opcode {opcode.name} is not one of those read")
                action(machine, argument)
    except PickleError:
        raise
    except ValueError as error:
        raise PickleError((str(error).splitlines() or [""])[0][:120]) from None
    refuse(len(machine.stack) != 1 or machine.marks, "it does not end with one value")
    return Pickle(machine.stack[0], tuple(machine.references))


def kind(value: Value) -> str:
    """What Python calls a value of this kind."""
    if isinstance(value, Object | Named):
        return value.named.name if isinstance(value, Object) else value.name
    return type(value).__name__.lower() if isinstance(value, Container) else type(value).__name__


def shortened(name: str) -> str:
    """A name for a message, with its middle left out where it is long."""
    return name if len(name) <= 120 else f"{name[:80]} … {name[-30:]}"


class _Machine:
    def __init__(self, names: Collection[tuple[str, str]], has_references: bool) -> None:
        self.names = names
        self.has_references = has_references
        self.stack: list[Value] = []
        self.marks: list[int] = []
        self.memo: dict[int, Value] = {}
        self.references: list[Persistent] = []
        self.containers = 0

    def push(self, value: Any) -> None:
        is_long = isinstance(value, int) and value.bit_length() > MAX_BITS
        refuse(is_long, f"it has an integer of more than {MAX_BITS} bits")
        self.stack.append(value)

    def pop(self) -> Value:
        self.top()
        return self.stack.pop()

    def top(self) -> Value:
        refuse(len(self.stack) <= (self.marks[-1] if self.marks else 0), "it takes a value where none is")
        return self.stack[-1]

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Value]:
        refuse(not self.marks, "it looks for a mark where none is")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def hold(self, container: Container, items: Sequence[Value]) -> None:
        """Note that `container` holds `items`."""
        refuse(container.is_inside, "it fills a container that is inside another")
        for item in items:
            if isinstance(item, Container):
                refuse(item is container, "a container holds itself")
                item.is_inside = True
                container.depth = max(container.depth, item.depth + 1)
        refuse(container.depth > MAX_DEPTH, f"more than {MAX_DEPTH} containers are inside each other")

    def make(self, container: Container, items: Sequence[Value] = ()) -> None:
        self.containers += 1
        refuse(self.containers > MAX_CONTAINERS, f"it has more than {MAX_CONTAINERS} containers")
        self.hold(container, items)
        self.stack.append(container)

    def make_tuple(self, items: Sequence[Value]) -> None:
        self.make(Tuple(tuple(items)), items)

    def take(self, count: int) -> list[Value]:
        items = [self.pop() for _ in range(count)]
        items.reverse()
        return items

    def extend(self, items: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, List):
            raise PickleError(f"it appends to a {kind(target)}")
        self.hold(target, items)
        target.items.extend(items)

    def set_items(self, items: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, Dict) or len(items) % 2:
            raise PickleError(f"it sets items of a {kind(target)}, or half of one")
        self.hold(target, items)
        for position in range(0, len(items), 2):
            key = _key(items[position])
            if key in target.entries:
                shown = ascii(key)[:80] if isinstance(key, str | bytes | int) else "a key"
                raise PickleError(f"a dict has {shown} twice")
            target.entries[key] = items[position + 1]

    def remember(self, number: int) -> None:
        refuse(not 0 <= number < MAX_MEMO, f"memo number {number} is not below {MAX_MEMO}")
        self.memo[number] = self.top()

    def recall(self, number: int) -> None:
        refuse(number not in self.memo, f"memo number {number} was never set")
        self.stack.append(self.memo[number])

    def find(self, module: Value, name: Value) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("it names a class by something else than text")
        if (module, name) not in self.names:
            raise ForeignNameError(module, name)
        self.stack.append(Named(module, name))

    def call(self) -> None:
        named, arguments = self.take(2)
        if not isinstance(named, Named) or not isinstance(arguments, Tuple):
            raise PickleError(f"it calls a {kind(named)} with a {kind(arguments)}")
        if (named.module, named.name) == ("collections", "OrderedDict") and not arguments.items:
            self.make(Dict({}))
        else:
            self.make(Object(named, arguments.items), (arguments,))

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if not isinstance(target, Object | Dict):
            raise PickleError(f"it gives a state to a {kind(target)}")
        self.hold(target, (state,))
        if isinstance(target, Object):
            target.state = state

    def refer(self) -> None:
        refuse(not self.has_references, "it asks for an object outside it")
        identity = self.pop()
        reference = Persistent(identity)
        self.make(reference, (identity,))
        self.references.append(reference)

    def make_dict(self, items: list[Value]) -> None:
        self.make(Dict({}))
        self.set_items(items)


def _key(value: Value) -> Any:
    """A hashable stand-in for a dict's key; refuses keys whose hash a hostile pickle could make slow."""
    match value:
        case int() if value.bit_length() > 64:
            raise PickleError("a dict has a key of more than 64 bits")
        case None | int() | str() | bytes() | Named() | Object():
            return value
        case Tuple(items=items) if not any(isinstance(item, Container) for item in items):
            return repr(items).encode()
    raise PickleError(f"a dict has a {kind(value)} as a key")


_PUSHED = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
)  # fmt: skip
_ACTIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_PUSHED, _Machine.push),
    "PROTO": lambda _, protocol: refuse(
        protocol > NEWEST_PROTOCOL, f"its protocol is {protocol}, and {NEWEST_PROTOCOL} is the newest read"
    ),
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "MARK": lambda machine, _: machine.mark(),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.make_tuple(()),
    "TUPLE1": lambda machine, _: machine.make_tuple(machine.take(1)),
    "TUPLE2": lambda machine, _: machine.make_tuple(machine.take(2)),
    "TUPLE3": lambda machine, _: machine.make_tuple(machine.take(3)),
    "TUPLE": lambda machine, _: machine.make_tuple(machine.since_mark()),
    "EMPTY_LIST": lambda machine, _: machine.make(List([])),
    "LIST": lambda machine, _: machine.make(List(items := machine.since_mark()), items),
    "APPEND": lambda machine, _: machine.extend(machine.take(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "EMPTY_DICT": lambda machine, _: machine.make(Dict({})),
    "DICT": lambda machine, _: machine.make_dict(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.take(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "PUT": _Machine.remember,
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "GET": _Machine.recall,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": lambda machine, argument: machine.find(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.find(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.refer(),
}
