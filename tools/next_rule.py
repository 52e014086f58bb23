"""Print the next free rule number of each family, or of one: `python -m tools.next_rule [weights]`."""

import sys

from eaglectl.judge.rule import FAMILIES, rules


def next_ids() -> dict[str, str]:
    """Return the id after the last one of each family, by the family's name."""
    numbers = {family: [hundreds * 100] for hundreds, family in FAMILIES.items()}
    for rule in rules():
        numbers[rule.family].append(rule.number)
    return {family: f"EGL{max(taken) + 1:03}" for family, taken in numbers.items()}


if __name__ == "__main__":
    ids = next_ids()
    if not {*sys.argv[1:]} <= {*ids}:
        sys.exit(f"no such family; the families are {', '.join(ids)}")
    for family in sys.argv[1:] or ids:
        print(f"{ids[family]}  {family}")
