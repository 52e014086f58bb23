"""The JSON document of `calibrate`."""

from eaglectl.conversion.upgrade import Statistics
from eaglectl.report.documents import Parts

PARTS: Parts = {
    Statistics: (
        "out",
        "digests",
        "boundaries",
        "rms_norm_eps=eps",
        "tokens",
        "rms",
        "log_ratio_sd=spread",
        "sigma",
        "sigma_by_set=sigmas",
        "is_direction",
        "engine",
        "measured?",
        "trust_remote_code?",
    )
}
