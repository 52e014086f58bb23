"""The JSON document of `init`."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from eaglectl.reports.documents.document import Document


class InitDocument(Document, frozen=True, tag="eaglectl/init/1"):
    """What eaglectl init --json prints."""

    path: Annotated[Path, Meta(description="The file that was written")]
    questions: Annotated[tuple[str, ...], Meta(description="What no answer settles yet")]
    measured: Annotated[tuple[str, ...], Meta(description="What was open and measured")]
