"""The causes of low acceptance that `diagnose` knows, in the order in which they are tested."""

from eaglectl.acceptance.causes import ends, engine, file, pair, prompts, training
from eaglectl.acceptance.diagnosis import Cause

CAUSES: tuple[Cause, ...] = (
    pair.ROTATED_TARGET,
    pair.OTHER_TARGET,
    file.FILE_RULE,
    file.TABLES,
    file.REFUSED,
    ends.NO_REFERENCE,
    file.OTHER_READING,
    file.OTHER_LAYERS,
    prompts.PAST_POSITIONS,
    engine.ENGINE_REFUSES,
    engine.ENGINE_SETTING,
    engine.ENGINE_UNFILLED,
    engine.ENGINE_FACT,
    engine.ENGINE_LOWER,
    ends.TOO_FEW,
    prompts.SAMPLING,
    prompts.TEMPLATE,
    prompts.ONE_SET,
    pair.MARKED_ROTATION,
    pair.OTHER_REVISION,
    pair.QUANTISED_TARGET,
    training.UNTRAINED,
    training.WEAK,
    ends.NO_ENGINE,
    ends.HEALTHY,
    ends.NOT_FOUND,
)
