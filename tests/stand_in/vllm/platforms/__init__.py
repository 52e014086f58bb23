import os
from types import SimpleNamespace

current_platform = SimpleNamespace(is_cpu=lambda: os.environ.get("STAND_IN_DEVICE", "cpu") == "cpu")
