"""Text from files, made safe to print."""


def printable(text: str) -> str:
    """Return `text` with control characters, line breaks and lone surrogates escaped.

    Names of tensors, keys and files come from a checkpoint and may hold any character.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
