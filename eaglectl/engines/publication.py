"""What the authors of a published drafter measured in an engine, and in which of its releases."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from eaglectl.engines.releases import is_since
from eaglectl.formats.published import Figure, published_file


class Publication(Struct, frozen=True):
    """What is published of a drafter beside one engine release.

    `figures` are its authors' in this engine, `others` what others measured with it. `gap` states why the
    release is not known to run the file as its authors did, "" where it does.
    """

    drafter: str
    figures: tuple[Figure, ...] = ()
    others: tuple[Figure, ...] = ()
    gap: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The figures in words: its authors' first one, where all are from, and what others measured."""
        first, *more = (figure.words for figure in self.figures)
        origins = dict.fromkeys(figure.origin for figure in self.figures)
        measured = f"measured by the authors of {self.drafter} ({'; '.join(origins)})"
        read = ((figure.changed or "as stored", figure) for figure in self.others)
        others = (f"others, {how}: {figure.words} ({figure.origin})" for how, figure in read)
        return (first, *more, measured, *others)


def publication(
    drafter: str, engine: str, releases: Sequence[str], reads_alike: Callable[[str], bool]
) -> Publication:
    """What is published of a drafter beside a release of an engine.

    `engine` is its title, `releases` those that are known, `reads_alike` whether one of them reads the file
    as the release in question does, and as the drafter is settled. Each that a figure can be of must do so,
    or the figure tells nothing.
    """
    known = next(entry for entry in published_file().drafters if entry.name == drafter)
    measured = tuple(figure for figure in known.figures if figure.is_by_authors and figure.engine_name)
    own = tuple(figure for figure in measured if figure.engine_name == engine)
    if not own:
        engines = " and ".join(dict.fromkeys(str(figure.engine_name) for figure in measured))
        return Publication(drafter, gap=f"its authors measured it in {engines}, not in {engine}")
    if gap := _gap(own[0], releases, reads_alike):
        return Publication(drafter, gap=f"its authors measured it ({own[0].origin}), and {gap}")
    return Publication(drafter, own, tuple(figure for figure in known.figures if not figure.is_by_authors))


def _gap(figure: Figure, releases: Sequence[str], reads_alike: Callable[[str], bool]) -> str:
    """Why a figure tells nothing of the release in question; "" where it does."""
    run = _run_by_authors(figure, releases)
    other = next((release for release in run if not reads_alike(release)), None)
    if other:
        return f"{other} reads it otherwise"
    return "" if run else "what that release reads is not known"


def _run_by_authors(figure: Figure, releases: Sequence[str]) -> tuple[str, ...]:
    """The releases that a figure can be of: the one that its source states, else all since it was made."""
    if figure.release is not None:
        return tuple(release for release in releases if release == figure.release)
    return tuple(release for release in releases if figure.since is None or is_since(figure.since, release))
