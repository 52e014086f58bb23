"""The JSON document of `verify`."""

from eaglectl.publish.verification import CheckedFile, Verification
from eaglectl.report.documents.document import Parts

TAG = "eaglectl/verify/1"
PARTS: Parts = {
    Verification: (
        "folder",
        "verdict",
        "lists",
        "files",
        "others",
        "has_signature",
        "evidence",
    ),
    CheckedFile: ("name", "judgement", "lists", "how", "by", "tensors"),
}
