"""The address of eaglectl: the setting Repository in [project.urls] of pyproject.toml."""

from functools import cache

# the package `eaglectl` of the public index is another project
DISTRIBUTION = "eagle-drafter-tools"


@cache
def repository() -> str:
    """Return the project's address from the installed distribution; "" if it has none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        lines = metadata(DISTRIBUTION).get_all("Project-URL") or ()
        urls: dict[str, str] = dict(line.split(", ", 1) for line in lines)
    except PackageNotFoundError:
        return ""
    return urls.get("Repository", "").rstrip("/")


def install_command() -> str:
    """Return the command that installs eaglectl from its repository; "" without an address."""
    return f"pip install 'git+{repository()}'" if repository() else ""
