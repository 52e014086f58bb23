"""The JSON document of `smoke --load-only`."""

from typing import Annotated

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.reports.documents.document import Document, Part, Trust


class LoadedClass(Part, frozen=True):
    """Settings that the class reads from the checkpoint"""

    name: str = field(name="class")
    layers: Count
    fc_norm: bool
    norm_output: bool
    norm_before_fc: bool
    norm_before_residual: bool | None
    fc: Annotated[tuple[int, int] | None, Meta(description="Output and input size")]
    own_embed_tokens: bool
    own_lm_head: bool


class LoadDocument(Document, frozen=True, tag="eaglectl/load/1"):
    """What eaglectl smoke --load-only --json prints."""

    version: Annotated[str, Meta(description="The release of vLLM that loaded the drafter")]
    unfilled: Annotated[
        tuple[str, ...], Meta(description="Parameters of vLLM's drafter class that the files do not fill")
    ]
    resolved: LoadedClass
    trust_remote_code: Trust = False
