"""What goes wrong, by the environment: STAND_IN names it, STAND_IN_ONLY "plain" or "drafted" the run."""

import os
import subprocess
import sys
import time
from pathlib import Path

HOW = os.environ.get("STAND_IN", "")
ONLY = os.environ.get("STAND_IN_ONLY", "")


class ValidationError(ValueError):
    """As pydantic's: one argument is wrong."""

    def __init__(self, field, message):
        super().__init__(f"1 validation error for EngineArgs\n{field}\n  {message}")
        self.field = field

    def errors(self):
        return [{"loc": (self.field,), "msg": str(self), "ctx": {}}]


def at_start(given):
    if ONLY and (ONLY == "plain") == ("speculative_config" in given):
        return
    if HOW.startswith("does not know "):
        raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument '{HOW.split()[-1]}'")
    if HOW.startswith("refuses "):
        raise ValidationError(HOW.split()[-1], "Input should be another")
    if action := ACTIONS.get(HOW):
        action(given)


def wait(given):
    time.sleep(600)


def leave_a_worker(given):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)


def fail_in_a_worker(given):
    print("(Worker_TP1) ERROR ValueError: head_dim=7 is not there", file=sys.stderr, flush=True)
    raise RuntimeError("Engine core initialization failed. See root cause above.")


def fail_in_a_drafting_worker(given):
    place = Path(__file__).parent / "model_executor/models/llama_eagle3.py"
    print(f'  File "{place}", line 7, in load_weights', file=sys.stderr)
    print("(Worker_TP1) ERROR KeyError: 'fc_norm'", file=sys.stderr, flush=True)
    raise RuntimeError("Engine core initialization failed. See root cause above.")


def ask_for_code(given):
    allowed = given["trust_remote_code"]
    raise ValueError("it may run code" if allowed else "x\n" * 500 + "set `trust_remote_code=True`")


def say(given):
    raise RuntimeError(os.environ["STAND_IN_WORDS"])


ACTIONS = {
    "hangs": wait,
    "leaves a worker": leave_a_worker,
    "fails in a worker": fail_in_a_worker,
    "fails in a drafting worker": fail_in_a_drafting_worker,
    "asks for code": ask_for_code,
    "says": say,
}


def at_generation(config):
    """Whether nothing comes back."""
    if ONLY and (ONLY == "plain") == bool(config):
        return False
    if HOW == "dies later":
        os._exit(9)
    return HOW == "returns nothing"
