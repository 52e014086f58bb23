"""The options of every command: a field is an option (see eaglectl/options.py)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import field
from msgspec.structs import replace

from eaglectl.acceptance.engine_arguments import parse_engine_arguments
from eaglectl.conversion.request import FC_NORM_MODES, ConversionRequest
from eaglectl.engines.request import ENGINES as ENGINES
from eaglectl.formats.format import Answers
from eaglectl.options import Option, Options
from eaglectl.validation.policy import Policy
from eaglectl.validation.rule import Severity

if TYPE_CHECKING:
    from eaglectl.acceptance.prompts import Prompt
    from eaglectl.api.open_questions import MeasureRun
