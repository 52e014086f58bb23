"""Print the next free rule number of each family, or of one: `python -m tools.next_rule [weights]`."""

import sys

from eaglectl.judge.rule import FAMILIES, rules


def next_ids() -> dict[str, str]:
    """Return the id after the last one of each family, by the family's name; a full hundred has another."""
    taken = {rule.number for rule in rules()}
    free = {}
    for hundreds, family in FAMILIES.items():
        last = max((number for number in taken if number // 100 == hundreds), default=hundreds * 100)
        if last % 100 < 99:
            free[family] = f"EGL{last + 1:03}"
    return free


if __name__ == "__main__":
    ids = next_ids()
    if not {*sys.argv[1:]} <= {*ids}:
        sys.exit(f"no such family; the families are {', '.join(ids)}")
    for family in sys.argv[1:] or ids:
        print(f"{ids[family]}  {family}")
