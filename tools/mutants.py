"""Mutation testing by sample: the changes of a package's code that its tests do not see.

cosmic-ray mutates a clone of the last commit, one place at a time, and runs the package's tests. This module
draws the places by seed, and prints the share that was noticed and the mutants that were not. It runs in
cosmic-ray's environment, the tests in the project's: `make mutants PACKAGE=conversion`.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import WorkItem

ROOT = Path(__file__).parent.parent
# which tests answer for a package, quick ones first; a mutant that they miss is not tried on the others
TESTS = {
    "acceptance": "draft_sampling vllm_counters double_norm measurement published_acceptance"
    " prompt_sets against servers first_pass diagnose_records hostile/server diagnose vllm_target_engine",
    "checkpoint": "front_matter header end_of_sequence sources pickles pickled_headers writer"
    " hub_cache hub_retries hub_source",
    "conversion": "arithmetic upgrade_warnings target_head convert unserved mla_maps upgrade pruning"
    " target_rotation writer",
    "drafter": "drafter boundaries vocabulary arithmetic declarations fixtures convert",
    "formats": "declarations fixtures deepspec angelslim automodel doubts unread other_families"
    " format_contract questions",
    "validation": "hostile/configuration validation",
}
# `int | None` in an annotation is no arithmetic, and to change it is an error at import
NO_ARITHMETIC = "ReplaceBinaryOperator_BitOr_"


def sample(items: Iterable[WorkItem], count: int, seed: int) -> list[WorkItem]:
    """`count` places of the code, with one mutation each: an operator has a dozen others, a constant two."""
    places = defaultdict(list)
    for item in items:
        mutation = item.mutations[0]
        if NO_ARITHMETIC not in mutation.operator_name:
            places[str(mutation.module_path), mutation.start_pos].append(item)
    draw = random.Random(seed)
    chosen = draw.sample(sorted(places), min(count, len(places)))
    return [draw.choice(sorted(places[place], key=_mutation_key)) for place in chosen]


def _mutation_key(item: WorkItem) -> tuple[str, int]:
    return item.mutations[0].operator_name, item.mutations[0].occurrence


def _path(clone: Path, name: str) -> str:
    path = Path("tests", name)
    return str(path if (clone / path).is_dir() else path.with_name(f"test_{path.name}.py"))


def run(package: str, count: int, seed: int, python: Path) -> int:
    """Print what survived and the share that was killed; exit code 1 where less than nine in ten were."""
    with tempfile.TemporaryDirectory() as folder:
        clone, session, config = (Path(folder, name) for name in ("clone", "session.sqlite", "config.toml"))
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        files = " ".join(_path(clone, name) for name in TESTS[package].split())
        tests = f"{shlex.quote(str(python))} -m pytest -x -q -p no:cacheprovider {files}"
        config.write_text(
            f'[cosmic-ray]\nmodule-path = "eaglectl/{package}"\ntimeout = 600.0\nexcluded-modules = []\n'
            f"test-command = {tests!r}\n[cosmic-ray.distributor]\nname = 'local'\n"
        )
        # the tests' own processes import the clone too
        environment = {**os.environ, "PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
        for command in (["init", config, session], ["baseline", config], ["exec", config, session]):
            call = [sys.executable, "-m", "cosmic_ray.cli", *map(str, command)]
            subprocess.run(call, cwd=clone, env=environment, check=True)
            if command[0] == "init":
                with use_db(session) as database:
                    items = sample(database.work_items, count, seed)
                    database.clear()
                    database.add_work_items(items)
        with use_db(session) as database:
            results = list(database.completed_work_items)
    survivors = [result for _, result in results if not result.is_killed]
    for result in survivors:
        print(result.diff)
    killed = len(results) - len(survivors)
    print(f"{package}: {killed} of {len(results)} mutants killed, {killed / len(results):.1%} (seed {seed})")
    return int(killed < 0.9 * len(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=TESTS)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", type=Path, default=Path(".venv/bin/python"), help="runs the tests")
    arguments = parser.parse_args()
    # not resolved: an environment's python is a link, and finds its packages by where the link lies
    sys.exit(run(arguments.package, arguments.count, arguments.seed, arguments.python.absolute()))
