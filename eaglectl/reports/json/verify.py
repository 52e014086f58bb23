"""The JSON document of `verify`."""

from typing import TYPE_CHECKING, Any

from eaglectl.reports.json.document import head

if TYPE_CHECKING:
    from eaglectl.publishing.verification import Verification


def verify_document(verification: "Verification") -> dict[str, Any]:
    """Return eaglectl/verify/1."""
    signature = verification.signature
    return {
        **head("verify"),
        "folder": verification.folder,
        "verdict": verification.verdict,
        "lists": list(verification.lists),
        "files": [
            {"name": file.name, "judgement": file.judgement, "lists": list(file.lists), "how": file.how}
            for file in verification.files
        ],
        "others": list(verification.others),
        "signature": signature and {"judgement": signature.judgement, "how": signature.how},
    }
