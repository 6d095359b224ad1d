"""Entry point of the engine process: `python -m pelton.engine FD`."""

import gc
import importlib
import sys
from types import ModuleType

_META_KERNELS = "torch._meta_registrations"


def load_process() -> ModuleType:
    """Import pelton.engine.process, and torch with it, in as little time as possible."""
    gc.disable()  # importing torch makes 200,000 objects, all to stay: collections among them take a tenth of the time
    # What torch.compile knows of the shapes of operations in Python. Registering it takes a quarter of torch's import
    # and 18 MB, and no tensor here is without data. Who needs it after all can import it later.
    sys.modules[_META_KERNELS] = ModuleType(_META_KERNELS)
    process = importlib.import_module("pelton.engine.process")
    del sys.modules[_META_KERNELS]
    return process


if __name__ == "__main__":
    load_process().main()
