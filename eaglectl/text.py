"""Text from files and servers, made safe to print."""

import re

# in a URL: name and password before the host, and the values of a query that are secrets by their names
USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
QUERY = re.compile(
    r"([?&;][\w.-]{0,40}(?:token|key|secret|passw|pwd|auth|credential|sig)[\w.-]{0,40}=)[^&;#\s]+",
    re.IGNORECASE,
)


def printable(text: str) -> str:
    """Return `text` with control characters, line breaks and lone surrogates escaped.

    Names of tensors, keys and files come from a checkpoint and may hold any character.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def masked(text: str) -> str:
    """Return `text` with the secrets of URLs replaced: name and password, and values like that of token=."""
    if "://" in text:
        text = USERINFO.sub("***@", text)
    return QUERY.sub(r"\1***", text) if "=" in text else text
