"""Entry point of the engine process: `python -m pelton.engine FD`."""

import gc
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_META_KERNELS = "torch._meta_registrations"
_COMPILER = "torch._dynamo"


class _WithCompiler(MetaPathFinder):
    """Imports the meta kernels when torch's compiler is imported, which cannot do without them."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if fullname == _COMPILER:
            sys.meta_path.remove(self)
            importlib.import_module(_META_KERNELS)


def load_process() -> ModuleType:
    """Import pelton.engine.process, and torch with it, in as little time as possible."""
    gc.disable()  # importing torch makes 200,000 objects, all to stay: collections among them take a tenth of the time
    # What torch.compile knows of the shapes of operations in Python. Registering it takes a quarter of torch's import
    # and 18 MB, and no tensor here is without data. Parts of torch import the compiler when they are first called.
    sys.modules[_META_KERNELS] = ModuleType(_META_KERNELS)
    process = importlib.import_module("pelton.engine.process")
    del sys.modules[_META_KERNELS]
    sys.meta_path.insert(0, _WithCompiler())
    return process


if __name__ == "__main__":
    load_process().main()
