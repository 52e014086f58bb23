"""All formats, in the order in which they are tried: the surest marks first."""

from eaglectl.formats.angelslim import ANGELSLIM
from eaglectl.formats.automodel import AUTOMODEL
from eaglectl.formats.eagle import EAGLE, NEBIUS
from eaglectl.formats.format import Format, Sighting
from eaglectl.formats.modelopt import MEGATRON, MODELOPT
from eaglectl.formats.native import SGLANG, SGLANG_MLA, UNSIGNED, VLLM
from eaglectl.formats.specforge import SPECFORGE
from eaglectl.formats.speculators import PEAGLE, SPECULATORS
from eaglectl.formats.torchspec import LIGHTSEEKORG, TORCHSPEC, TORCHSPEC_VLLM

FORMATS: tuple[Format, ...] = (
    SPECULATORS,
    PEAGLE,
    VLLM,
    TORCHSPEC_VLLM,
    TORCHSPEC,
    AUTOMODEL,
    SGLANG,
    SGLANG_MLA,
    MODELOPT,
    MEGATRON,
    ANGELSLIM,
    NEBIUS,
    SPECFORGE,
    EAGLE,
    LIGHTSEEKORG,
    UNSIGNED,
)

WRITABLE: tuple[str, ...] = tuple(format.name for format in FORMATS if format.layout)


def detect(sighting: Sighting) -> tuple[Format, str]:
    """The producer of a checkpoint, and the mark that says so; the last format takes what no other claims."""
    for format in FORMATS:
        if evidence := format.recognise(sighting):
            return format, evidence
    raise AssertionError("the last format takes everything")


def by_name(name: str) -> Format:
    """The format with this name; KeyError where there is none."""
    return next(format for format in FORMATS if format.name == name)
