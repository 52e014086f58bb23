"""Pickles read opcode by opcode into inert values, within limits: nothing is imported or called.

A class or function that a pickle names becomes a `Named`, its call an `Object` with the arguments. The
standard library's pickletools finds the opcodes; what they do to the stack and the memo is here, with an
allow-list of opcodes (one that is not in `_ACTIONS` is refused) and of names.

Values may hold themselves and nest deeply: readers must not recurse. Only small values are hashed: Python's
hash() of a deeply nested tuple overflows the C stack, and that of a self-repeating tuple never ends.
"""

import pickletools
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

# a drafter's pickle has some KB; a list of a million token ids, or a table of thousands of shards, some MB.
# Together these keep the values of any pickle under 100 MB
MAX_BYTES = 4 << 20
MAX_OPCODES = 1_000_000
MAX_CONTAINERS = 100_000
MAX_MEMO = 200_000
# the longest integer, and the longest tuple that is a key: it is hashed
MAX_BITS, MAX_KEY = 256, 16
NEWEST_PROTOCOL = 5


class PickleError(ValueError):
    """A pickle that is broken or not supported here; its text is a clause."""


class ForeignNameError(PickleError):
    """A pickle asks for a class or function that is not in the allow-list."""

    def __init__(self, module: str, name: str) -> None:
        self.named = f"{module}.{name}"[:120]
        super().__init__(f"it refers to {self.named}")


def refuse(is_fault: object, text: str) -> None:
    """Raise PickleError with this text if `is_fault`."""
    if is_fault:
        raise PickleError(text)


class Named(Struct, frozen=True):
    """A class or a function that a pickle names; it is never imported."""

    module: str
    name: str


class Object(Struct, eq=False):
    """A call in a pickle, not executed: the callable, its arguments, and the state for the result."""

    named: Named
    arguments: tuple["Value", ...]
    state: "Value" = None


class PersistentId(Struct, eq=False):
    """A reference to an object outside the pickle, by its id."""

    identity: "Value"


Value: TypeAlias = (
    bool
    | int
    | float
    | str
    | bytes
    | tuple["Value", ...]
    | list["Value"]
    | dict[Any, "Value"]
    | Named
    | Object
    | PersistentId
    | None
)


def read_pickle(data: bytes, names: Collection[tuple[str, str]], *, has_references: bool = False) -> Value:
    """Read the pickle at the start of `data` into an inert value; it may name only what is in `names`.

    The value may hold itself, and be of any depth. Raises ForeignNameError for any other name, and
    PickleError for a broken pickle or one over a limit.
    """
    refuse(len(data) > MAX_BYTES, f"it has {len(data)} bytes; the limit is {MAX_BYTES}")
    machine = _Machine(names, has_references)
    try:
        with warnings.catch_warnings():
            # pickletools warns of escapes that Python will refuse in texts of protocol 0
            warnings.simplefilter("ignore", DeprecationWarning)
            for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                refuse(count >= MAX_OPCODES, f"it has more than {MAX_OPCODES} opcodes")
                if (action := _ACTIONS.get(opcode.name)) is None:
                    raise PickleError(f"opcode {opcode.name} is not supported")
                action(machine, argument)
    except PickleError:
        raise
    except ValueError as error:
        raise PickleError((str(error).splitlines() or [""])[0][:120]) from None
    refuse(len(machine.stack) != 1 or machine.marks, "it does not end with one value")
    return machine.stack[0]


def kind(value: Value) -> str:
    """Return the Python type name of a value."""
    named = value.named if isinstance(value, Object) else value
    return named.name if isinstance(named, Named) else type(value).__name__


def shortened(name: str) -> str:
    """Return a name for a message; the middle of a long one is left out."""
    return name if len(name) <= 120 else f"{name[:80]} … {name[-30:]}"


class _Machine:
    def __init__(self, names: Collection[tuple[str, str]], has_references: bool) -> None:
        self.names, self.has_references = names, has_references
        self.stack: list[Value] = []
        self.marks: list[int] = []
        self.memo: dict[int, Value] = {}
        self.containers = 0

    def push(self, value: Any) -> None:
        is_long = isinstance(value, int) and value.bit_length() > MAX_BITS
        refuse(is_long, f"it has an integer of more than {MAX_BITS} bits")
        self.stack.append(value)

    def make(self, container: Value) -> None:
        self.containers += 1
        refuse(self.containers > MAX_CONTAINERS, f"it has more than {MAX_CONTAINERS} containers")
        self.stack.append(container)

    def top(self) -> Value:
        self._check_there(1)
        return self.stack[-1]

    def take(self, count: int) -> list[Value]:
        self._check_there(count)
        return self._cut(len(self.stack) - count)

    def since_mark(self) -> list[Value]:
        refuse(not self.marks, "it uses a mark that was not set")
        return self._cut(self.marks.pop())

    def _check_there(self, count: int) -> None:
        least = self.marks[-1] if self.marks else 0
        refuse(len(self.stack) - count < least, "it takes a value from an empty stack")

    def _cut(self, start: int) -> list[Value]:
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def extend(self, items: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise PickleError(f"it appends to a {kind(target)}")
        target.extend(items)

    def set_items(self, items: list[Value]) -> None:
        target = self.top()
        if not isinstance(target, dict) or len(items) % 2:
            raise PickleError(f"it sets items of a {kind(target)}, or half of one")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _check_key(key)
            if key in target:
                text = ascii(key)[:80] if isinstance(key, str | bytes | int) else "a key"
                raise PickleError(f"a dict has {text} twice")
            target[key] = value

    def remember(self, number: int) -> None:
        refuse(not 0 <= number < MAX_MEMO, f"memo number {number} is not below {MAX_MEMO}")
        self.memo[number] = self.top()

    def recall(self, number: int) -> None:
        refuse(number not in self.memo, f"memo number {number} was never set")
        self.stack.append(self.memo[number])

    def find(self, module: Value, name: Value) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("a class name is not a text")
        if (module, name) not in self.names:
            raise ForeignNameError(module, name)
        self.stack.append(Named(module, name))

    def call(self) -> None:
        named, arguments = self.take(2)
        if not isinstance(named, Named) or not isinstance(arguments, tuple):
            raise PickleError(f"it calls a {kind(named)} with a {kind(arguments)}")
        is_dict = (named.module, named.name) == ("collections", "OrderedDict") and not arguments
        self.make({} if is_dict else Object(named, arguments))

    def build(self) -> None:
        state, target = *self.take(1), self.top()
        if isinstance(target, Object):
            target.state = state
        refuse(not isinstance(target, Object | dict), f"it gives a state to a {kind(target)}")

    def refer(self) -> None:
        refuse(not self.has_references, "it refers to an object outside of it")
        self.make(PersistentId(*self.take(1)))


def _is_key_part(value: Value) -> bool:
    # of numbers only indices: tuples of -1 and -2, of larger ones or of floats can have one hash
    if isinstance(value, int):
        return 0 <= value < 1 << 31
    return value is None or isinstance(value, str | bytes | Named | Object)


def _check_key(value: Value) -> None:
    """Refuse keys of a dict whose hash a hostile pickle could make slow, or overflow the C stack with."""
    match value:
        case int() if value.bit_length() > 64:
            raise PickleError("a dict has a key of more than 64 bits")
        case None | int() | str() | bytes() | Named() | Object():
            return
        case tuple() if len(value) <= MAX_KEY and all(map(_is_key_part, value)):
            return
    raise PickleError(f"a dict has a {kind(value)} as a key")


_PUSHED = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
)  # fmt: skip
# what protocols 2 to 5 write; those of 0 and 1 alone are refused
_ACTIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_PUSHED, _Machine.push),
    "PROTO": lambda _, protocol: refuse(
        protocol > NEWEST_PROTOCOL, f"its protocol is {protocol}, and {NEWEST_PROTOCOL} is the newest read"
    ),
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.make(()),
    "TUPLE1": lambda machine, _: machine.make(tuple(machine.take(1))),
    "TUPLE2": lambda machine, _: machine.make(tuple(machine.take(2))),
    "TUPLE3": lambda machine, _: machine.make(tuple(machine.take(3))),
    "TUPLE": lambda machine, _: machine.make(tuple(machine.since_mark())),
    "EMPTY_LIST": lambda machine, _: machine.make([]),
    "APPEND": lambda machine, _: machine.extend(machine.take(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "EMPTY_DICT": lambda machine, _: machine.make({}),
    "SETITEM": lambda machine, _: machine.set_items(machine.take(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "BINPUT": _Machine.remember,
    "LONG_BINPUT": _Machine.remember,
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": lambda machine, argument: machine.find(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.find(*machine.take(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.refer(),
}
