"""docs/aux-layers.svg: the aux layers of a SpecForge checkpoint as `eaglectl inspect` prints them."""

import io
from pathlib import Path

from rich.console import Console as RichConsole
from rich.terminal_theme import TerminalTheme

import eaglectl
from eaglectl.report.inspection import aux_section
from eaglectl.report.terminal.console import Console
from eaglectl.report.terminal.report import print_section

PAGE = Path(__file__).with_name("aux-layers.svg")
FIXTURES = Path(__file__).parent.parent / "fixtures"
COLUMNS = 82
# its own background, so that it reads the same on light and dark pages
THEME = TerminalTheme(
    (27, 31, 36),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (230, 237, 243)),
    ],
)
# that of rich without the window's frame and without fonts from the net
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {terminal_height}" width="{width}">
<title>Aux layers that each engine captures, as eaglectl inspect prints them</title>
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre;
}}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#1b1f24" width="{width}" height="{terminal_height}" rx="8"/>
<g transform="translate({terminal_x}, -8)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def page() -> str:
    """The whole picture."""
    inspection = eaglectl.inspect(
        str(FIXTURES / "producers/specforge/gqa-ids"), target=str(FIXTURES / "target")
    )
    console = RichConsole(
        file=io.StringIO(),
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    print_section(Console(console), aux_section(inspection))
    return console.export_svg(title="", theme=THEME, code_format=FORMAT, unique_id="aux")
