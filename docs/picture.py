"""docs/aux-layers.svg: the aux layers of a SpecForge checkpoint as `eaglectl inspect` prints them."""

from pathlib import Path

import eaglectl
from eaglectl.report.inspection import aux_section
from eaglectl.report.terminal import IMAGE, IMAGE_THEME, print_section, recorded

PAGE = Path(__file__).with_name("aux-layers.svg")
FIXTURES = Path(__file__).parent.parent / "fixtures"
COLUMNS = 82
TITLE = "Aux layers that each engine captures, as eaglectl inspect prints them"


def page() -> str:
    """The whole picture."""
    inspection = eaglectl.inspect(
        str(FIXTURES / "producers/specforge/gqa-ids"), target=str(FIXTURES / "target")
    )
    console = recorded(lambda console: print_section(console, aux_section(inspection)), COLUMNS)
    image = IMAGE.replace("<title>eaglectl<", f"<title>{TITLE}<")
    return console.export_svg(title="", theme=IMAGE_THEME, code_format=image, unique_id="aux")
