"""The JSON document of `smoke --load-only`."""

from eaglectl.report.documents.document import Parts
from eaglectl.run.job import LoadResult

TAG = "eaglectl/load/1"
PARTS: Parts = {LoadResult: ("version", "unfilled", "resolved", "trust_remote_code?", "shared?")}
