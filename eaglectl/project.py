"""Where eaglectl itself is found: one setting, Repository in [project.urls] of pyproject.toml."""

from functools import cache

# the package `eaglectl` of the public index is another project
DISTRIBUTION = "eagle-drafter-tools"


@cache
def repository() -> str:
    """Return the project's address, as the installed distribution names it; "" without one."""
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
