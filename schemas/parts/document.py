"""What the types of JSON documents have in common."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from eaglectl.verdicts import CheckVerdict

# kinds of values that no record of eaglectl needs; whole numbers stay whole
Number = Annotated[Any, Meta(extra_json_schema={"type": "number"})]
NumberOrNull = Annotated[Any, Meta(extra_json_schema={"type": ["number", "null"]})]
NotNegative = Annotated[Number, Meta(extra_json_schema={"minimum": 0})]
Positive = Annotated[Number, Meta(extra_json_schema={"exclusiveMinimum": 0})]
CountFrom1 = Annotated[int, Meta(extra_json_schema={"minimum": 1})]
RuleId = Annotated[str, Meta(extra_json_schema={"pattern": "^EGL[0-9]{3,4}$"})]
Interval = tuple[Number, Number]

# the key of a part begins with it whose keys stand among those of the part that has it
INLINE = "*"

# only `validate` skips
Ended = Annotated[
    CheckVerdict,
    Meta(
        extra_json_schema={"enum": [verdict for verdict in CheckVerdict if verdict != CheckVerdict.SKIPPED]}
    ),
]
Trust = Annotated[bool, Meta(description="There where --trust-remote-code let the target's own code run.")]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a document: its fields are the keys.

    A field with a default is absent from the document where the value is empty.
    """


class Document(Part, frozen=True, tag_field="schema"):
    """A whole document, which begins with its tag, the schema's id, and the version of eaglectl."""


class ErrorPart(Part, frozen=True):
    """An error."""

    kind: Literal["refused", "usage", "unreadable", "outdated", "fault"]
    exit_code: Literal[1, 2, 3, 70]
    message: str


class ErrorDocument(ErrorPart, frozen=True, tag_field="schema", tag="eaglectl/error/1"):
    """What any command prints with --json when it stops."""
