"""The JSON document of `verify`."""

from typing import TYPE_CHECKING, Any

from eaglectl.publishing.evidence import evidence_of
from eaglectl.reports.json.document import head

if TYPE_CHECKING:
    from eaglectl.publishing.signature import Signature
    from eaglectl.publishing.verification import Verification


def verify_document(verification: "Verification") -> dict[str, Any]:
    """Return eaglectl/verify/1."""
    return {
        **head("verify"),
        "folder": verification.folder,
        "verdict": verification.verdict,
        "lists": list(verification.lists),
        "files": [
            {
                "name": file.name,
                "judgement": file.judgement,
                "lists": list(file.lists),
                "how": file.how,
                "by": list(file.by),
                "tensors": list(file.tensors),
            }
            for file in verification.files
        ],
        "others": list(verification.others),
        "signature": _signed(verification.signature),
        "provenance": _signed(verification.provenance),
        "evidence": [
            {"name": part.name, "proves": part.proves, "leaves_open": part.leaves_open}
            for part in evidence_of(verification)
        ],
    }


def _signed(signature: "Signature | None") -> dict[str, str] | None:
    return {"judgement": signature.judgement, "how": signature.how} if signature else None
